//! The ledger as a state machine: accounts × windows, attempts, and an append-only chain of entries.
//!
//! It decides and remembers; making it durable is the store's work. Every step leaves [`Effect`]s behind, which
//! the store writes in one transaction. Replaying the entries alone gives the same windows again.
//!
//! Invariants are numbered as in `audit`, which checks them all.

mod audit;
mod entry;
mod plan;
mod row;
mod settle;
mod snapshot;
mod standing;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use governance_context::{AttemptId, MicroWtu, RequestId, TenantId};
use rustc_hash::FxHashMap;

use crate::account::{
    AccountId, AccountPath, Kind, PolicyError, PolicyName, PolicySpec, Span, Tier, Unit, UnixMs,
    Window,
};
use crate::price::{Stamp, Tokens};

pub use audit::{Auditor, Invariant, Report, UnknownGauge, Violation};
pub use entry::{Entry, EntryKind, Hash};
pub use row::{
    AccountNo, AccountRow, AttemptRow, Effect, LegRow, PolicyNo, PolicyRow, State, Status,
    WindowRow,
};
pub use snapshot::{Inconsistent, Snapshot};

use entry::Chain;

/// Charges and holds above this are taken as this: a billion WTU per attempt.
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

/// An amount in both units an account may be limited in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// The charge.
    pub wtu: MicroWtu,
    /// The raw tokens.
    pub tokens: u64,
}

impl Amounts {
    fn in_unit(&self, unit: Unit) -> u64 {
        let amount = match unit {
            Unit::MicroWtu => self.wtu.0,
            Unit::Tokens => self.tokens,
        };
        amount.min(MAX_AMOUNT)
    }
}

/// What an attempt asks for before it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Our id of the attempt; used once.
    pub attempt: AttemptId,
    /// The request it belongs to; retries share it.
    pub request: RequestId,
    /// The tenant, for the record.
    pub tenant: TenantId,
    /// Who pays. All or none.
    pub path: AccountPath,
    /// What tier B holds.
    pub estimate: Amounts,
    /// What tier D holds: no outcome may cost more.
    pub largest: Amounts,
    /// The versions it was priced with.
    pub stamp: Stamp,
    /// After this long without a settlement the attempt is unknown.
    pub lease_ms: u64,
}

/// What an accepted reservation promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Whether dispatch must wait until the hold is on disk: some account of the path is tier D.
    pub durability: Durability,
    /// When the lease is over.
    pub lease_until: UnixMs,
}

/// Whether an answer waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It may be answered at once; the entries follow with the next commit.
    Batched,
    /// It must be on disk first.
    BeforeAnswer,
}

/// Why a reservation was refused. Nothing was counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An account has no room.
    #[error("account {} has no room under {}", .0.account, .0.policy)]
    NoRoom(Arc<Shortage>),
    /// An account of the path was ended, or one it belongs to.
    #[error("account {0} has ended")]
    Ended(AccountId),
    /// An account of the path was never declared.
    #[error("account {0} is not known to the ledger")]
    NoAccount(AccountId),
    /// The attempt id was used before; it is in this state.
    #[error("the attempt id was used before and is {0:?}")]
    Used(State),
}

/// The account that had no room, and when it will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Whose limit.
    pub account: AccountId,
    /// Which limit.
    pub policy: PolicyName,
    /// The promise of the policy.
    pub tier: Tier,
    /// What the figures count.
    pub unit: Unit,
    /// The window.
    pub window: Span,
    /// What the window grants.
    pub limit: u64,
    /// Used up.
    pub used: u64,
    /// Set aside for running attempts.
    pub held: u64,
    /// Owed from overruns.
    pub debt: u64,
    /// What was asked for.
    pub asked: u64,
    /// What would have fitted.
    pub available: u64,
    /// When the window starts over; `None` for a balance.
    pub resets_at: Option<UnixMs>,
    /// Whether waiting helps.
    pub fits: Fits,
}

/// Whether the same request can ever fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fits {
    /// As holds end or the window starts over.
    Later,
    /// It asks for more than a whole window grants.
    Never,
}

/// What the engine was seen to have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Raw counts.
    pub usage: Tokens,
    /// Their price under the stamp of the hold.
    pub charge: MicroWtu,
    /// Where the counts come from.
    pub basis: Basis,
}

impl Observed {
    fn amounts(&self) -> Amounts {
        Amounts {
            wtu: self.charge,
            tokens: self.usage.total(),
        }
    }
}

/// Where counts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The engine said so.
    Measured,
    /// Counted from what passed by.
    Estimated,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The usage is known.
    Commit(Observed),
    /// Certainly no work was done.
    Release {
        /// How that is known.
        reason: Reason,
    },
    /// Nobody can say yet; the hold stays.
    Unknown {
        /// Why.
        reason: Reason,
        /// What was seen so far, a lower bound.
        observed: Option<Observed>,
    },
}

/// Why an attempt ended as it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing listened.
    ConnectFailed,
    /// The scheduler or engine said that it did no work.
    NoWork,
    /// The engine refused the request.
    EngineRefused,
    /// The engine failed.
    EngineFailed,
    /// The stream broke off.
    Cut,
    /// No answer in time.
    TimedOut,
    /// The client left, and the cancel is not confirmed.
    CancelUnconfirmed,
    /// The lease ended without a settlement.
    LeaseOver,
    /// The process that owned the attempt is gone.
    OwnerLost,
    /// The hold was dropped without a settlement: a panic.
    Dropped,
    /// The hold was granted too late and never dispatched.
    NotDispatched,
}

impl Reason {
    const ALL: [Reason; 11] = [
        Reason::ConnectFailed,
        Reason::NoWork,
        Reason::EngineRefused,
        Reason::EngineFailed,
        Reason::Cut,
        Reason::TimedOut,
        Reason::CancelUnconfirmed,
        Reason::LeaseOver,
        Reason::OwnerLost,
        Reason::Dropped,
        Reason::NotDispatched,
    ];

    /// The name stored in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::ConnectFailed => "connect-failed",
            Reason::NoWork => "no-work",
            Reason::EngineRefused => "engine-refused",
            Reason::EngineFailed => "engine-failed",
            Reason::Cut => "cut",
            Reason::TimedOut => "timed-out",
            Reason::CancelUnconfirmed => "cancel-unconfirmed",
            Reason::LeaseOver => "lease-over",
            Reason::OwnerLost => "owner-lost",
            Reason::Dropped => "dropped",
            Reason::NotDispatched => "not-dispatched",
        }
    }

    /// The inverse of [`Reason::as_str`].
    pub fn parse(text: &str) -> Option<Reason> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// The answer to a settlement; the first answer, however often it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The state the attempt is in.
    pub state: State,
    /// What was charged in all.
    pub charged: Amounts,
}

/// A settlement of an attempt that never was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no attempt {0} is known")]
pub struct NoAttempt(pub AttemptId);

/// Why a declaration was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// The account is not declared.
    #[error("account {0} is not declared")]
    Unknown(AccountId),
    /// The account it belongs to is not declared.
    #[error("account {0} belongs to an account that is not declared")]
    NoParent(AccountId),
    /// The account was ended; it does not come back.
    #[error("account {0} has ended; ended accounts do not come back under the same id")]
    Ended(AccountId),
    /// A policy does not fit.
    #[error("account {0}")]
    Policy(AccountId, #[source] PolicyError),
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

    /// Declares an account with all its policies, replacing the policies it had.
    ///
    /// A policy that keeps its name, unit and window keeps its counters: a new limit applies to the running
    /// window. An account without a WTU policy is metered by calendar month, so that every account of a path
    /// shows what went through it.
    pub fn declare(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        kind: Kind,
        policies: &[PolicySpec],
    ) -> Result<(), DeclareError> {
        self.advance(now);
        for policy in policies {
            policy
                .check(policies)
                .map_err(|error| DeclareError::Policy(id.clone(), error))?;
        }
        let account = self.declare_account(id, kind)?;
        let mut wanted = policies.to_vec();
        if !wanted.iter().any(|policy| policy.unit == Unit::MicroWtu) {
            wanted.push(metering());
        }
        self.replace_policies(account, &wanted);
        Ok(())
    }

    /// Adds one policy to a declared account, or replaces the one of the same name.
    pub fn set_policy(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        spec: &PolicySpec,
    ) -> Result<(), DeclareError> {
        self.edit_policies(now, id, |specs| {
            specs.retain(|other| other.name != spec.name);
            specs.push(spec.clone());
        })
    }

    /// Takes one policy away from a declared account. Nothing happens when there is none of that name.
    pub fn remove_policy(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        name: &PolicyName,
    ) -> Result<(), DeclareError> {
        self.edit_policies(now, id, |specs| specs.retain(|other| other.name != *name))
    }

    /// The policies of an account as they are; empty for an unknown account.
    pub fn policies(&self, id: &AccountId) -> Vec<PolicySpec> {
        let Some(no) = self.index.get(id) else {
            return Vec::new();
        };
        let policies = self.accounts[no.index()].policies.iter();
        policies
            .map(|no| self.policies[no.index()].row.spec.clone())
            .collect()
    }

    /// Ends an account and everything below it. Ended accounts admit nothing; what runs settles as usual.
    pub fn end_account(&mut self, now: UnixMs, id: &AccountId) -> Result<(), Refusal> {
        self.advance(now);
        if !self.index.contains_key(id) {
            return Err(Refusal::NoAccount(id.clone()));
        }
        for account in &mut self.accounts {
            if account.row.status == Status::Active && account.row.id.is_within(id) {
                account.row.status = Status::Ended;
                account.row.version += 1;
                self.effects.push(Effect::Account(account.row.clone()));
            }
        }
        Ok(())
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
                self.observe(attempt, *observed)
            }
            (State::Sent, Settlement::Unknown { reason, observed }) => {
                self.observe(attempt, *observed);
                self.become_unknown(attempt, *reason);
            }
            (State::Sent | State::Unknown, Settlement::Commit(observed)) => {
                self.commit(attempt, observed)
            }
            (State::Sent | State::Unknown, Settlement::Release { reason }) => {
                self.release(attempt, *reason)
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
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
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

    fn edit_policies(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        edit: impl FnOnce(&mut Vec<PolicySpec>),
    ) -> Result<(), DeclareError> {
        let no = self
            .index
            .get(id)
            .ok_or_else(|| DeclareError::Unknown(id.clone()))?;
        let kind = self.accounts[no.index()].row.kind;
        let mut specs = self.policies(id);
        edit(&mut specs);
        self.declare(now, id, kind, &specs)
    }

    fn declare_account(&mut self, id: &AccountId, kind: Kind) -> Result<AccountNo, DeclareError> {
        if let Some(no) = self.index.get(id) {
            return match self.accounts[no.index()].row.status {
                Status::Active => Ok(*no),
                Status::Ended => Err(DeclareError::Ended(id.clone())),
            };
        }
        if let Some(parent) = id.parent() {
            let parent = self
                .index
                .get(&parent)
                .ok_or_else(|| DeclareError::NoParent(id.clone()))?;
            if self.accounts[parent.index()].row.status == Status::Ended {
                return Err(DeclareError::Ended(id.clone()));
            }
        }
        let no = AccountNo::from_index(self.accounts.len());
        let row = AccountRow {
            no,
            id: id.clone(),
            kind,
            status: Status::Active,
            version: 1,
        };
        self.effects.push(Effect::Account(row.clone()));
        self.index.insert(id.clone(), no);
        self.accounts.push(Account {
            row,
            policies: Vec::new(),
        });
        Ok(no)
    }

    fn replace_policies(&mut self, account: AccountNo, wanted: &[PolicySpec]) {
        let before = self.accounts[account.index()].policies.clone();
        let mut kept = Vec::with_capacity(wanted.len());
        for spec in wanted {
            let same = before.iter().copied().find(|no| {
                let policy = &self.policies[no.index()].row.spec;
                policy.name == spec.name
                    && policy.unit == spec.unit
                    && policy.window == spec.window
                    && policy.tier == spec.tier
            });
            kept.push(match same {
                Some(no) => self.update_policy(no, spec),
                None => self.add_policy(account, spec),
            });
        }
        for no in before.into_iter().filter(|no| !kept.contains(no)) {
            let policy = &mut self.policies[no.index()];
            policy.row.to = Some(self.now);
            self.effects.push(Effect::Policy(policy.row.clone()));
        }
        self.link_overflow(&kept);
        self.accounts[account.index()].policies = kept;
    }

    fn update_policy(&mut self, no: PolicyNo, spec: &PolicySpec) -> PolicyNo {
        let policy = &mut self.policies[no.index()];
        if policy.row.spec != *spec {
            policy.row.spec = spec.clone();
            self.effects.push(Effect::Policy(policy.row.clone()));
        }
        no
    }

    fn add_policy(&mut self, account: AccountNo, spec: &PolicySpec) -> PolicyNo {
        let no = PolicyNo::from_index(self.policies.len());
        let row = PolicyRow {
            no,
            account,
            spec: spec.clone(),
            from: self.now,
            to: None,
        };
        self.effects.push(Effect::Policy(row.clone()));
        self.policies.push(Policy {
            row,
            overflow: None,
            is_target: false,
            windows: BTreeMap::new(),
        });
        no
    }

    fn link_overflow(&mut self, policies: &[PolicyNo]) {
        for no in policies {
            let target = self.policies[no.index()].row.spec.overflow.clone();
            let found = policies
                .iter()
                .copied()
                .find(|other| Some(&self.policies[other.index()].row.spec.name) == target.as_ref());
            self.policies[no.index()].overflow = found;
        }
        for no in policies {
            let is_target = policies
                .iter()
                .any(|other| self.policies[other.index()].overflow == Some(*no));
            self.policies[no.index()].is_target = is_target;
        }
    }
}

fn metering() -> PolicySpec {
    PolicySpec::new(
        PolicyName::parse("metered").expect("a literal name"),
        Tier::B,
        Unit::MicroWtu,
        Window::Calendar {
            offset_minutes: 0,
            unit: crate::account::CalendarUnit::Month,
        },
        crate::account::Limit::Metered,
    )
}
