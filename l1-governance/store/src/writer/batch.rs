//! What goes to the disk together, and who is told when it is there.

use std::sync::Arc;

use governance_context::AttemptId;
use governance_core::ledger::{Effect, Reservation, Settlement};

use crate::error::Unavailable;
use crate::keys::KeyRecord;

/// Told when a batch is on disk, or that it never will be.
pub(super) type Waiter = Box<dyn FnOnce(Result<(), Unavailable>) + Send>;

/// What must be done again when a batch is lost, because somebody was told already or cannot be told.
pub(super) enum Redo {
    /// Granted and answered before it was on disk.
    Granted(Arc<Reservation>),
    /// Settled; a settlement is never refused.
    Settle(Arc<Reservation>, Settlement),
    /// Not granted after all. If the failed write turns out to be on disk, it is released.
    Abandon(AttemptId),
}

/// What the disk thread writes in one transaction.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) effects: Vec<Effect>,
    pub(super) keys: Vec<Arc<KeyRecord>>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.keys.is_empty()
    }
}

/// What the deciding thread keeps of a batch while it is written.
#[derive(Default)]
pub(super) struct Ticket {
    pub(super) waiters: Vec<Waiter>,
    pub(super) redo: Vec<Redo>,
}

/// Who has something to hear once the ledger is unlocked: what they do then may come back to it, such as giving up
/// a hold that nobody waits for any more.
#[derive(Default)]
pub(super) struct News(Vec<(Waiter, Result<(), Unavailable>)>);

impl News {
    pub(super) fn add(&mut self, waiters: Vec<Waiter>, result: &Result<(), Unavailable>) {
        let news = waiters.into_iter().map(|waiter| (waiter, result.clone()));
        self.0.extend(news);
    }

    pub(super) fn tell(self) {
        for (waiter, result) in self.0 {
            waiter(result);
        }
    }
}
