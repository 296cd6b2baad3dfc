//! Whether a band has been waiting too long for too long: controlled delay (Nichols and Jacobson 2012), used to turn the
//! order inside flows to newest first instead of dropping.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::Timestamp;

/// Waits are too long beyond this share of what a request may wait.
const TARGET_SHARE: f64 = 0.2;
/// The interval is this many typical service times.
const INTERVAL_SERVICES: f64 = 2.0;
const SAMPLES: usize = 32;
const FIRST_SERVICE_S: f64 = 2.0;

#[derive(Debug)]
pub(crate) struct CoDel {
    /// When waits above the target will have lasted for an interval.
    patience_ends: Option<Timestamp>,
    newest_first: bool,
    /// Latest service times in seconds, as a ring.
    services: Vec<f64>,
    next: usize,
    median_s: f64,
}

impl CoDel {
    pub(crate) fn new() -> Self {
        Self {
            patience_ends: None,
            newest_first: false,
            services: Vec::new(),
            next: 0,
            median_s: FIRST_SERVICE_S,
        }
    }

    pub(crate) fn newest_first(&self) -> bool {
        self.newest_first
    }

    /// A request of the band was served in this many seconds.
    pub(crate) fn served(&mut self, seconds: f64) {
        if self.services.len() < SAMPLES {
            self.services.push(seconds);
        } else {
            self.services[self.next] = seconds;
        }
        self.next = (self.next + 1) % SAMPLES;
        if self.next.is_multiple_of(8) {
            let mut sorted = self.services.clone();
            sorted.sort_by(f64::total_cmp);
            self.median_s = sorted[sorted.len() / 2];
        }
    }

    /// A request left the queue after `waited`, of `budget` it could wait. True when the order has to change.
    pub(crate) fn dispatched(
        &mut self,
        now: Timestamp,
        waited: Duration,
        budget: Duration,
    ) -> bool {
        let before = self.newest_first;
        if waited.as_secs_f64() < TARGET_SHARE * budget.as_secs_f64() {
            self.patience_ends = None;
            self.newest_first = false;
        } else {
            let ends = *self
                .patience_ends
                .get_or_insert(now.after_seconds(INTERVAL_SERVICES * self.median_s));
            self.newest_first = now >= ends;
        }
        self.newest_first != before
    }

    /// Nothing waits any more. True when the order has to change.
    pub(crate) fn emptied(&mut self) -> bool {
        self.patience_ends = None;
        std::mem::take(&mut self.newest_first)
    }
}
