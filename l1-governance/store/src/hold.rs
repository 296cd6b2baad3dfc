//! Money set aside for one attempt: a token that is spent by being given back.

use std::fmt;
use std::sync::Arc;

use governance_context::AttemptId;
use governance_core::account::UnixMs;
use governance_core::ledger::{Observed, Reason, Reservation, Settlement};
use tokio::sync::mpsc::OwnedPermit;

use crate::writer::{Desk, Operation};

/// A granted reservation. Not `Clone`; consumed by [`Hold::settle`].
///
/// Dropped without a settlement, by a panic or an oversight, it reports that the end is unknown, with what was
/// [noted](Hold::note) so far; the ledger decides what that means.
#[must_use = "a hold that is dropped is never settled"]
pub struct Hold {
    grant: Option<Grant>,
    observed: Option<Observed>,
}

impl Hold {
    /// The attempt.
    pub fn attempt(&self) -> AttemptId {
        self.reservation().attempt
    }

    /// What was reserved.
    pub fn reservation(&self) -> &Reservation {
        &self
            .grant
            .as_ref()
            .expect("a hold has its grant until it is settled")
            .reservation
    }

    /// When the lease is over and the attempt becomes unknown by itself.
    pub fn lease_until(&self) -> UnixMs {
        self.grant
            .as_ref()
            .expect("a hold has its grant until it is settled")
            .lease_until
    }

    /// Keeps what was seen so far, for the case that this hold is dropped.
    pub fn note(&mut self, observed: Observed) {
        self.observed = Some(observed);
    }

    /// Ends the attempt. Cannot fail and does not wait for the disk.
    pub fn settle(mut self, settlement: Settlement) {
        if let Some(grant) = self.grant.take() {
            grant.settle(settlement);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            grant.settle(Settlement::Unknown {
                reason: Reason::Dropped,
                observed: self.observed,
            });
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// A grant, and where its settlement is told.
pub(crate) struct Grant {
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) lease_until: UnixMs,
    pub(crate) desk: Arc<Desk>,
    /// Counts this hold, and keeps the ledger open as long as it is out.
    pub(crate) _place: OwnedPermit<Operation>,
}

impl Grant {
    fn settle(self, settlement: Settlement) {
        self.desk.settle(self.reservation, settlement);
    }
}

/// A grant on its way to the one who asked. Lost on the way, it was never dispatched and is released.
pub(crate) struct Delivery(Option<Grant>);

impl Delivery {
    pub(crate) fn new(grant: Grant) -> Delivery {
        Delivery(Some(grant))
    }

    pub(crate) fn accept(mut self) -> Hold {
        Hold {
            grant: self.0.take(),
            observed: None,
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(grant) = self.0.take() {
            grant.settle(Settlement::Release {
                reason: Reason::NotDispatched,
            });
        }
    }
}
