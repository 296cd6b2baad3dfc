//! What the ledger wants written: rows, one per table of the schema.

use std::sync::Arc;

use governance_context::{AttemptId, RequestId, TenantId};

use super::entry::Entry;
use super::{Amounts, Basis, Reason, Settled};
use crate::account::{AccountId, Kind, PolicySpec, UnixMs};
use crate::price::{Stamp, Tokens};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            pub(super) fn index(self) -> usize {
                self.0 as usize - 1
            }

            pub(super) fn from_index(index: usize) -> $name {
                $name(u32::try_from(index + 1).expect("fewer than 2³² rows"))
            }
        }
    };
}

number!(
    /// The number of an account in the database, from 1.
    AccountNo
);
number!(
    /// The number of a policy in the database, from 1.
    PolicyNo
);

/// Something to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Insert or replace.
    Account(Box<AccountRow>),
    /// Insert or replace.
    Policy(Box<PolicyRow>),
    /// Insert or replace; only the last one of a window matters.
    Window(WindowRow),
    /// Insert or replace; only the last one of an attempt matters.
    Attempt(Arc<AttemptRow>),
    /// Insert.
    Leg(LegRow),
    /// Append.
    Entry(Entry),
    /// Not a row: a tier D charge was above the largest possible one. Tell someone.
    Alarm(Arc<AttemptRow>),
}

/// Whether an account admits anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It does.
    Active,
    /// It does not, and never will again.
    Ended,
}

/// A row of `account`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRow {
    /// Its number.
    pub no: AccountNo,
    /// Its id.
    pub id: AccountId,
    /// What it stands for.
    pub kind: Kind,
    /// Whether it admits anything.
    pub status: Status,
    /// How often it changed.
    pub version: u64,
}

/// A row of `policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    /// Its number.
    pub no: PolicyNo,
    /// Whose.
    pub account: AccountNo,
    /// What it says.
    pub spec: PolicySpec,
    /// Since when.
    pub from: UnixMs,
    /// Until when, if it was replaced.
    pub to: Option<UnixMs>,
}

/// A row of `win`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowRow {
    /// Whose.
    pub account: AccountNo,
    /// Under which policy.
    pub policy: PolicyNo,
    /// First instant.
    pub start: UnixMs,
    /// First instant of the next one.
    pub end: UnixMs,
    /// May be used.
    pub granted: u64,
    /// Set aside.
    pub held: u64,
    /// Used up.
    pub used: u64,
    /// Owed.
    pub debt: u64,
    /// Number of entries that made it.
    pub version: u64,
}

/// A row of `leg`: what one attempt holds under one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegRow {
    /// The attempt.
    pub attempt: AttemptId,
    /// Whose money.
    pub account: AccountNo,
    /// Under which policy.
    pub policy: PolicyNo,
    /// The policy whose charge this leg pays: itself, or the one that overflowed into it.
    pub head: PolicyNo,
    /// The window it came from; settlements go there.
    pub window: UnixMs,
    /// How much.
    pub held: u64,
}

/// Where an attempt is. There is no `Held`: dispatch follows the hold at once, so a hold counts as sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Never admitted, and never will be under this id.
    Refused,
    /// Running, or about to.
    Sent,
    /// Nobody can say.
    Unknown,
    /// Charged.
    Committed,
    /// Not charged.
    Released,
}

impl State {
    const ALL: [State; 5] = [
        State::Refused,
        State::Sent,
        State::Unknown,
        State::Committed,
        State::Released,
    ];

    /// The name stored in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Refused => "refused",
            State::Sent => "sent",
            State::Unknown => "unknown",
            State::Committed => "committed",
            State::Released => "released",
        }
    }

    /// The inverse of [`State::as_str`].
    pub fn parse(text: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether money is set aside.
    pub fn is_open(self) -> bool {
        matches!(self, State::Sent | State::Unknown)
    }
}

/// A row of `attempt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// The attempt.
    pub id: AttemptId,
    /// The request it belongs to.
    pub request: RequestId,
    /// The tenant.
    pub tenant: TenantId,
    /// The account the request was made with.
    pub account: AccountId,
    /// The versions it was priced with.
    pub stamp: Stamp,
    /// Where it is.
    pub state: State,
    /// What tier B held.
    pub estimate: Amounts,
    /// What tier D held.
    pub largest: Amounts,
    /// What was charged.
    pub charged: Amounts,
    /// What was counted, and by whom.
    pub usage: Option<(Tokens, Basis)>,
    /// Why it ended as it did.
    pub reason: Option<Reason>,
    /// The process it belongs to.
    pub owner: Arc<str>,
    /// When it was reserved.
    pub created: UnixMs,
    /// When the lease is over, or when an unknown end is resolved.
    pub due: UnixMs,
    /// When it ended.
    pub ended: Option<UnixMs>,
}

impl AttemptRow {
    /// The answer to a settlement of an attempt in this state.
    pub fn settled(&self) -> Settled {
        Settled {
            state: self.state,
            charged: self.charged,
        }
    }
}
