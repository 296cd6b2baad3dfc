//! A sum over the last seconds.

use crate::Timestamp;

const BUCKET_NANOS: u64 = 1_000_000_000;
/// Length of the usual window in seconds.
pub(crate) const WINDOW_S: f64 = 10.0;

/// Buckets of one second each.
#[derive(Clone, Debug)]
pub(crate) struct Window<const BUCKETS: usize = 10> {
    sums: [f64; BUCKETS],
    newest: u64,
}

impl<const BUCKETS: usize> Default for Window<BUCKETS> {
    fn default() -> Self {
        Self {
            sums: [0.0; BUCKETS],
            newest: 0,
        }
    }
}

impl<const BUCKETS: usize> Window<BUCKETS> {
    pub(crate) fn add(&mut self, now: Timestamp, value: f64) {
        self.advance(now);
        self.sums[(self.newest % BUCKETS as u64) as usize] += value;
    }

    pub(crate) fn sum(&mut self, now: Timestamp) -> f64 {
        self.advance(now);
        self.sums.iter().sum()
    }

    /// The sum over the last whole `seconds` and what has passed of this one.
    pub(crate) fn sum_of_last(&mut self, now: Timestamp, seconds: u64) -> f64 {
        self.advance(now);
        (0..=seconds.min(BUCKETS as u64 - 1))
            .filter_map(|back| self.newest.checked_sub(back))
            .map(|bucket| self.sums[(bucket % BUCKETS as u64) as usize])
            .sum()
    }

    fn advance(&mut self, now: Timestamp) {
        let bucket = now.0 / BUCKET_NANOS;
        for passed in 1..=bucket.saturating_sub(self.newest).min(BUCKETS as u64) {
            self.sums[((self.newest + passed) % BUCKETS as u64) as usize] = 0.0;
        }
        self.newest = self.newest.max(bucket);
    }
}
