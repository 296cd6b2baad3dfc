//! Everything that is due at some time, in order.

use std::collections::BTreeSet;

use governance_context::Band;

use crate::flow::queue::Place;
use crate::{BookingId, EndpointId, Timestamp};

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A look at all that waits.
    Plan,
    /// A waiting request, by its place in the queue.
    Waiting(Place),
    /// A flow that was over its quota, by the queue's number for it.
    Flow(u32),
    /// A band that was over its quota.
    Band(Band),
    /// An answer that does not stream has presumably finished its prefill.
    Prefilled(BookingId),
    /// Room of an endpoint that was busy.
    Room(EndpointId),
    /// A probe of a quarantined endpoint.
    Probe(EndpointId),
    /// A look at an endpoint that may hang.
    Hang(EndpointId),
    /// A load vector for the other schedulers.
    Tell,
}

#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Timestamp, Timer)>);

impl Timers {
    /// Sets, moves or clears a timer whose owner keeps its time in `slot`.
    pub(super) fn set(
        &mut self,
        slot: &mut Option<Timestamp>,
        timer: Timer,
        at: Option<Timestamp>,
    ) {
        if *slot == at {
            return;
        }
        if let Some(old) = slot.take() {
            self.0.remove(&(old, timer));
        }
        if let Some(at) = at {
            self.0.insert((at, timer));
        }
        *slot = at;
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes out what is due. Its owner's slot still names the old time; the owner clears it.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }
}
