//! The meter of one quota: work in flight, and a token bucket.

use super::config::{Quota, QuotaRate};
use crate::Timestamp;

const MICRO: u64 = 1_000_000;
/// Levels are in billionths of a micro-WTU: what a nanosecond adds is whole, however often one looks.
const PARTS: i128 = 1_000_000_000;

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
            self.bucket = None;
            return Ok(());
        };
        let wanted = (i128::from(cost) * PARTS).min(burst(rate));
        let missing = wanted - self.refill(now, rate);
        if missing <= 0 {
            return Ok(());
        }
        let per_nano = per_nano(rate).max(i128::from(MICRO));
        let nanos = (missing - 1) / per_nano + 1;
        let wait = u64::try_from(nanos).unwrap_or(u64::MAX);
        Err(Over::Rate(Timestamp(now.0.saturating_add(wait))))
    }

    /// Whether nothing would be lost by forgetting it.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        self.in_flight == 0 && self.missing(now) == 0
    }

    /// How much of its bucket is missing.
    pub(crate) fn missing(&self, now: Timestamp) -> i128 {
        let mut copy = Self {
            in_flight: 0,
            bucket: self.bucket,
        };
        self.bucket.map_or(0, |bucket| {
            (burst(bucket.rate) - copy.refill(now, bucket.rate)).max(0)
        })
    }

    pub(crate) fn start(&mut self, now: Timestamp, quota: &Quota, cost: u64) {
        self.in_flight += cost;
        match quota.rate {
            Some(rate) => _ = self.refill(now, rate),
            // Work without a bound is not held against it should it get one again.
            None => self.bucket = None,
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.level -= i128::from(cost) * PARTS;
        }
    }

    /// Work that was started for `charged` is over and cost `actual`.
    pub(crate) fn end(&mut self, charged: u64, actual: u64) {
        self.in_flight -= charged;
        if let Some(bucket) = &mut self.bucket {
            bucket.level += (i128::from(charged) - i128::from(actual)) * PARTS;
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
        let added = nanos.saturating_mul(per_nano(rate));
        bucket.level = bucket.level.saturating_add(added).min(burst);
        bucket.at = bucket.at.max(now);
        bucket.level
    }
}

/// A WTU per second is a micro-WTU per microsecond.
fn per_nano(rate: QuotaRate) -> i128 {
    i128::from(rate.wtu_per_s) * i128::from(MICRO)
}

fn burst(rate: QuotaRate) -> i128 {
    i128::from(rate.burst_wtu.max(1)) * i128::from(MICRO) * PARTS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flow::OverQuota;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// The reference adds up, in whole billionths of a micro-WTU, what each nanosecond brings.
        #[test]
        fn a_bucket_is_exact_and_keeps_its_promise(
            wtu_per_s in 1..5000u64, burst_wtu in 1..500u64,
            steps in prop::collection::vec((0..400_000_000u64, 0..900_000_000u64, 0..900_000_000u64, any::<bool>()), 1..60),
        ) {
            let rate = QuotaRate { wtu_per_s, burst_wtu };
            let quota = Quota { in_flight_wtu: None, rate: Some(rate), over: OverQuota::Wait };
            let (full, per_nano) = (i128::from(burst_wtu) * 1_000_000_000_000_000, i128::from(wtu_per_s) * 1_000_000);
            let (mut level, mut now) = (full, 1_000u64);
            let mut meter = Meter::default();
            for (passed, cost, actual, looks_often) in steps {
                if looks_often {
                    for nanos in 0..40 {
                        let _ = meter.admits(Timestamp(now + nanos), &quota, cost);
                    }
                    now += 40;
                    level = (level + 40 * per_nano).min(full);
                }
                now += passed;
                level = (level + i128::from(passed) * per_nano).min(full);
                let wanted = (i128::from(cost) * 1_000_000_000).min(full);
                match meter.admits(Timestamp(now), &quota, cost) {
                    Ok(()) => {
                        prop_assert!(level >= wanted);
                        meter.start(Timestamp(now), &quota, cost);
                        meter.end(cost, actual);
                        level -= i128::from(actual) * 1_000_000_000;
                    }
                    Err(Over::Rate(at)) => {
                        let wait = i128::from(at.0 - now);
                        prop_assert!(level < wanted && level + wait * per_nano >= wanted);
                        prop_assert!(level + (wait - 1) * per_nano < wanted);
                    }
                    Err(Over::InFlight) => prop_assert!(false, "no such bound"),
                }
                // A clock that stands still, or goes back, brings nothing.
                let before = meter.admits(Timestamp(now), &quota, cost);
                let _ = meter.admits(Timestamp(now / 2), &quota, cost);
                prop_assert_eq!(meter.admits(Timestamp(now), &quota, cost), before);
            }
        }

        #[test]
        fn no_more_is_in_flight_than_the_quota_but_one_larger_request_alone(
            most in 0..50u64, steps in prop::collection::vec((0..80u64, any::<bool>()), 1..80),
        ) {
            let quota = Quota { in_flight_wtu: Some(most), ..Quota::default() };
            let (mut meter, mut running) = (Meter::default(), Vec::new());
            for (cost, ends) in steps {
                let cost = cost * MICRO;
                let fits = running.iter().sum::<u64>() == 0 || running.iter().sum::<u64>() + cost <= most * MICRO;
                prop_assert_eq!(meter.admits(Timestamp(5), &quota, cost).is_ok(), fits);
                if fits {
                    meter.start(Timestamp(5), &quota, cost);
                    running.push(cost);
                }
                if ends && !running.is_empty() {
                    meter.end(running.remove(0), 7);
                }
                let sum = running.iter().sum::<u64>();
                prop_assert_eq!(meter.in_flight(), sum);
                prop_assert!(sum <= most * MICRO || running.iter().filter(|cost| **cost > 0).count() == 1);
            }
        }
    }

    #[test]
    fn a_quota_that_went_leaves_no_debt_and_absurd_ones_do_no_harm() {
        let rate = |wtu_per_s, burst_wtu| Quota {
            rate: Some(QuotaRate {
                wtu_per_s,
                burst_wtu,
            }),
            ..Quota::default()
        };
        let mut meter = Meter::default();
        let now = Timestamp(1_000);
        meter.start(now, &rate(1, 10), 10 * MICRO);
        meter.start(now, &Quota::default(), 1_000_000 * MICRO);
        assert_eq!(meter.admits(now, &rate(1, 10), 10 * MICRO), Ok(()));
        for (wtu_per_s, burst_wtu) in [(0, 0), (u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0)] {
            let quota = rate(wtu_per_s, burst_wtu);
            let mut meter = Meter::default();
            meter.start(now, &quota, 1 << 50);
            let _ = meter.admits(Timestamp::MAX, &quota, 1 << 50);
            let _ = meter.admits(Timestamp::MAX, &quota, u64::MAX);
        }
    }
}
