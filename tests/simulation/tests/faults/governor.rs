//! Governance as a process: the production ledger, limits and prices, and a disk that is slow, fails and forgets.
//! It decides in memory and keeps one write under way, as the store does; a tier D hold is answered once it is on disk.

use std::sync::Arc;

use governance_context::AttemptId;
use governance_core::account::{AccountId, Kind, PolicySpec, UnixMs};
use governance_core::ledger::{
    Config, Durability, Effect, Ledger, Refusal, Reservation, Settlement, State,
};
use governance_core::limits::Table;

use crate::chance::Chance;

mod recovery;
pub(crate) mod rows;

use rows::Rows;

const MS: u64 = 1_000_000;
/// How long a write may be under way, and an answer may take.
pub(crate) const PATIENCE: u64 = 50 * MS;
pub(crate) const UNKNOWN_AFTER_MS: u64 = 8_000;
/// Few, so that forgetting happens.
const REMEMBER: usize = 200;
const LIMITS: usize = 1_000;
const PAUSE: u64 = 50 * MS;

/// How the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Well,
    Slow,
    /// Nothing ends until it is well.
    Frozen,
    /// Half of the writes fail, and some of those are on disk all the same.
    Fails,
}

/// Why there is no hold.
#[derive(Debug)]
pub(crate) enum NoHold {
    Refused(Refusal),
    /// For want of a disk.
    Unavailable,
}

/// When a hold may be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Usable {
    Now,
    OnceWritten,
}

/// What a moment brought.
pub(crate) enum Moment {
    /// Those who wait for the disk are told.
    Written(Vec<usize>),
    /// What was decided since the last good write is gone, and so are those who wait.
    Lost(Vec<usize>),
    /// The ledger is read back, and what had been answered is done again.
    Recovered,
    /// Leases may have ended.
    Time,
    Nothing,
}

enum Redo {
    Granted(Arc<Reservation>),
    Settle(Arc<Reservation>, Settlement),
    Abandon(AttemptId),
}

/// What is decided and not handed to the disk, or on its way there.
#[derive(Default)]
struct Batch {
    effects: Vec<Effect>,
    waiters: Vec<usize>,
    redo: Vec<Redo>,
}

struct Write {
    batch: Batch,
    since: u64,
    ends: u64,
    is_told: bool,
    is_kept: bool,
}

enum Health {
    Good,
    Broken { until: u64 },
    Recovering { ends: u64 },
}

pub(crate) struct Governor {
    pub(crate) ledger: Ledger,
    pub(crate) table: Table,
    pub(crate) disk: Disk,
    /// All that was decided.
    pub(crate) view: Rows,
    /// What a crash leaves.
    pub(crate) kept: Rows,
    batch: Batch,
    write: Option<Write>,
    redo: Vec<Redo>,
    health: Health,
    /// Number of the batch that is being filled, and of the newest one on disk.
    pub(crate) filling: u64,
    pub(crate) on_disk: u64,
    chance: Chance,
}

pub(crate) fn unix(now: u64) -> UnixMs {
    UnixMs(now / MS)
}

fn config() -> Config {
    Config {
        unknown_after_ms: UNKNOWN_AFTER_MS,
        remember: REMEMBER,
        ..Config::default()
    }
}

impl Governor {
    pub(crate) fn new(chance: Chance) -> Self {
        Self {
            ledger: Ledger::new(config()),
            table: Table::new(LIMITS),
            disk: Disk::Well,
            view: Rows::default(),
            kept: Rows::default(),
            batch: Batch::default(),
            write: None,
            redo: Vec::new(),
            health: Health::Good,
            filling: 1,
            on_disk: 0,
            chance,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        matches!(self.health, Health::Good)
    }

    /// Nothing is under way and nothing is open.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_written = self.write.is_none() && self.batch.effects.is_empty();
        self.is_good() && is_written && self.ledger.open_attempts() == 0
    }

    /// Sets money aside, or says why not. Who has to wait is told later, by the number `waiter`.
    pub(crate) fn reserve(
        &mut self,
        now: u64,
        reservation: &Arc<Reservation>,
        waiter: usize,
    ) -> Result<Usable, NoHold> {
        let is_frozen = |write: &Write| now > write.since + PATIENCE;
        if !self.is_good() || self.write.as_ref().is_some_and(is_frozen) {
            return Err(NoHold::Unavailable);
        }
        if self.ledger.may_be_forgotten(&reservation.attempt)
            && let Some(row) = self.kept.attempts.get(&reservation.attempt)
        {
            return Err(NoHold::Refused(Refusal::Used(row.state)));
        }
        let reserved = self.ledger.reserve(unix(now), reservation);
        self.collect();
        let reserved = reserved.map_err(NoHold::Refused)?;
        match reserved.durability {
            Durability::Batched => {
                let granted = Redo::Granted(Arc::clone(reservation));
                self.batch.redo.push(granted);
                Ok(Usable::Now)
            }
            Durability::BeforeAnswer => {
                let abandon = Redo::Abandon(reservation.attempt);
                self.batch.redo.push(abandon);
                self.batch.waiters.push(waiter);
                Ok(Usable::OnceWritten)
            }
        }
    }

    /// Ends an attempt. Never refused.
    pub(crate) fn settle(
        &mut self,
        now: u64,
        reservation: &Arc<Reservation>,
        settlement: Settlement,
    ) {
        let redo = Redo::Settle(Arc::clone(reservation), settlement);
        if !self.is_good() {
            self.redo.push(redo);
            return;
        }
        self.settle_known(now, reservation, &settlement);
        self.batch.redo.push(redo);
        self.collect();
    }

    fn settle_known(&mut self, now: u64, reservation: &Reservation, settlement: &Settlement) {
        let (now, attempt) = (unix(now), reservation.attempt);
        if self.ledger.settle(now, attempt, settlement).is_ok()
            || self.kept.attempts.contains_key(&attempt)
        {
            return;
        }
        self.ledger.reinstate(now, reservation);
        self.ledger
            .settle(now, attempt, settlement)
            .expect("what was reinstated is known");
    }

    /// Late word of an attempt, by whoever knows. Says where the attempt stands then.
    pub(crate) fn hear(
        &mut self,
        now: u64,
        attempt: AttemptId,
        settlement: &Settlement,
    ) -> Option<State> {
        if !self.is_good() {
            return None;
        }
        let settled = self.ledger.settle(unix(now), attempt, settlement);
        self.collect();
        let row = || self.kept.attempts.get(&attempt).map(|row| row.settled());
        settled.ok().or_else(row).map(|settled| settled.state)
    }

    /// An account gets these limits in place of those it had; whether there was anybody to tell.
    pub(crate) fn declare(
        &mut self,
        now: u64,
        account: &AccountId,
        kind: Kind,
        policies: &[PolicySpec],
    ) -> bool {
        if !self.is_good() {
            return false;
        }
        self.ledger
            .declare(unix(now), account, kind, policies)
            .expect("the limits fit");
        self.collect();
        true
    }

    /// An account admits nothing from here on; whether there was anybody to tell.
    pub(crate) fn end_account(&mut self, now: u64, account: &AccountId) -> bool {
        if !self.is_good() {
            return false;
        }
        let ended = self.ledger.end_account(unix(now), account);
        ended.expect("the account is known");
        self.collect();
        true
    }

    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let write = self.write.as_ref().map(|write| write.ends);
        let own = match self.health {
            Health::Good => self.ledger.poll_timeout().map(|at| at.0 * MS),
            Health::Broken { until } => Some(until),
            Health::Recovering { ends } => Some(ends),
        };
        write
            .into_iter()
            .chain(own)
            .filter(|at| *at < u64::MAX)
            .min()
    }

    pub(crate) fn handle_timeout(&mut self, now: u64) -> Moment {
        if self.write.as_ref().is_some_and(|write| write.ends <= now) {
            return self.write_ends(now);
        }
        match self.health {
            Health::Good => {
                self.ledger.handle_timeout(unix(now));
                self.collect();
                return Moment::Time;
            }
            Health::Broken { until } if until <= now => {
                let ends = self.ends(now);
                self.health = Health::Recovering { ends };
            }
            Health::Recovering { ends } if ends <= now => return self.recover(now),
            Health::Broken { .. } | Health::Recovering { .. } => {}
        }
        Moment::Nothing
    }

    /// The next write begins, if something is to be written and the disk is free.
    pub(crate) fn hand_over(&mut self, now: u64) {
        if self.write.is_some() || !self.is_good() || self.batch.effects.is_empty() {
            return;
        }
        let fails = self.disk == Disk::Fails && self.chance.one_in(2);
        self.write = Some(Write {
            batch: std::mem::take(&mut self.batch),
            since: now,
            ends: self.ends(now),
            is_told: !fails,
            is_kept: !fails || self.chance.one_in(3),
        });
        self.filling += 1;
    }

    fn ends(&mut self, now: u64) -> u64 {
        now + match self.disk {
            Disk::Well | Disk::Fails => 100_000 + self.chance.below(3 * MS),
            Disk::Slow => MS + self.chance.below(150 * MS),
            Disk::Frozen => return u64::MAX,
        }
    }

    /// A frozen disk goes on.
    pub(crate) fn thaw(&mut self, now: u64) {
        self.disk = Disk::Well;
        let ends = now + self.chance.below(MS);
        if let Some(write) = &mut self.write {
            write.ends = write.ends.min(ends);
        }
        if let Health::Recovering { ends: then } = &mut self.health {
            *then = (*then).min(ends);
        }
    }

    fn write_ends(&mut self, now: u64) -> Moment {
        let Some(write) = self.write.take() else {
            return Moment::Nothing;
        };
        if write.is_kept {
            self.keep(&write.batch);
        }
        let mut waiters = write.batch.waiters;
        if write.is_told {
            return Moment::Written(waiters);
        }
        let lost = std::mem::take(&mut self.batch);
        waiters.extend(lost.waiters);
        self.redo.extend(write.batch.redo);
        self.redo.extend(lost.redo);
        self.health = Health::Broken { until: now + PAUSE };
        Moment::Lost(waiters)
    }

    /// The process is ready once its accounts are on disk.
    pub(crate) fn begin(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.filling += 1;
        self.keep(&batch);
    }

    fn keep(&mut self, batch: &Batch) {
        batch
            .effects
            .iter()
            .for_each(|effect| self.kept.apply(effect));
        self.on_disk = self.filling - 1;
    }

    fn collect(&mut self) {
        for effect in self.ledger.drain_effects() {
            self.view.apply(&effect);
            self.batch.effects.push(effect);
        }
    }
}
