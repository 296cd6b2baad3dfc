//! The ledger behind its lock: a hold or a settlement is decided by whoever brings it, since handing it to a thread
//! and waiting for the word back costs more than deciding it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use governance_core::account::AccountId;
use governance_core::ledger::{Balance, Reservation, Settlement};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::{Notify, mpsc, oneshot};

use super::Operation;
use super::decider::{Closing, Decider};
use super::disk::Done;
use crate::error::{ReserveError, Unavailable};
use crate::hold::{Delivery, Grant};

/// The answer to a reservation that was granted.
pub(crate) enum Answer {
    Granted(Delivery),
    /// Granted as soon as it is on disk.
    OnceOnDisk(oneshot::Receiver<Result<Delivery, Unavailable>>),
}

/// Where a ledger is asked.
pub(crate) struct Desk {
    /// Locked for a decision of microseconds; `None` once the ledger is closed.
    decider: Mutex<Option<Decider>>,
    /// The thread has to look earlier than it meant to.
    rearm: Notify,
}

/// What the thread does next.
enum Next {
    /// Nothing before this instant, unless somebody comes.
    Look(Instant),
    Over(Option<Closing>),
}

impl Desk {
    pub(super) fn new(decider: Decider) -> Desk {
        Desk {
            decider: Mutex::new(Some(decider)),
            rearm: Notify::new(),
        }
    }

    pub(crate) fn reserve(
        self: &Arc<Desk>,
        reservation: Arc<Reservation>,
        place: OwnedPermit<Operation>,
    ) -> Result<Answer, ReserveError> {
        let grant = |reservation, lease_until| Grant {
            reservation,
            lease_until,
            desk: Arc::clone(self),
            _place: place,
        };
        self.step(|decider| decider.reserve(reservation, grant))
            .unwrap_or_else(|| Err(Unavailable::Closed.into()))
    }

    /// A closed ledger has no one to tell; the attempt becomes unknown when it is opened again.
    pub(crate) fn settle(&self, reservation: Arc<Reservation>, settlement: Settlement) {
        self.step(|decider| decider.settle(reservation, settlement));
    }

    pub(crate) fn balances(&self, account: &AccountId) -> Result<Vec<Balance>, Unavailable> {
        self.step(|decider| decider.balances(account))
            .ok_or(Unavailable::Closed)
    }

    /// Minds the time and what is asked through the inbox, until that is closed or someone asks for the end.
    pub(super) async fn mind(
        self: Arc<Desk>,
        mut inbox: mpsc::Receiver<Operation>,
        mut done: mpsc::Receiver<Done>,
    ) -> Option<Closing> {
        // However this ends, nobody is kept waiting for a ledger that is gone.
        let _closed = CloseAtEnd(&self);
        let mut ended = false;
        self.step(Decider::disown);
        loop {
            let look = match self.next()? {
                Next::Look(at) => at,
                Next::Over(closing) => return closing,
            };
            tokio::select! {
                biased; // a finished write frees the disk for the next one
                Some(finished) = done.recv() => {
                    self.step(|decider| decider.finished(finished));
                }
                operation = inbox.recv(), if !ended => {
                    ended = matches!(operation, None | Some(Operation::Close(_)));
                    self.decide(operation);
                    if ended {
                        self.decide_rest(&mut inbox);
                    }
                }
                () = self.rearm.notified() => {}
                () = tokio::time::sleep_until(look.into()) => {}
            }
        }
    }

    fn decide(&self, operation: Option<Operation>) {
        self.step(|decider| match operation {
            Some(operation) => decider.decide(operation),
            None => decider.end(),
        });
    }

    /// What was sent before the end is still decided; holds that are out become unknown at the next start.
    fn decide_rest(&self, inbox: &mut mpsc::Receiver<Operation>) {
        inbox.close();
        while let Ok(operation) = inbox.try_recv() {
            self.decide(Some(operation));
        }
    }

    /// Does what is due and says what is next. Where that is the end, nothing can be decided after it any more.
    fn next(&self) -> Option<Next> {
        let mut held = self.decider.lock().ok()?;
        let decider = held.as_mut()?;
        decider.catch_up();
        let (news, _) = decider.take_news();
        if !decider.is_over() {
            let look = decider.arm();
            drop(held);
            news.tell();
            return Some(Next::Look(look));
        }
        let decider = held.take()?;
        drop(held);
        news.tell();
        Some(Next::Over(decider.close()))
    }

    /// One step of the ledger; `None` if it is closed. Who has something to hear hears it when it is unlocked again.
    fn step<T>(&self, step: impl FnOnce(&mut Decider) -> T) -> Option<T> {
        let mut held = self.decider.lock().ok()?;
        let decider = held.as_mut()?;
        let result = step(decider);
        let (news, rearm) = decider.take_news();
        drop(held);
        news.tell();
        if rearm {
            self.rearm.notify_one();
        }
        Some(result)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Decider>> {
        self.decider.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CloseAtEnd<'a>(&'a Desk);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        // Dropped after it is unlocked: holds that were on their way come back to the desk.
        let left = self.0.lock().take();
        drop(left);
    }
}
