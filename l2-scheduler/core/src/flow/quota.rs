//! The meter of one quota: work in flight, and a token bucket.

use super::config::{Quota, QuotaRate};
use crate::Timestamp;

const MICRO: u64 = 1_000_000;

/// What one flow or band uses of its quota, in micro-WTU.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    in_flight: u64,
    bucket: Option<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: QuotaRate,
    /// Below zero after a correction: then it first fills up.
    level: i128,
    at: Timestamp,
}

/// Why something does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Until other work ends.
    InFlight,
    /// Until then.
    Rate(Timestamp),
}

impl Meter {
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether work of `cost` may start. What exceeds the whole quota may, once it has it for itself.
    pub(crate) fn admits(&mut self, now: Timestamp, quota: &Quota, cost: u64) -> Result<(), Over> {
        if let Some(most) = quota.in_flight_wtu
            && self.in_flight > 0
            && self.in_flight.saturating_add(cost) > most.saturating_mul(MICRO)
        {
            return Err(Over::InFlight);
        }
        let Some(rate) = quota.rate else {
            return Ok(());
        };
        let burst = burst(rate);
        let missing = i128::from(cost).min(burst) - self.refill(now, rate);
        if missing <= 0 {
            return Ok(());
        }
        let per_second = i128::from(rate.wtu_per_s.max(1)) * i128::from(MICRO);
        let seconds = missing as f64 / per_second as f64;
        // A nanosecond later, so that rounding never makes it too early.
        Err(Over::Rate(Timestamp(now.after_seconds(seconds).0 + 1)))
    }

    /// Whether nothing would be lost by forgetting it.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        let mut copy = Self {
            in_flight: 0,
            bucket: self.bucket,
        };
        self.in_flight == 0
            && self
                .bucket
                .is_none_or(|bucket| copy.refill(now, bucket.rate) >= burst(bucket.rate))
    }

    pub(crate) fn start(&mut self, now: Timestamp, quota: &Quota, cost: u64) {
        self.in_flight += cost;
        if let Some(rate) = quota.rate {
            self.refill(now, rate);
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.level -= i128::from(cost);
        }
    }

    /// Work that was started for `charged` is over and cost `actual`.
    pub(crate) fn end(&mut self, charged: u64, actual: u64) {
        self.in_flight -= charged;
        if let Some(bucket) = &mut self.bucket {
            bucket.level += i128::from(charged) - i128::from(actual);
        }
    }

    fn refill(&mut self, now: Timestamp, rate: QuotaRate) -> i128 {
        let burst = burst(rate);
        let bucket = self.bucket.get_or_insert(Bucket {
            rate,
            level: burst,
            at: now,
        });
        bucket.rate = rate;
        let nanos = i128::from(now.0.saturating_sub(bucket.at.0));
        let added = nanos * i128::from(rate.wtu_per_s) * i128::from(MICRO) / 1_000_000_000;
        bucket.level = (bucket.level + added).min(burst);
        bucket.at = bucket.at.max(now);
        bucket.level
    }
}

fn burst(rate: QuotaRate) -> i128 {
    i128::from(rate.burst_wtu.max(1)) * i128::from(MICRO)
}
