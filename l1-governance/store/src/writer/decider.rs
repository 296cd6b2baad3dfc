//! The ledger and everything around it: decides operations as they come and keeps one write under way.

mod recovery;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use governance_context::AttemptId;
use governance_core::account::{AccountId, UnixMs};
use governance_core::ledger::{
    AttemptRow, Balance, Durability, Effect, Ledger, NoAttempt, Refusal, Reservation, Settled,
    Settlement,
};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::batch::{Changes, News, Redo, Ticket, Waiter};
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

    /// When there is something to do again without anybody asking.
    fn due(&self) -> Instant {
        let now = Instant::now();
        if let Health::Broken { retry, .. } = &self.health {
            return *retry;
        }
        let timeout = self.ledger.poll_timeout();
        let wait = timeout.map_or(LONGEST_SLEEP, |at| {
            Duration::from_millis(at.since(self.now()))
        });
        let timeout = now + wait.min(LONGEST_SLEEP);
        self.write_due().map_or(timeout, |write| write.min(timeout))
    }

    /// When what is to be written goes to the disk: at once if somebody waits for it.
    fn write_due(&self) -> Option<Instant> {
        let is_free = self.in_flight.is_none() && matches!(self.health, Health::Good);
        let since = self.unwritten.filter(|_| is_free)?;
        if self.ended || !self.ticket.waiters.is_empty() {
            return Some(since);
        }
        Some(since + self.shared.options.linger)
    }

    /// Says when the thread has to look again, and takes note that it will.
    pub(super) fn arm(&mut self) -> Instant {
        let due = self.due();
        self.armed = Some(due);
        due
    }

    /// What others are to hear of a step, and whether the thread has to look earlier than it means to.
    pub(super) fn take_news(&mut self) -> (News, bool) {
        let has_unwritten =
            self.ledger.has_effects() || !self.keys.is_empty() || !self.ticket.waiters.is_empty();
        if !has_unwritten {
            self.unwritten = None;
        } else if self.unwritten.is_none() {
            self.unwritten = Some(Instant::now());
        }
        let earlier = self
            .armed
            .filter(|armed| self.write_due().is_some_and(|due| due < *armed));
        if earlier.is_some() {
            self.armed = None;
        }
        (std::mem::take(&mut self.news), earlier.is_some())
    }

    /// Does what is due: time that has passed, a look whether writing works again, the next write.
    pub(super) fn catch_up(&mut self) {
        self.armed = None;
        match &self.health {
            Health::Good => {
                let now = self.now();
                self.ledger.handle_timeout(now);
                self.hand_over();
            }
            Health::Broken { why, retry, pause } if *retry <= Instant::now() => {
                let (why, pause) = (why.clone(), *pause);
                self.send(Job::Recover);
                self.health = Health::Recovering { why, pause };
            }
            Health::Broken { .. } | Health::Recovering { .. } => {}
        }
    }

    /// Takes what the ledger changed.
    fn collect(&mut self) -> Vec<Effect> {
        let effects: Vec<Effect> = self.ledger.drain_effects().collect();
        for effect in &effects {
            if let Effect::Alarm(attempt) = effect {
                self.shared.alarms.fetch_add(1, Ordering::Relaxed);
                tracing::error!(attempt = %attempt.id, account = %attempt.account,
                    "a tier D charge is above the largest possible one; it is recorded whole");
            }
        }
        effects
    }

    /// Gives the next batch to the disk if it is free and the batch is due.
    fn hand_over(&mut self) {
        let is_due = self.write_due().is_some_and(|due| due <= Instant::now());
        if !is_due {
            return;
        }
        self.unwritten = None;
        let ticket = std::mem::take(&mut self.ticket);
        let changes = Changes {
            effects: self.collect(),
            keys: std::mem::take(&mut self.keys),
        };
        if changes.is_empty() {
            self.news.add(ticket.waiters, &Ok(()));
            return;
        }
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
