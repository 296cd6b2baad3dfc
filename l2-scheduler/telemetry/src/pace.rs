//! When to scrape an endpoint again: soon while it works, seldom while it idles or does not answer. Pure.

use std::time::Duration;

use crate::config::Config;

/// What the last scrape and the scheduler know of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It works, or was picked since the last scrape.
    Busy,
    Idle,
    /// The scrape failed.
    Silent,
}

/// Jittered waits of one endpoint.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    idle_interval: Duration,
    failures: u32,
    random: u64,
}

impl Pace {
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        Self {
            interval: config.interval,
            idle_interval: config.idle_interval,
            failures: 0,
            random: seed,
        }
    }

    /// Time from the start of the last scrape to the start of the next.
    pub(crate) fn wait(&mut self, activity: Activity) -> Duration {
        self.failures = if activity == Activity::Silent {
            self.failures.saturating_add(1)
        } else {
            0
        };
        let base = match activity {
            Activity::Busy => self.interval,
            Activity::Idle => self.idle_interval,
            Activity::Silent => self
                .interval
                .saturating_mul(1 << self.failures.min(10))
                .min(self.idle_interval),
        };
        self.jittered(base)
    }

    /// The wait of a busy endpoint, for one that was picked while it idled.
    pub(crate) fn busy_wait(&mut self) -> Duration {
        let interval = self.interval;
        self.jittered(interval)
    }

    /// Up to a tenth more or less, so that endpoints started together drift apart.
    fn jittered(&mut self, wait: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let unit = (mixed >> 40) as f64 / f64::from(1 << 24);
        wait.mul_f64(0.9 + 0.2 * unit)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Activity, Pace};
    use crate::config::Config;

    fn check(activities: &[Activity], expected_ms: u64) {
        for seed in 0..50 {
            let mut pace = Pace::new(&Config::default(), seed);
            let wait = activities
                .iter()
                .map(|&activity| pace.wait(activity))
                .last()
                .expect("one at least");
            let expected = Duration::from_millis(expected_ms);
            assert!(
                wait >= expected.mul_f64(0.9) && wait <= expected.mul_f64(1.1),
                "{wait:?} for {expected:?}"
            );
        }
    }

    #[test]
    fn waits_follow_what_the_endpoint_does() {
        use Activity::{Busy, Idle, Silent};
        check(&[Busy], 100);
        check(&[Busy, Idle], 1_000);
        check(&[Silent], 200);
        check(&[Silent, Silent], 400);
        check(&[Silent, Busy, Silent], 200);
        check(&[Silent; 40], 1_000);
    }

    #[test]
    fn endpoints_started_together_drift_apart() {
        let waits: std::collections::BTreeSet<Duration> = (0..100)
            .map(|seed| Pace::new(&Config::default(), seed).wait(Activity::Busy))
            .collect();
        assert!(waits.len() > 90);
    }
}
