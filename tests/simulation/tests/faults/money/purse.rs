//! The money of one request.

use std::sync::Arc;

use governance_context::{AttemptId, MicroWtu, Work};
use governance_core::account::{AccountId, Tier, Unit};
use governance_core::ledger::{Amounts, Basis, Observed, Reservation, Settlement, Shortage};
use governance_core::limits::Admitted;
use governance_core::price::{Quote, Tokens};

use crate::ending::Seen;

/// What an engine tells of the tokens it counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reports {
    /// With every piece of the answer.
    Running,
    /// At its end.
    Last,
    Never,
}

/// How much a request may turn out to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) most: u64,
    pub(crate) estimated: u64,
    pub(crate) bound: u64,
}

/// How a request ended for governance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InL1 {
    TooFast,
    NoQuota,
    Unavailable,
    /// Its client left before it had a hold.
    Left,
    Settled,
    /// The process died.
    Died,
}

/// How a request ended for its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InL2 {
    Refused,
    Completed,
    Failed,
    Left,
    Died,
}

/// The process that reserved for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Lives,
    /// It died after the end was on disk, if there was one.
    Died,
    /// It died before.
    DiedEarly,
}

/// The money of one request.
pub(crate) struct Purse {
    pub(crate) key: AccountId,
    pub(crate) size: Size,
    pub(crate) reports: Reports,
    pub(crate) asked: Option<(Arc<Reservation>, Quote)>,
    pub(super) admitted: Option<Admitted>,
    /// The hold was handed out.
    pub(crate) is_granted: bool,
    pub(crate) settled: Option<Settlement>,
    pub(crate) owner: Owner,
    pub(crate) in_l1: Option<InL1>,
    pub(crate) in_l2: Option<InL2>,
    /// A scheduler was asked.
    pub(crate) is_handed: bool,
    /// What earlier attempts at engines have certainly or perhaps left, and what may be said of the one under way too.
    pub(crate) work: Work,
    pub(crate) noted: Work,
    /// Engines that took it.
    pub(crate) runs: u32,
    pub(crate) cached: u64,
    pub(crate) emitted: u64,
}

impl Purse {
    pub(crate) fn new(key: AccountId, size: Size, reports: Reports) -> Self {
        Self {
            key,
            size,
            reports,
            asked: None,
            admitted: None,
            is_granted: false,
            settled: None,
            owner: Owner::Lives,
            in_l1: None,
            in_l2: None,
            is_handed: false,
            work: Work::None,
            noted: Work::None,
            runs: 0,
            cached: 0,
            emitted: 0,
        }
    }

    pub(crate) fn attempt(&self) -> Option<AttemptId> {
        self.asked
            .as_ref()
            .map(|(reservation, _)| reservation.attempt)
    }

    pub(crate) fn has_admission(&self) -> bool {
        self.admitted.is_some()
    }

    pub(super) fn largest(&self, quote: &Quote, bound: u64) -> Amounts {
        Amounts {
            wtu: quote.largest(self.size.most, bound, 1),
            tokens: self.size.most + bound,
        }
    }

    pub(super) fn estimate(&self, quote: &Quote) -> Amounts {
        Amounts {
            wtu: quote.estimate(self.size.estimated, self.size.bound),
            tokens: self.size.estimated + self.size.bound,
        }
    }

    /// Lowers the bound to what a hard cap has left; whether that leaves any output.
    pub(super) fn lower(&mut self, shortage: &Shortage, quote: &Quote) -> bool {
        if shortage.tier != Tier::D {
            return false;
        }
        let affordable = match shortage.unit {
            Unit::MicroWtu => {
                let budget = MicroWtu(shortage.available);
                quote
                    .affordable_output(self.size.most, 1, budget)
                    .unwrap_or(0)
            }
            Unit::Tokens => shortage.available.saturating_sub(self.size.most),
        };
        let lowers = affordable > 0 && affordable < self.size.bound;
        if lowers {
            self.size.bound = affordable;
        }
        lowers
    }

    fn priced(&self, prompt: u64, cached: Option<u64>, output: u64, basis: Basis) -> Observed {
        let usage = Tokens::from_usage(prompt, cached, output);
        let (_, quote) = self.asked.as_ref().expect("what is priced was reserved");
        Observed {
            usage,
            charge: quote.charge(&usage),
            basis,
        }
    }

    /// What its engines really did for it, as far as it is known anywhere.
    pub(crate) fn produced(&self, prompt: u32) -> Observed {
        let (cached, output) = (Some(self.cached), self.emitted);
        self.priced(u64::from(prompt), cached, output, Basis::Measured)
    }

    /// What has passed by: what the engine reports, or what was counted.
    pub(super) fn seen(&self, prompt: u64, is_complete: bool) -> Seen {
        let measured = || self.priced(prompt, Some(self.cached), self.emitted, Basis::Measured);
        let estimate = self.priced(self.size.estimated, None, self.emitted, Basis::Estimated);
        let observed = match self.reports {
            Reports::Running if self.emitted > 0 => Some(measured()),
            Reports::Last if is_complete => Some(measured()),
            Reports::Last | Reports::Never if self.emitted > 0 => Some(estimate),
            Reports::Running | Reports::Last | Reports::Never => None,
        };
        Seen {
            observed,
            fallback: estimate,
        }
    }
}
