//! What prices and sums over a pool take of its endpoints, packed by fours: one step of the arithmetic serves four of them.

use wide::f32x4;

use super::{Ask, Spot};
use crate::Timestamp;
use crate::cost::harm;

pub(super) const LANES: usize = 4;

/// What a predicted prefill may take longer: a factor, and seconds.
const SAFETY: (f64, f64) = (1.3, 0.3);
/// Seconds a place costs where the request would be late: whoever can make it goes first.
const TOO_LATE_S: f32 = 10.0;

/// Seconds until the first token of a prefill of `prefill_s` behind `queue_s`, with some to spare.
pub(super) fn prudent_s(queue_s: f64, prefill_s: f64) -> f64 {
    queue_s + SAFETY.0 * prefill_s + SAFETY.1
}

/// The place of an endpoint among the fours, and in its four.
pub(super) fn place(index: u32) -> (usize, usize) {
    (index as usize / LANES, index as usize % LANES)
}

/// What time changes, and what is summed over the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tide {
    /// When the engine will have computed what it computes first, in seconds on the clock of the pool.
    front_ends_s: [f64; LANES],
    /// Seconds of backlog behind that.
    rest_s: f32x4,
    /// One where the endpoint is ready.
    ready: f32x4,
    kv_use: f32x4,
    fullness: f32x4,
    /// One over the backlog that leaves no gate open.
    per_backlog: f32x4,
}

/// Sums over the endpoints that are ready.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) ready: f64,
    pub(super) kv_use: f64,
    pub(super) saturation: f64,
}

impl Tide {
    pub(super) fn set(&mut self, lane: usize, spot: &Spot, kv_use: f64) {
        let (since, seconds) = spot.front;
        self.front_ends_s[lane] = since.seconds_since(Timestamp::ZERO) + seconds;
        self.rest_s.as_mut_array()[lane] = (spot.backlog_s - seconds) as f32;
        self.ready.as_mut_array()[lane] = f32::from(u8::from(spot.is_ready));
        self.kv_use.as_mut_array()[lane] = kv_use as f32;
        self.fullness.as_mut_array()[lane] = spot.fullness(kv_use) as f32;
        self.per_backlog.as_mut_array()[lane] = (1.0 / spot.full_backlog_s()) as f32;
    }

    /// Adds to `sums` what holds at `now_s`; returns the seconds until a new prefill would start.
    pub(super) fn at(&self, now_s: f64, sums: &mut [Sums; LANES]) -> f32x4 {
        let front_s = self.front_ends_s.map(|ends_s| (ends_s - now_s) as f32);
        let front_s = f32x4::new(front_s).fast_max(f32x4::ZERO);
        let queue_s = (self.rest_s + front_s).fast_max(f32x4::ZERO);
        let backlog = queue_s * self.per_backlog;
        let saturation = self.fullness.fast_max(backlog).fast_min(f32x4::ONE);
        let lanes = [
            self.ready,
            self.ready * self.kv_use,
            self.ready * saturation,
        ];
        let [ready, kv_use, saturation] = lanes.map(f32x4::to_array);
        for (lane, sums) in sums.iter_mut().enumerate() {
            sums.ready += f64::from(ready[lane]);
            sums.kv_use += f64::from(kv_use[lane]);
            sums.saturation += f64::from(saturation[lane]);
        }
        queue_s
    }
}

/// What the price of a place depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    /// Seconds until a new prefill would start.
    pub(super) queue_s: f32x4,
    /// Seconds that do not depend on the prompt: own decode slow-down, old metrics.
    fixed_s: f32x4,
    /// Seconds per uncached token, per pair of tokens that attend, and per step besides.
    token_s: f32x4,
    pair_s: f32x4,
    step_s: f32x4,
    /// One over the tokens of a step.
    per_batch: f32x4,
    /// Seconds that a second of prefill costs itself and others.
    weight: f32x4,
    /// Tokens of the prompt in hand that are there.
    pub(super) cached: f32x4,
}

impl Default for Price {
    /// Four places that are no endpoints.
    fn default() -> Self {
        Self {
            queue_s: f32x4::ZERO,
            fixed_s: f32x4::ZERO,
            token_s: f32x4::ZERO,
            pair_s: f32x4::ZERO,
            step_s: f32x4::ZERO,
            per_batch: f32x4::ZERO,
            // Nothing times a prefill without end would be no number, and not on all machines is that left out of a minimum.
            weight: f32x4::ONE,
            cached: f32x4::ZERO,
        }
    }
}

/// What four places cost one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quote {
    pub(super) cost: f32x4,
    pub(super) prefill_s: f32x4,
    pub(super) prudent_s: f32x4,
}

impl Price {
    pub(super) fn set(&mut self, lane: usize, spot: &Spot) {
        let (model, offer) = (&spot.model, spot.offer(0.0));
        self.queue_s.as_mut_array()[lane] = spot.queue_s as f32;
        self.fixed_s.as_mut_array()[lane] = (offer.decode_s() + offer.handicap_s) as f32;
        self.token_s.as_mut_array()[lane] = (model.lin * spot.pace) as f32;
        self.pair_s.as_mut_array()[lane] = (model.quad * spot.pace) as f32;
        self.step_s.as_mut_array()[lane] = ((model.fix + spot.over) * spot.pace) as f32;
        self.per_batch.as_mut_array()[lane] = (1.0 / model.batch) as f32;
        self.weight.as_mut_array()[lane] = (1.0 + harm(spot.decoding)) as f32;
    }

    /// The cost model's sum, but for what a prefill elsewhere would have saved; without end where `bars` say so.
    pub(super) fn quote(&self, ask: &Ask, bars: f32x4) -> Quote {
        let uncached = ask.prompt as f32 - self.cached;
        let pairs = uncached * (self.cached + uncached * 0.5);
        // Half a token less: a whole number of steps stays one.
        let steps = whole((uncached - 0.5) * self.per_batch);
        let tokens_s = self.token_s * uncached + self.pair_s * pairs;
        let prefill_s = tokens_s + steps * self.step_s + bars;
        let prudent_s = self.queue_s + prefill_s * SAFETY.0 as f32 + SAFETY.1 as f32;
        let late_s = prudent_s.simd_gt(ask.left_s as f32) & f32x4::splat(TOO_LATE_S);
        let own_s = self.queue_s + self.fixed_s + late_s;
        Quote {
            cost: own_s + prefill_s * (self.weight + ask.kappa as f32),
            prefill_s,
            prudent_s,
        }
    }
}

/// The least whole number that is not less than `x`, for 0 ≤ x < 2^23. (`ceil` is a call on plain x86-64.)
fn whole(x: f32x4) -> f32x4 {
    const ROUND: f32 = 8_388_608.0;
    let nearest = (x + ROUND) - ROUND;
    nearest + (nearest.simd_lt(x) & f32x4::ONE)
}

/// The least of four; none of them may be no number.
pub(super) fn least(lanes: f32x4) -> f32 {
    let [a, b, c, d] = lanes.to_array();
    lesser(lesser(a, b), lesser(c, d))
}

/// (`f32::min` takes care of what is no number, which takes more steps.)
pub(super) fn lesser(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_no_endpoint_costs_without_end_whatever_work_done_twice_costs() {
        for kappa in [0.0, 1e-9, 20.0] {
            let ask = Ask {
                prompt: 1,
                tpot_s: 0.1,
                output: 1.0,
                kappa,
                utilisation: 0.0,
                left_s: 1.0,
                band: governance_context::Band(0),
            };
            let quote = Price::default().quote(&ask, f32x4::splat(f32::INFINITY));
            for seconds in [quote.cost, quote.prefill_s, quote.prudent_s] {
                assert!(
                    seconds.to_array().iter().all(|s| *s > f32::MAX),
                    "{seconds:?}"
                );
            }
        }
    }

    #[test]
    fn steps_are_whole() {
        for batch in [1u32, 3, 256, 2048, 8192, 131_072] {
            for tokens in (1u32..40_000).chain(1_000_000..1_000_400) {
                let exact = (tokens as f32 - 0.5) * (1.0 / f64::from(batch)) as f32;
                let [steps, ..] = whole(f32x4::splat(exact)).to_array();
                assert_eq!(steps as u32, tokens.div_ceil(batch), "{tokens} by {batch}");
            }
        }
    }
}
