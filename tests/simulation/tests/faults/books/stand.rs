//! What happened to one attempt, and where it stands after that.

use governance_core::account::UnixMs;
use governance_core::ledger::{Amounts, LegRow, State};

/// What an attempt holds under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) policy: u32,
    pub(crate) head: u32,
    pub(crate) window: u64,
    pub(crate) held: u64,
}

impl From<&LegRow> for Leg {
    fn from(row: &LegRow) -> Self {
        Self {
            policy: row.policy.0,
            head: row.head.0,
            window: row.window.0,
            held: row.held,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Refused,
    Held {
        legs: Vec<Leg>,
        due: UnixMs,
    },
    Unknown {
        due: UnixMs,
    },
    Seen(Amounts),
    Charged(Amounts),
    /// By the rule of each leg's tier, for an end nobody could tell.
    Resolved,
    Released,
}

pub(super) struct Event {
    /// The write that brings it to the disk.
    pub(super) batch: u64,
    pub(super) what: What,
}

/// Where an attempt stands after all that happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) state: State,
    pub(crate) legs: Vec<Leg>,
    pub(super) due: UnixMs,
    pub(crate) seen: Amounts,
    pub(crate) is_resolved: bool,
}

pub(super) fn after(events: &[Event]) -> Option<Stand> {
    let mut stand: Option<Stand> = None;
    for event in events {
        let mut next = stand.take().unwrap_or(Stand {
            state: State::Refused,
            legs: Vec::new(),
            due: UnixMs(0),
            seen: Amounts::default(),
            is_resolved: false,
        });
        match &event.what {
            What::Refused => next.state = State::Refused,
            What::Held { legs, due } => {
                next.state = State::Sent;
                next.legs.clone_from(legs);
                next.due = *due;
            }
            What::Unknown { due } => (next.state, next.due) = (State::Unknown, *due),
            What::Seen(amounts) if amounts.tokens >= next.seen.tokens => next.seen = *amounts,
            What::Seen(_) => {}
            What::Charged(amounts) => (next.state, next.seen) = (State::Committed, *amounts),
            What::Resolved => (next.state, next.is_resolved) = (State::Committed, true),
            What::Released => (next.state, next.seen) = (State::Released, Amounts::default()),
        }
        stand = Some(next);
    }
    stand
}
