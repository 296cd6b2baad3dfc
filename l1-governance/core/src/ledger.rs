//! The ledger as a state machine: accounts × windows, attempts, and an append-only chain of entries.
//!
//! It decides and remembers; making it durable is the store's work. Every step leaves [`Effect`]s behind, which
//! the store writes in one transaction. Replaying the entries alone gives the same windows again.
//!
//! Invariants are numbered as in `audit`, which checks them all.

mod audit;
mod declare;
mod entry;
mod plan;
mod reservation;
mod row;
mod settle;
mod settlement;
mod snapshot;
mod standing;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use governance_context::AttemptId;
use rustc_hash::FxHashMap;

use crate::account::{AccountId, PolicyName, Span, Tier, Unit, UnixMs};

pub use audit::{Auditor, Invariant, Report, UnknownGauge, Violation};
pub use declare::DeclareError;
pub use entry::{Entry, EntryKind, Hash};
pub use reservation::{Amounts, Durability, Fits, Refusal, Reservation, Reserved, Shortage};
pub use row::{
    AccountNo, AccountRow, AttemptRow, Effect, LegRow, PolicyNo, PolicyRow, State, Status,
    WindowRow,
};
pub use settlement::{Basis, NoAttempt, Observed, Reason, Settled, Settlement};
pub use snapshot::{Inconsistent, Snapshot};

use entry::Chain;

/// The most one attempt may hold, a billion WTU: more is refused. A charge above it is taken as this.
pub const MAX_AMOUNT: u64 = 1 << 50;

/// Settings of a ledger.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long an attempt may stay unknown before its tier's rule resolves it.
    pub unknown_after_ms: u64,
    /// How many ended attempts are remembered, so that repeats get the first answer without a look-up.
    pub remember: usize,
    /// The name of this process in the attempts it owns.
    pub owner: Arc<str>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            unknown_after_ms: 15 * 60 * 1000,
            remember: 16_384,
            owner: "headpond".into(),
        }
    }
}

/// Where an account stands under one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balance {
    /// Whose.
    pub account: AccountId,
    /// Under which policy.
    pub policy: PolicyName,
    /// Its promise.
    pub tier: Tier,
    /// What the figures count.
    pub unit: Unit,
    /// The window.
    pub window: Span,
    /// What the window grants; `None` when it only counts.
    pub limit: Option<u64>,
    /// Used up.
    pub used: u64,
    /// Set aside for running attempts.
    pub held: u64,
    /// Owed from overruns.
    pub debt: u64,
    /// `limit - used - held - debt`, negative when overrun.
    pub available: i64,
}

#[derive(Debug)]
struct Account {
    row: AccountRow,
    policies: Vec<PolicyNo>,
}

#[derive(Debug)]
struct Policy {
    row: PolicyRow,
    /// Overflow target, resolved.
    overflow: Option<PolicyNo>,
    /// Whether another policy overflows into this one; then it is no limit of its own.
    is_target: bool,
    /// By start. Only those that still matter: the latest, and earlier ones with open legs or debt to carry.
    windows: BTreeMap<UnixMs, Counters>,
}

/// The counters of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counters {
    end: UnixMs,
    granted: u64,
    held: u64,
    used: u64,
    debt: u64,
    version: u64,
    open_legs: u32,
}

#[derive(Debug)]
struct Attempt {
    row: AttemptRow,
    legs: Vec<LegRow>,
}

/// The ledger. One owner; see the module.
#[derive(Debug)]
pub struct Ledger {
    config: Config,
    now: UnixMs,
    chain: Chain,
    accounts: Vec<Account>,
    index: FxHashMap<AccountId, AccountNo>,
    policies: Vec<Policy>,
    attempts: FxHashMap<AttemptId, Attempt>,
    /// Ended attempts in the order they ended; the oldest are forgotten first.
    ended: VecDeque<AttemptId>,
    refusals: FxHashMap<AttemptId, Refusal>,
    /// The largest id that is in the database and not in memory; ids grow with time, so what is above is new.
    horizon: Option<AttemptId>,
    due: BTreeSet<(UnixMs, AttemptId)>,
    effects: Vec<Effect>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(config: Config) -> Ledger {
        Ledger {
            config,
            now: UnixMs(0),
            chain: Chain::default(),
            accounts: Vec::new(),
            index: FxHashMap::default(),
            policies: Vec::new(),
            attempts: FxHashMap::default(),
            ended: VecDeque::new(),
            refusals: FxHashMap::default(),
            horizon: None,
            due: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    /// Sets the amount of every account of the path aside, or of none.
    pub fn reserve(&mut self, now: UnixMs, reservation: &Reservation) -> Result<Reserved, Refusal> {
        self.advance(now);
        if let Some(refusal) = self.refusals.get(&reservation.attempt) {
            return Err(refusal.clone());
        }
        if let Some(attempt) = self.attempts.get(&reservation.attempt) {
            return Err(Refusal::Used(attempt.row.state));
        }
        match self.plan(reservation) {
            Ok(legs) => Ok(self.hold(reservation, &legs)),
            Err(refusal) => {
                self.burn(reservation, &refusal);
                Err(refusal)
            }
        }
    }

    /// Holds again what was granted before and lost with a failed transaction, whether or not there is room:
    /// the attempt is running. Does nothing when the attempt is known.
    pub fn reinstate(&mut self, now: UnixMs, reservation: &Reservation) {
        self.advance(now);
        if !self.attempts.contains_key(&reservation.attempt) {
            let legs = self.forced_plan(reservation);
            self.hold(reservation, &legs);
        }
    }

    /// Ends an attempt, or notes that its end is unknown. Never fails for lack of room, and answers a repeat
    /// with the first result.
    pub fn settle(
        &mut self,
        now: UnixMs,
        attempt: AttemptId,
        settlement: &Settlement,
    ) -> Result<Settled, NoAttempt> {
        self.advance(now);
        let state = self
            .attempts
            .get(&attempt)
            .ok_or(NoAttempt(attempt))?
            .row
            .state;
        match (state, settlement) {
            (State::Committed | State::Released | State::Refused, _) => {}
            (State::Unknown, Settlement::Unknown { observed, .. }) => {
                self.observe(attempt, *observed);
            }
            (State::Sent, Settlement::Unknown { reason, observed }) => {
                self.observe(attempt, *observed);
                self.become_unknown(attempt, *reason);
            }
            (State::Sent | State::Unknown, Settlement::Commit(observed)) => {
                self.commit(attempt, observed);
            }
            (State::Sent | State::Unknown, Settlement::Release { reason }) => {
                self.release(attempt, *reason);
            }
        }
        let row = &self.attempts.get(&attempt).ok_or(NoAttempt(attempt))?.row;
        Ok(row.settled())
    }

    /// Time passed: leases end, unknown attempts that waited long enough are resolved.
    pub fn handle_timeout(&mut self, now: UnixMs) {
        self.advance(now);
        while let Some(&(at, attempt)) = self.due.first() {
            if at > self.now {
                return;
            }
            match self.attempts.get(&attempt).map(|attempt| attempt.row.state) {
                Some(State::Sent) => self.become_unknown(attempt, Reason::LeaseOver),
                Some(State::Unknown) => self.resolve(attempt),
                Some(State::Committed | State::Released | State::Refused) | None => {
                    self.due.remove(&(at, attempt));
                }
            }
        }
    }

    /// When [`Ledger::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<UnixMs> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What the steps since the last call changed, in order. Write all of it in one transaction.
    pub fn drain_effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// Whether [`Ledger::drain_effects`] has anything to give.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Whether an attempt that is not remembered may be in the database all the same: look there before using
    /// its id.
    pub fn may_be_forgotten(&self, attempt: &AttemptId) -> bool {
        let old = self.horizon.is_some_and(|horizon| *attempt <= horizon);
        old && !self.attempts.contains_key(attempt)
    }

    /// The row of a remembered attempt.
    pub fn attempt(&self, attempt: &AttemptId) -> Option<&AttemptRow> {
        self.attempts.get(attempt).map(|attempt| &attempt.row)
    }

    /// Attempts without an end.
    pub fn open_attempts(&self) -> usize {
        self.due.len()
    }

    /// The hash of the newest entry.
    pub fn head(&self) -> (u64, Hash) {
        (self.chain.seq, self.chain.hash)
    }

    /// Time never goes back, whatever the clock does.
    fn advance(&mut self, now: UnixMs) {
        self.now = self.now.max(now);
    }
}
