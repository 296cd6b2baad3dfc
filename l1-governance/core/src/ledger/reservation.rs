//! What is asked before an attempt runs, and the answer.

use std::sync::Arc;

use governance_context::{AttemptId, MicroWtu, RequestId, TenantId};

use super::row::State;
use crate::account::{AccountId, AccountPath, PolicyName, Span, Tier, Unit, UnixMs};
use crate::price::Stamp;

/// An amount in both units an account may be limited in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// The charge.
    pub wtu: MicroWtu,
    /// The raw tokens.
    pub tokens: u64,
}

impl Amounts {
    pub(super) fn in_unit(&self, unit: Unit) -> u64 {
        match unit {
            Unit::MicroWtu => self.wtu.0,
            Unit::Tokens => self.tokens,
        }
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
    /// What `largest` would be with as few output tokens as the attempt can be held to. It is never held; a
    /// refusal says by it what waiting helps.
    pub least: Amounts,
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

/// The account that had no room, and when it will. Of several the one that will have it last, or a hard cap as long as all
/// hard caps have room for less: the rest is judged once less is asked for.
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
    /// What has to happen before the request fits here.
    pub fits: Fits,
}

/// What has to happen before a request fits; what takes longest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// Nothing, if it asks for less.
    Lowered,
    /// Others give back what they hold: what is used leaves room enough.
    OnceHoldsEnd,
    /// The window starts over, or somebody grants more.
    OnceStartedOver,
    /// Somebody grants more: it asks for more than a whole window does.
    Never,
}
