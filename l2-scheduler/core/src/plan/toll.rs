//! What the streams beside a prefill pay for it, and the rest before it that makes them pay less.

use wide::f32x4;

use super::four::{LANES, prudent_s};
use super::misses::{Bearing, decay, gain_s, haste};
use super::{Ask, HOLD, LONG_RESTS_S, MISS_S, REST_GAIN, REST_PRICE, SHORT_RESTS_S, Spot};
use crate::peers::SLACK_OF_BUCKET;

/// What the streams beside a prefill pay for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Toll {
    /// Targets expected to be missed if the prefill starts as soon as it can.
    pub(crate) misses: f64,
    /// Seconds for which the engine had better only decode before it.
    pub(crate) rest_s: f64,
    /// Seconds that the rest and the misses after it are worth.
    pub(super) price_s: f64,
}

impl Spot {
    /// The toll of computing `uncached` tokens in `prefill_s` here, with as much rest before as is worth it and as the
    /// request has time for.
    ///
    /// While an engine only decodes, its streams gain on their targets: a place where a prefill would do harm now may be
    /// harmless in a second. Without that, all long prompts queue behind each other wherever streams happen to have some
    /// slack, and nobody prepares another engine for them.
    pub(super) fn toll(
        &self,
        bearing: &mut Bearing,
        uncached: u32,
        prefill_s: f64,
        ask: &Ask,
    ) -> Toll {
        let [misses] = self.misses(bearing, uncached, [prefill_s], ask);
        let mut toll = Toll {
            misses,
            rest_s: 0.0,
            price_s: MISS_S * misses,
        };
        if misses > HOLD {
            toll = self.rest(bearing, SHORT_RESTS_S, uncached, prefill_s, ask, toll);
            toll = self.rest(bearing, LONG_RESTS_S, uncached, prefill_s, ask, toll);
        }
        toll
    }

    /// The least of `toll` and the tolls after each of `rests_s`, as far as there is time for them.
    fn rest<const N: usize>(
        &self,
        bearing: &mut Bearing,
        rests_s: [f64; N],
        uncached: u32,
        prefill_s: f64,
        ask: &Ask,
        mut toll: Toll,
    ) -> Toll {
        let time_s = ask.left_s - prudent_s(self.queue_s, prefill_s);
        // A longer rest costs more by itself.
        if rests_s[0] > time_s || REST_PRICE * rests_s[0] >= toll.price_s {
            return toll;
        }
        let gain = REST_GAIN * (ask.tpot_s / self.step_s - 1.0).max(0.0);
        let stalls_s = rests_s.map(|rest_s| (prefill_s - gain * rest_s).max(0.0));
        let rested = self.misses(bearing, uncached, stalls_s, ask);
        for (rest_s, misses) in rests_s.into_iter().zip(rested) {
            let price_s = REST_PRICE * rest_s + MISS_S * misses;
            if rest_s <= time_s && price_s < toll.price_s {
                toll = Toll {
                    rest_s,
                    price_s,
                    ..toll
                };
            }
        }
        toll
    }

    /// Expected number of targets missed by computing `uncached` tokens in each of `prefills_s` behind what is queued here,
    /// beside streams of this `bearing`.
    fn misses<const N: usize>(
        &self,
        bearing: &mut Bearing,
        uncached: u32,
        prefills_s: [f64; N],
        ask: &Ask,
    ) -> [f64; N] {
        let steps = self.model.steps(f64::from(uncached));
        let queued = [self.queue_s, self.steps_left];
        let mut misses = bearing.misses(self.now, queued, prefills_s, steps);
        self.add_unseen(&mut misses, queued, prefills_s, steps, ask);
        misses
    }

    /// Adds the same of those whose targets are taken to be like those of the request itself: what still prefills, and the
    /// streams of other schedulers.
    fn add_unseen<const N: usize>(
        &self,
        misses: &mut [f64; N],
        [queued_s, queued_steps]: [f64; 2],
        prefills_s: [f64; N],
        steps: f64,
        ask: &Ask,
    ) {
        const { assert!(N < LANES, "one lane is for what is queued") };
        let has_peers = self.peer_slack != [0; 8];
        if self.step_s >= ask.tpot_s || !(self.prefilling > 0.0 || has_peers) {
            return;
        }
        let haste = haste(gain_s(ask.tpot_s, self.step_s, ask.utilisation), ask.output) as f32;
        // Nothing for what is queued, then what each of the prefills puts them behind.
        let mut own_s = f32x4::ZERO;
        for (lane, prefill_s) in own_s.as_mut_array()[1..].iter_mut().zip(prefills_s) {
            *lane = (prefill_s - ask.tpot_s * steps).max(0.0) as f32;
        }
        let mut add = |count: f64, behind_s: f64| {
            let behind_s = (own_s + behind_s as f32).fast_max(f32x4::ZERO);
            let [before, after @ ..] = decay(behind_s * haste).to_array();
            for (misses, after) in misses.iter_mut().zip(after) {
                *misses += count * f64::from(before - after);
            }
        };
        // What still prefills has nothing to spare yet.
        if self.prefilling > 0.0 {
            add(self.prefilling, 0.0);
        }
        let before_s = (queued_s - ask.tpot_s * queued_steps).max(0.0);
        for (count, slack_s) in self.peer_slack.iter().zip(SLACK_OF_BUCKET) {
            if *count > 0 {
                add(f64::from(*count), before_s - slack_s);
            }
        }
    }
}
