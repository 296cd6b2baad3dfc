//! Whether an endpoint is trusted: failures in a row and hangs put it into quarantine, a probe takes it out.

use std::time::Duration;

use crate::Timestamp;
use crate::pool::HealthConfig;

/// A relapse within this time of the last recovery continues the old backoff.
const RELAPSE: Duration = Duration::from_mins(1);
const MAX_DOUBLINGS: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: u32,
    quarantined: bool,
    /// Probes asked for, and quarantines shortly after one another.
    strikes: u32,
    recovered_at: Option<Timestamp>,
    /// When the next probe is due.
    pub(crate) timer: Option<Timestamp>,
}

impl Health {
    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantined
    }

    pub(crate) fn works(&mut self) {
        self.failures = 0;
    }

    /// One more failure; true when the endpoint should be quarantined. An engine that cannot be scraped either gets no
    /// second chance.
    pub(crate) fn failed(&mut self, config: &HealthConfig, is_silent: bool) -> bool {
        self.failures = self.failures.saturating_add(1);
        !self.quarantined && (is_silent || self.failures >= config.failures)
    }

    /// Returns when to probe.
    pub(crate) fn quarantine(&mut self, now: Timestamp, config: &HealthConfig) -> Timestamp {
        self.quarantined = true;
        if self.recovered_at.is_none_or(|at| now.since(at) > RELAPSE) {
            self.strikes = 0;
        }
        self.next_probe(now, config)
    }

    /// A probe was asked for: returns when to ask again should it fail or never be answered.
    pub(crate) fn next_probe(&mut self, now: Timestamp, config: &HealthConfig) -> Timestamp {
        let backoff = config
            .backoff
            .saturating_mul(1 << self.strikes.min(MAX_DOUBLINGS))
            .min(config.max_backoff);
        self.strikes = self.strikes.saturating_add(1);
        now + backoff
    }

    pub(crate) fn recover(&mut self, now: Timestamp) {
        self.quarantined = false;
        self.failures = 0;
        self.recovered_at = Some(now);
    }
}
