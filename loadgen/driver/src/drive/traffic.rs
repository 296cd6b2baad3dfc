//! What is sent and by whom. Pure.

use workload::{Mix, Planned, Schedule};

use super::Tenant;
use super::crowd::Crowd;

/// Requests in order of time, each with its sender.
#[derive(Debug, Clone)]
pub enum Traffic {
    /// Every request comes from one of the tenants by chance.
    Mixed {
        schedule: Box<Schedule>,
        tenants: Mix<Tenant>,
    },
    /// Every group of a crowd is a tenant, the one in the same place; requests of a group without one are not sent.
    Crowd { crowd: Crowd, tenants: Vec<Tenant> },
}

impl Traffic {
    /// How many requests will come, where that is known.
    pub(super) fn expected(&self) -> Option<u64> {
        match self {
            Self::Mixed { schedule, .. } => schedule.expected(),
            Self::Crowd { .. } => None,
        }
    }

    pub(super) fn next(&mut self, seed: u64) -> Option<(Planned, Tenant)> {
        /// Keeps this mix apart from that of the models.
        const TENANT: u64 = 0;
        match self {
            Self::Mixed { schedule, tenants } => {
                let planned = schedule.next()?;
                let tenant = tenants.pick(seed, TENANT, planned.index).clone();
                Some((planned, tenant))
            }
            Self::Crowd { crowd, tenants } => crowd.find_map(|planned| {
                let tenant = tenants.get(planned.tenant as usize)?.clone();
                Some((planned, tenant))
            }),
        }
    }
}
