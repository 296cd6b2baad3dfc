//! How many requests an endpoint may have in flight: as configured, and fewer for a while after it said it is busy.

use std::time::Duration;

use crate::Timestamp;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Places of an endpoint that has just recovered; they double with every pause.
const SLOW_START: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(crate) struct Room {
    configured: u32,
    limit: Option<u32>,
    pause: Duration,
    /// Refusals of one moment count once.
    refused_lately: bool,
    /// When the limit rises next.
    pub(crate) timer: Option<Timestamp>,
}

impl Room {
    pub(crate) fn new(configured: u32) -> Self {
        Self {
            configured,
            limit: None,
            pause: FIRST_PAUSE,
            refused_lately: false,
            timer: None,
        }
    }

    /// Takes another configured number; what was learned from busy answers stays.
    pub(crate) fn configure(&mut self, configured: u32) {
        self.configured = configured;
    }

    pub(crate) fn forget_refusals(&mut self) {
        *self = Self::new(self.configured);
    }

    pub(crate) fn places(&self) -> u32 {
        self.limit.unwrap_or(self.configured).min(self.configured)
    }

    /// It has just recovered: few at first. Returns when to look again.
    pub(crate) fn start_slowly(&mut self, now: Timestamp) -> Timestamp {
        self.limit = Some(SLOW_START.min(self.configured));
        now + FIRST_PAUSE
    }

    /// The engine refused one more while it had `in_flight` others. Returns when to look again.
    pub(crate) fn busy(&mut self, now: Timestamp, in_flight: u32) -> Timestamp {
        self.limit = Some(in_flight.min(self.places()));
        if let Some(timer) = self.timer.filter(|_| self.refused_lately) {
            return timer;
        }
        self.refused_lately = true;
        let next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        next
    }

    /// The pause is over: twice the places, until all are back. Returns when to look again.
    pub(crate) fn widen(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.refused_lately = false;
        let wider = self.limit?.saturating_mul(2).max(1);
        self.limit = (wider < self.configured).then_some(wider);
        if self.limit.is_none() {
            self.pause = FIRST_PAUSE;
        }
        self.limit.map(|_| now + FIRST_PAUSE)
    }
}
