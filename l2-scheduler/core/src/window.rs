//! A sum over the last ten seconds.

use crate::Timestamp;

const BUCKETS: usize = 10;
const BUCKET_NANOS: u64 = 1_000_000_000;
/// Length of the window in seconds.
pub(crate) const WINDOW_S: f64 = BUCKETS as f64;

/// Ten buckets of one second each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    sums: [f64; BUCKETS],
    newest: u64,
}

impl Window {
    pub(crate) fn add(&mut self, now: Timestamp, value: f64) {
        self.advance(now);
        self.sums[(self.newest % BUCKETS as u64) as usize] += value;
    }

    pub(crate) fn sum(&mut self, now: Timestamp) -> f64 {
        self.advance(now);
        self.sums.iter().sum()
    }

    /// The sum as of the last change.
    pub(crate) fn newest_sum(&self) -> f64 {
        self.sums.iter().sum()
    }

    fn advance(&mut self, now: Timestamp) {
        let bucket = now.0 / BUCKET_NANOS;
        for passed in 1..=bucket.saturating_sub(self.newest).min(BUCKETS as u64) {
            self.sums[((self.newest + passed) % BUCKETS as u64) as usize] = 0.0;
        }
        self.newest = self.newest.max(bucket);
    }
}
