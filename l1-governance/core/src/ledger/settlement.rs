//! How an attempt ended, and the answer.

use governance_context::{AttemptId, MicroWtu};

use super::reservation::Amounts;
use super::row::State;
use crate::price::Tokens;

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
    pub(super) fn amounts(&self) -> Amounts {
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
