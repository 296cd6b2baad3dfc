//! The ledger and everything around it: decides operations as they come and keeps one write under way.

mod recovery;
mod writes;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use governance_context::AttemptId;
use governance_core::account::{AccountId, UnixMs};
use governance_core::ledger::{
    AttemptRow, Balance, Durability, Ledger, NoAttempt, Refusal, Reservation, Settled, Settlement,
};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::batch::{News, Redo, Ticket, Waiter};
use super::desk::Answer;
use super::disk::Job;
use super::{Durable, Operation};
use crate::error::{KeyError, ReserveError, Unavailable};
use crate::hold::{Delivery, Grant};
use crate::keys::{Changing, KeyRecord, KeyRing};
use crate::rows;
use crate::sqlite::Shared;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Whether decisions can be made.
enum Health {
    Good,
    /// A write failed. What was decided since the last good one is gone; see [`Redo`].
    Broken {
        why: String,
        retry: Instant,
        pause: Duration,
    },
    /// The disk thread is reading everything back.
    Recovering {
        why: String,
        pause: Duration,
    },
}

/// A write under way.
struct InFlight {
    ticket: Ticket,
    since: Instant,
}

/// Who asked for the end, and how it went.
pub(super) struct Closing {
    reply: Durable<()>,
    result: Result<(), Unavailable>,
}

impl Closing {
    pub(super) fn tell(self) {
        // Nobody waiting is fine: the ledger is closed all the same.
        drop(self.reply.send(self.result));
    }
}

pub(super) struct Decider {
    ledger: Ledger,
    reader: Connection,
    shared: Arc<Shared>,
    disk: SyncSender<Job>,
    health: Health,
    /// Keys to write; what the ledger has to write waits in it.
    keys: Vec<Arc<KeyRecord>>,
    ticket: Ticket,
    /// Since when there is something to write.
    unwritten: Option<Instant>,
    news: News,
    /// When the thread looks next.
    armed: Option<Instant>,
    in_flight: Option<InFlight>,
    redo: Vec<Redo>,
    closing: Option<Durable<()>>,
    ended: bool,
}

impl Decider {
    pub(super) fn new(
        ledger: Ledger,
        reader: Connection,
        shared: Arc<Shared>,
        disk: SyncSender<Job>,
    ) -> Decider {
        Decider {
            ledger,
            reader,
            shared,
            disk,
            health: Health::Good,
            keys: Vec::new(),
            ticket: Ticket::default(),
            unwritten: None,
            news: News::default(),
            armed: None,
            in_flight: None,
            redo: Vec::new(),
            closing: None,
            ended: false,
        }
    }

    /// What a process before this one left running, nobody will settle.
    pub(super) fn disown(&mut self) {
        let now = self.now();
        self.ledger.disown(now);
    }

    /// Nothing more will be asked.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether it has ended and everything is written that can be.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.in_flight.is_none() && !matches!(self.health, Health::Recovering { .. })
    }

    fn now(&self) -> UnixMs {
        (self.shared.options.clock)()
    }

    pub(super) fn close(self) -> Option<Closing> {
        let result = match &self.health {
            Health::Good => Ok(()),
            Health::Broken { why, .. } | Health::Recovering { why, .. } => {
                Err(Unavailable::Failed(why.clone()))
            }
        };
        // Dropping `self` closes the job queue, which ends the disk thread.
        self.closing.map(|reply| Closing { reply, result })
    }

    pub(super) fn decide(&mut self, operation: Operation) {
        match operation {
            Operation::SettleById {
                attempt,
                settlement,
                reply,
            } => self.durably(reply, |decider| decider.settle_by_id(attempt, &settlement)),
            Operation::Declare { accounts, reply } => self.durably(reply, |decider| {
                let now = decider.now();
                Ok(accounts.iter().try_for_each(|declared| {
                    decider.ledger.declare(
                        now,
                        &declared.account,
                        declared.kind,
                        &declared.policies,
                    )
                }))
            }),
            Operation::EndAccount { account, reply } => self.durably(reply, |decider| {
                let now = decider.now();
                let ended = decider.ledger.end_account(now, &account);
                if ended.is_ok() {
                    decider
                        .change_keys(|changing| Ok::<_, KeyError>(changing.end_below(&account)))
                        .ok();
                }
                Ok(ended)
            }),
            Operation::Keys { by, change, reply } => {
                let result = match self.broken() {
                    Some(why) => Err(why.into()),
                    None => self.change_keys(|changing| changing.make(by, *change)),
                };
                self.on_disk(Box::new(move |written| {
                    let result = match written {
                        Ok(()) => result,
                        Err(why) => Err(why.into()),
                    };
                    drop(reply.send(result));
                }));
            }
            Operation::Flush(reply) => self.durably(reply, |_| Ok(())),
            Operation::Attempt { attempt, reply } => drop(reply.send(self.attempt(attempt))),
            Operation::Close(reply) => {
                self.closing = Some(reply);
                self.ended = true;
            }
        }
    }

    pub(super) fn reserve(
        &mut self,
        reservation: Arc<Reservation>,
        grant: impl FnOnce(Arc<Reservation>, UnixMs) -> Grant,
    ) -> Result<Answer, ReserveError> {
        let reserved = self.try_reserve(&reservation)?;
        match reserved.durability {
            Durability::Batched => {
                let granted = Redo::Granted(Arc::clone(&reservation));
                self.ticket.redo.push(granted);
                let grant = grant(reservation, reserved.lease_until);
                Ok(Answer::Granted(Delivery::new(grant)))
            }
            Durability::BeforeAnswer => {
                self.ticket.redo.push(Redo::Abandon(reservation.attempt));
                let grant = grant(reservation, reserved.lease_until);
                let (reply, on_disk) = oneshot::channel();
                self.on_disk(Box::new(move |written| {
                    drop(reply.send(written.map(|()| Delivery::new(grant))));
                }));
                Ok(Answer::OnceOnDisk(on_disk))
            }
        }
    }

    pub(super) fn balances(&self, account: &AccountId) -> Vec<Balance> {
        self.ledger.balances(self.now(), account)
    }

    fn try_reserve(
        &mut self,
        reservation: &Reservation,
    ) -> Result<governance_core::ledger::Reserved, ReserveError> {
        if let Some(why) = self.broken() {
            return Err(why.into());
        }
        if self
            .in_flight
            .as_ref()
            .is_some_and(|write| write.since.elapsed() > self.shared.options.patience)
        {
            return Err(Unavailable::Frozen.into());
        }
        if self.ledger.may_be_forgotten(&reservation.attempt) {
            let row = rows::attempt(&self.reader, reservation.attempt);
            if let Some(row) = row.map_err(|error| Unavailable::Failed(error.to_string()))? {
                return Err(Refusal::Used(row.state).into());
            }
        }
        Ok(self.ledger.reserve(self.now(), reservation)?)
    }

    pub(super) fn settle(&mut self, reservation: Arc<Reservation>, settlement: Settlement) {
        if self.broken().is_some() {
            self.redo.push(Redo::Settle(reservation, settlement));
            return;
        }
        let now = self.now();
        if self
            .ledger
            .settle(now, reservation.attempt, &settlement)
            .is_err()
        {
            self.settle_lost(&reservation, &settlement);
        }
        self.ticket.redo.push(Redo::Settle(reservation, settlement));
    }

    fn settle_by_id(
        &mut self,
        attempt: AttemptId,
        settlement: &Settlement,
    ) -> Result<Result<Settled, NoAttempt>, Unavailable> {
        let now = self.now();
        match self.ledger.settle(now, attempt, settlement) {
            Ok(settled) => Ok(Ok(settled)),
            Err(none) => {
                let row = rows::attempt(&self.reader, attempt);
                let row = row.map_err(|error| Unavailable::Failed(error.to_string()))?;
                Ok(row.map(|row| row.settled()).ok_or(none))
            }
        }
    }

    fn attempt(&self, attempt: AttemptId) -> Option<AttemptRow> {
        let known = self.ledger.attempt(&attempt).cloned();
        known.or_else(|| rows::attempt(&self.reader, attempt).ok().flatten())
    }

    /// Decides at once and answers once the decision is on disk.
    fn durably<T: Send + 'static>(
        &mut self,
        reply: Durable<T>,
        decide: impl FnOnce(&mut Decider) -> Result<T, Unavailable>,
    ) {
        let decided = match self.broken() {
            Some(why) => Err(why),
            None => decide(self),
        };
        match decided {
            Ok(answer) => self.on_disk(Box::new(move |written| {
                drop(reply.send(written.map(|()| answer)));
            })),
            Err(why) => drop(reply.send(Err(why))),
        }
    }

    fn on_disk(&mut self, waiter: Waiter) {
        self.ticket.waiters.push(waiter);
    }

    fn change_keys<T, E>(
        &mut self,
        make: impl FnOnce(&mut Changing<'_>) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: AsRef<[Arc<KeyRecord>]>,
    {
        let mut ring = KeyRing::clone(&self.shared.keys.load());
        let written = make(&mut Changing {
            ring: &mut ring,
            ledger: &mut self.ledger,
            pepper: &self.shared.options.pepper,
            now: (self.shared.options.clock)(),
        })?;
        self.keys.extend(written.as_ref().iter().cloned());
        // In force at once: a revocation does not wait for the disk.
        self.shared.keys.store(Arc::new(ring));
        Ok(written)
    }

    fn broken(&self) -> Option<Unavailable> {
        match &self.health {
            Health::Good => None,
            Health::Broken { why, .. } | Health::Recovering { why, .. } => {
                Some(Unavailable::Failed(why.clone()))
            }
        }
    }
}
