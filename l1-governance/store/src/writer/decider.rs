//! The thread that owns the ledger: it decides operations as they come and keeps one write under way.

mod recovery;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use governance_context::AttemptId;
use governance_core::account::UnixMs;
use governance_core::ledger::{
    AttemptRow, Durability, Effect, Ledger, NoAttempt, Refusal, Reservation, Settled, Settlement,
};
use rusqlite::Connection;
use tokio::sync::mpsc;

use super::batch::{Changes, Redo, Ticket, Waiter};
use super::disk::{Done, Job};
use super::{Durable, Operation, ReserveOperation};
use crate::error::{KeyError, ReserveError, Unavailable};
use crate::hold::{Delivery, Grant};
use crate::keys::{Changing, KeyRing};
use crate::rows;
use crate::sqlite::Shared;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// Clocks may jump, so a deadline is looked at again at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

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
    changes: Changes,
    ticket: Ticket,
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
            changes: Changes::default(),
            ticket: Ticket::default(),
            in_flight: None,
            redo: Vec::new(),
            closing: None,
            ended: false,
        }
    }

    /// Works until the inbox is closed or someone asks for the end.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Operation>,
        mut done: mpsc::Receiver<Done>,
    ) -> Option<Closing> {
        let now = self.now();
        self.ledger.disown(now);
        loop {
            self.hand_over();
            if self.ended
                && self.in_flight.is_none()
                && !matches!(self.health, Health::Recovering { .. })
            {
                return self.close();
            }
            let sleep = self.until_next_timeout();
            tokio::select! {
                biased; // a finished write frees the disk for the next one
                Some(finished) = done.recv() => self.finished(finished),
                operation = inbox.recv(), if !self.ended => match operation {
                    Some(operation) => self.decide_some(operation, &mut inbox),
                    None => self.ended = true,
                },
                () = tokio::time::sleep(sleep) => self.timeout(),
            }
        }
    }

    fn now(&self) -> UnixMs {
        (self.shared.options.clock)()
    }

    fn close(self) -> Option<Closing> {
        let result = match &self.health {
            Health::Good => Ok(()),
            Health::Broken { why, .. } | Health::Recovering { why, .. } => {
                Err(Unavailable::Failed(why.clone()))
            }
        };
        // Dropping `self` closes the job queue, which ends the disk thread.
        self.closing.map(|reply| Closing { reply, result })
    }

    fn decide_some(&mut self, first: Operation, inbox: &mut mpsc::Receiver<Operation>) {
        self.decide(first);
        for _ in 1..self.shared.options.max_batch {
            let Ok(operation) = inbox.try_recv() else {
                break;
            };
            self.decide(operation);
        }
        if self.ended {
            // What was sent before the end is still decided; holds that are out become unknown at the next start.
            inbox.close();
            while let Ok(operation) = inbox.try_recv() {
                self.decide(operation);
            }
        }
        self.collect();
    }

    fn decide(&mut self, operation: Operation) {
        match operation {
            Operation::Reserve(operation) => self.reserve(*operation),
            Operation::Settle {
                reservation,
                settlement,
            } => self.settle(reservation, settlement),
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
            Operation::Balances { account, reply } => {
                drop(reply.send(self.ledger.balances(self.now(), &account)));
            }
            Operation::Attempt { attempt, reply } => drop(reply.send(self.attempt(attempt))),
            Operation::Close(reply) => {
                self.closing = Some(reply);
                self.ended = true;
            }
        }
    }

    fn reserve(&mut self, operation: ReserveOperation) {
        let ReserveOperation {
            reservation,
            permit,
            reply,
            enqueued,
        } = operation;
        // Nobody waits any more: granting would only have to be undone.
        if reply.is_closed() || enqueued.elapsed() > self.shared.options.patience {
            drop(reply.send(Err(Unavailable::Slow.into())));
            return;
        }
        let reserved = match self.try_reserve(&reservation) {
            Ok(reserved) => reserved,
            Err(error) => {
                drop(reply.send(Err(error)));
                return;
            }
        };
        let attempt = reservation.attempt;
        let grant = Grant {
            reservation,
            lease_until: reserved.lease_until,
            permit,
        };
        match reserved.durability {
            Durability::Batched => {
                self.ticket
                    .redo
                    .push(Redo::Granted(grant.reservation.clone()));
                drop(reply.send(Ok(Delivery::new(grant))));
            }
            Durability::BeforeAnswer => {
                self.ticket.redo.push(Redo::Abandon(attempt));
                self.on_disk(Box::new(move |written| {
                    drop(
                        reply.send(
                            written
                                .map(|()| Delivery::new(grant))
                                .map_err(ReserveError::from),
                        ),
                    );
                }));
            }
        }
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

    fn settle(&mut self, reservation: Arc<Reservation>, settlement: Settlement) {
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
    fn durably<T: 'static>(
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
        T: AsRef<[Arc<crate::keys::KeyRecord>]>,
    {
        let mut ring = KeyRing::clone(&self.shared.keys.load());
        let written = make(&mut Changing {
            ring: &mut ring,
            ledger: &mut self.ledger,
            pepper: &self.shared.options.pepper,
            now: (self.shared.options.clock)(),
        })?;
        self.changes.keys.extend(written.as_ref().iter().cloned());
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

    fn until_next_timeout(&self) -> Duration {
        if let Health::Broken { retry, .. } = &self.health {
            return retry.saturating_duration_since(Instant::now());
        }
        let due = self.ledger.poll_timeout();
        let wait = due.map_or(LONGEST_SLEEP, |at| {
            Duration::from_millis(at.since(self.now()))
        });
        wait.min(LONGEST_SLEEP)
    }

    fn timeout(&mut self) {
        match &self.health {
            Health::Good => {
                let now = self.now();
                self.ledger.handle_timeout(now);
                self.collect();
            }
            Health::Broken { why, retry, pause } if *retry <= Instant::now() => {
                let (why, pause) = (why.clone(), *pause);
                self.send(Job::Recover);
                self.health = Health::Recovering { why, pause };
            }
            Health::Broken { .. } | Health::Recovering { .. } => {}
        }
    }

    /// Moves what the ledger changed into the next batch.
    fn collect(&mut self) {
        for effect in self.ledger.drain_effects() {
            if let Effect::Alarm(attempt) = &effect {
                self.shared.alarms.fetch_add(1, Ordering::Relaxed);
                tracing::error!(attempt = %attempt.id, account = %attempt.account,
                    "a tier D charge is above the largest possible one; it is recorded whole");
            }
            self.changes.effects.push(effect);
        }
    }

    /// Gives the next batch to the disk if it is free.
    fn hand_over(&mut self) {
        if self.in_flight.is_some() || !matches!(self.health, Health::Good) {
            return;
        }
        self.collect();
        let ticket = std::mem::take(&mut self.ticket);
        if self.changes.is_empty() {
            ticket.tell(&Ok(()));
            return;
        }
        let changes = std::mem::take(&mut self.changes);
        self.in_flight = Some(InFlight {
            ticket,
            since: Instant::now(),
        });
        self.send(Job::Write(changes));
    }

    fn send(&mut self, job: Job) {
        // One job at a time, so there is always room; a dead disk thread is seen as a failed write.
        if self.disk.try_send(job).is_err() {
            self.fail("the disk thread is gone".to_owned(), FIRST_RETRY);
        }
    }
}
