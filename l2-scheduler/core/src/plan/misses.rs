//! Targets that running streams are expected to miss because a prefill is placed beside them.

use governance_context::Band;
use wide::{f32x4, u32x4};

use super::four::LANES;
use super::{Ask, Spot};
use crate::{BookingId, Timestamp};

/// One decoding stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) booking: BookingId,
    pub(crate) first_at: Timestamp,
    /// Output tokens so far.
    pub(crate) output: u32,
    /// Seconds per output token it wants.
    pub(crate) tpot_s: f64,
    /// Output tokens expected in all.
    pub(crate) expected: f64,
    /// Whether its tokens are seen one by one.
    pub(crate) is_seen: bool,
    pub(crate) band: i32,
}

impl Stream {
    /// Seconds it can stall and still meet its target so far. Where tokens are not seen, they came at `step_s` each.
    pub(crate) fn slack(&self, now: Timestamp, step_s: f64) -> f64 {
        let elapsed = now.seconds_since(self.first_at);
        let tokens = if self.is_seen {
            f64::from(self.output)
        } else {
            elapsed / step_s.max(1e-6)
        };
        self.tpot_s * tokens - elapsed
    }

    /// How many seconds its slack grows by with every second without news.
    fn slack_rate(&self, step_s: f64) -> f64 {
        if self.is_seen {
            -1.0
        } else {
            self.tpot_s / step_s.max(1e-6) - 1.0
        }
    }
}

/// Whoever has at least so many seconds to spare feels hardly any prefill.
const MUCH_TO_SPARE_S: f64 = 4.0;
/// Whoever is behind by so many times what it will make up for misses its target, whatever comes.
const LOST: f64 = 18.0;

/// What streams can bear: weighed for many requests, so kept in a form that takes few steps each.
#[derive(Clone, Debug, Default)]
pub(super) struct Bearing {
    /// Those that a prefill may cost their target.
    near: Streams,
    /// Those with much to spare, and how much the least of them has.
    far: Streams,
    far_s: f64,
    /// As of when, for which band, and with which part of the time taken by prefills; nothing if they are others by now.
    known: Option<(Timestamp, Band, f64)>,
}

impl Bearing {
    /// The streams, or their engine, are not what they were.
    pub(super) fn forget(&mut self) {
        self.known = None;
    }

    /// What streams can bear for a request of the band of `ask`: no band waits for the sake of lower ones. Prefills of others
    /// will go on taking their part of the time.
    pub(super) fn renew(&mut self, spot: &Spot, streams: &[Stream], ask: &Ask) {
        let wanted = (ask.band, ask.utilisation);
        if self
            .known
            .is_some_and(|(_, band, part)| (band, part) == wanted)
        {
            return;
        }
        self.known = Some((spot.now, ask.band, ask.utilisation));
        self.near.clear();
        self.far.clear();
        self.far_s = f64::INFINITY;
        // Even undisturbed decoding is too slow for some: no prefill can cost them their target.
        let counts = |stream: &&Stream| spot.step_s < stream.tpot_s && stream.band >= ask.band.0;
        for stream in streams.iter().filter(counts) {
            let slack_s = stream.slack(spot.now, spot.step_s);
            let gain_s = gain_s(stream.tpot_s, spot.step_s, ask.utilisation);
            let haste = haste(gain_s, stream.expected);
            let rate = stream.slack_rate(spot.step_s);
            if slack_s >= MUCH_TO_SPARE_S {
                self.far_s = self.far_s.min(slack_s);
                self.far.push(stream.tpot_s, slack_s, rate, haste);
            } else if -slack_s * haste < LOST {
                self.near.push(stream.tpot_s, slack_s, rate, haste);
            }
        }
    }

    /// Expected number of streams that miss their target for a stall at `now`, and would not have without it: behind what is
    /// `queued`, in seconds and steps, for each of several prefills of as many steps, the longest first.
    pub(super) fn misses<const N: usize>(
        &mut self,
        now: Timestamp,
        queued: [f64; 2],
        prefills_s: [f64; N],
        steps: f64,
    ) -> [f64; N] {
        let since = self.known.map_or(now, |(since, ..)| since);
        let passed_s = now.seconds_since(since);
        let mut misses = self.near.misses(passed_s, queued, prefills_s, steps);
        // Nobody loses more than a second with every second.
        if queued[0] + prefills_s[0] > self.far_s - passed_s {
            let far = self.far.misses(passed_s, queued, prefills_s, steps);
            for (misses, far) in misses.iter_mut().zip(far) {
                *misses += far;
            }
        }
        misses
    }
}

/// Streams, packed by fours.
#[derive(Clone, Debug, Default)]
struct Streams {
    fours: Vec<Four>,
    count: usize,
    /// When a stall was last weighed, in seconds, the seconds and steps queued there then, and the misses they cause.
    queued: Option<(f64, [f64; 2])>,
    before: f32,
}

/// Four streams. What is no stream bears everything.
#[derive(Clone, Copy, Debug)]
struct Four {
    tpot_s: f32x4,
    /// Seconds each can stall and still meet its target so far, and how many more with every second that passes.
    slack_s: f32x4,
    slack_rate: f32x4,
    /// One over the mean of the seconds it will make up for before it ends.
    haste: f32x4,
    /// Seconds each will be behind for what is queued before a new prefill; less than none where it has some to spare.
    behind: f32x4,
}

const NOBODY: Four = Four {
    tpot_s: f32x4::ZERO,
    slack_s: f32x4::MAX,
    slack_rate: f32x4::ZERO,
    haste: f32x4::ZERO,
    behind: f32x4::MIN,
};

impl Streams {
    fn clear(&mut self) {
        self.fours.clear();
        self.count = 0;
        self.queued = None;
    }

    fn push(&mut self, tpot_s: f64, slack_s: f64, slack_rate: f64, haste: f64) {
        let lane = self.count % LANES;
        if lane == 0 {
            self.fours.push(NOBODY);
        }
        self.count += 1;
        if let Some(four) = self.fours.last_mut() {
            four.tpot_s.as_mut_array()[lane] = tpot_s as f32;
            four.slack_s.as_mut_array()[lane] = slack_s as f32;
            four.slack_rate.as_mut_array()[lane] = slack_rate as f32;
            four.haste.as_mut_array()[lane] = haste as f32;
        }
    }

    /// As [`Bearing::misses`], `passed_s` seconds after their slack was taken.
    ///
    /// A stream that is behind by y misses if it ends before it has made up for it; what is left of it is exponential, so
    /// the chance is 1 − e^(−y·haste).
    fn misses<const N: usize>(
        &mut self,
        passed_s: f64,
        queued: [f64; 2],
        prefills_s: [f64; N],
        steps: f64,
    ) -> [f64; N] {
        self.queue(passed_s, queued);
        let (prefills_s, steps) = (prefills_s.map(|seconds| seconds as f32), steps as f32);
        let mut kept = [f32x4::ZERO; N];
        for four in &self.fours {
            let yielded_s = four.tpot_s * steps;
            for (kept, prefill_s) in kept.iter_mut().zip(prefills_s) {
                let own = (prefill_s - yielded_s).fast_max(f32x4::ZERO);
                *kept += decay((four.behind + own).fast_max(f32x4::ZERO) * four.haste);
            }
        }
        kept.map(|kept| f64::from(self.before - kept.reduce_add()).max(0.0))
    }

    /// Works out how far what is queued puts every stream behind, unless that is known.
    fn queue(&mut self, passed_s: f64, queued: [f64; 2]) {
        if self.queued.replace((passed_s, queued)) == Some((passed_s, queued)) {
            return;
        }
        let [seconds, steps] = queued.map(|of| of as f32);
        let mut kept = f32x4::ZERO;
        for four in &mut self.fours {
            let slack_s = four.slack_s + four.slack_rate * passed_s as f32;
            let stalled_s = (seconds - four.tpot_s * steps).fast_max(f32x4::ZERO);
            four.behind = stalled_s - slack_s;
            kept += decay(four.behind.fast_max(f32x4::ZERO) * four.haste);
        }
        self.before = kept.reduce_add();
    }
}

/// Seconds a stream makes up for with every token.
pub(super) fn gain_s(tpot_s: f64, step_s: f64, utilisation: f64) -> f64 {
    let token_s = step_s / (1.0 - utilisation);
    tpot_s - token_s.min(0.9 * tpot_s)
}

/// One over the mean of the seconds a stream makes up for before it ends.
pub(super) fn haste(gain_s: f64, expected: f64) -> f64 {
    1.0 / (gain_s * expected.max(1.0))
}

/// e^−x for x ≥ 0, within one in a million of one. (Only sums and products: alike on every machine.)
pub(super) fn decay(x: f32x4) -> f32x4 {
    // Added to a small number, this leaves the nearest whole number in the last bits.
    const ROUND: f32 = 12_582_912.0;
    let halvings = (x * std::f32::consts::LOG2_E).fast_min(f32x4::splat(120.0));
    let rounded = halvings + ROUND;
    let whole = rounded.to_bits() - ROUND.to_bits();
    let part = (halvings - (rounded - ROUND)) * std::f32::consts::LN_2;
    // The series of e^−part, for a part of at most half of ln 2 either way.
    let rest = 1.0 / 24.0 - part * (1.0 / 120.0 - part * (1.0 / 720.0));
    let series = 1.0 - part * (1.0 - part * (0.5 - part * (1.0 / 6.0 - part * rest)));
    series * f32x4::from_bits((u32x4::splat(127) - whole) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_is_the_exponential() {
        let decay = |x: f32| decay(f32x4::splat(x)).to_array()[0];
        for step in 0..100_000 {
            let x = step as f32 / 500.0;
            let exact = (-f64::from(x)).exp();
            let error = (f64::from(decay(x)) - exact).abs();
            assert!(error < 1e-6, "e^-{x}: {} for {exact}", decay(x));
        }
        assert_eq!(decay(0.0).to_bits(), 1.0f32.to_bits());
        assert!(decay(f32::MAX) < 1e-30);
        assert!(decay(f32::INFINITY) < 1e-30);
    }
}
