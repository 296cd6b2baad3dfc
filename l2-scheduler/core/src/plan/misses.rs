//! Targets that running streams are expected to miss because a prefill is placed beside them.

use super::{Ask, Spot};
use crate::peers::SLACK_OF_BUCKET;
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
}

/// A prefill beside streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Seconds of what is queued before it, and of it.
    pub(super) seconds: [f64; 2],
    /// Steps of the same: each still yields a token.
    pub(super) steps: [f64; 2],
}

impl Stall {
    /// Net seconds that a stream which wants a token every `tpot_s` stands still: before it, and for it.
    fn of(&self, tpot_s: f64) -> [f64; 2] {
        let net = |at: usize| (self.seconds[at] - tpot_s * self.steps[at]).max(0.0);
        [net(0), net(1)]
    }
}

/// Streams weighed at once.
const LANES: usize = 4;
type Lanes = [f32; LANES];

/// What streams can bear, as of one moment: weighed for many requests, so kept in a form that takes few steps each.
#[derive(Clone, Debug, Default)]
pub(super) struct Bearing {
    streams: Vec<Four>,
    count: usize,
}

/// Four streams. What is no stream bears everything.
#[derive(Clone, Copy, Debug)]
struct Four {
    tpot_s: Lanes,
    /// Seconds each can stall and still meet its target so far.
    slack_s: Lanes,
    /// One over the mean of the seconds it will make up for before it ends.
    haste: Lanes,
}

const NOBODY: Four = Four {
    tpot_s: [0.0; LANES],
    slack_s: [f32::MAX; LANES],
    haste: [0.0; LANES],
};

impl Bearing {
    /// What streams can bear for a request of the band of `ask`: no band waits for the sake of lower ones. Prefills of others
    /// will go on taking their part of the time.
    pub(super) fn renew(&mut self, spot: &Spot, streams: &[Stream], ask: &Ask) {
        self.streams.clear();
        self.count = 0;
        for stream in streams {
            // Even undisturbed decoding is too slow for this one: no prefill can cost it its target.
            if spot.step_s >= stream.tpot_s || stream.band < ask.band.0 {
                continue;
            }
            let slack_s = stream.slack(spot.now, spot.step_s);
            let gain_s = gain_s(stream.tpot_s, spot.step_s, ask.utilisation);
            let lane = self.count % LANES;
            if lane == 0 {
                self.streams.push(NOBODY);
            }
            self.count += 1;
            let Some(four) = self.streams.last_mut() else {
                continue;
            };
            four.tpot_s[lane] = stream.tpot_s as f32;
            four.slack_s[lane] = slack_s as f32;
            four.haste[lane] = haste(gain_s, stream.expected) as f32;
        }
    }

    /// Expected number of streams that miss their target for a stall, and would not have without it.
    ///
    /// A stream that is behind by y misses if it ends before it has made up for it; what is left of it is exponential, so
    /// the chance is 1 − e^(−y·haste).
    fn misses(&self, stall: &Stall) -> f64 {
        let [queued, own] = stall.seconds.map(|seconds| seconds as f32);
        let [queued_steps, own_steps] = stall.steps.map(|steps| steps as f32);
        let mut sums = [0.0f32; LANES];
        for four in &self.streams {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let tpot_s = four.tpot_s[lane];
                let own = (own - tpot_s * own_steps).max(0.0);
                let behind = (queued - tpot_s * queued_steps).max(0.0) - four.slack_s[lane];
                let haste = four.haste[lane];
                let before = decay(behind.max(0.0) * haste);
                *sum += before - decay((behind + own).max(0.0) * haste);
            }
        }
        f64::from(sums.iter().sum::<f32>())
    }
}

impl Spot {
    /// Expected number of targets missed by computing `uncached` tokens in `prefill_s` behind what is queued here, beside
    /// streams of this `bearing`.
    pub(super) fn misses(
        &self,
        bearing: &Bearing,
        uncached: u32,
        prefill_s: f64,
        ask: &Ask,
    ) -> f64 {
        let stall = Stall {
            seconds: [self.queue_s, prefill_s],
            steps: [self.steps_left, self.model.steps(f64::from(uncached))],
        };
        bearing.misses(&stall) + self.misses_of_unseen(&stall, ask)
    }

    /// The same of those whose targets are taken to be like those of the request itself: what still prefills, and the
    /// streams of other schedulers.
    fn misses_of_unseen(&self, stall: &Stall, ask: &Ask) -> f64 {
        let [before, own] = stall.of(ask.tpot_s);
        if own <= 0.0 || self.step_s >= ask.tpot_s {
            return 0.0;
        }
        let haste = haste(gain_s(ask.tpot_s, self.step_s, ask.utilisation), ask.output);
        let more = |behind: f64| {
            let decay = |seconds: f64| f64::from(decay((seconds.max(0.0) * haste) as f32));
            decay(behind) - decay(behind + own)
        };
        // What still prefills has nothing to spare yet.
        let mut sum = self.prefilling * more(0.0);
        for (count, slack) in self.peer_slack.iter().zip(SLACK_OF_BUCKET) {
            if *count > 0 {
                sum += f64::from(*count) * more(before - slack);
            }
        }
        sum
    }
}

/// Seconds a stream makes up for with every token.
fn gain_s(tpot_s: f64, step_s: f64, utilisation: f64) -> f64 {
    let token_s = step_s / (1.0 - utilisation);
    tpot_s - token_s.min(0.9 * tpot_s)
}

fn haste(gain_s: f64, expected: f64) -> f64 {
    1.0 / (gain_s * expected.max(1.0))
}

/// e^−x for x ≥ 0, within one in a million of one. (Only sums and products, so that four streams are weighed at once, and
/// alike on every machine.)
fn decay(x: f32) -> f32 {
    // Added to a small number, this leaves the nearest whole number in the last bits.
    const ROUND: f32 = 12_582_912.0;
    let halvings = (x * std::f32::consts::LOG2_E).min(120.0);
    let rounded = halvings + ROUND;
    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits());
    let part = (halvings - (rounded - ROUND)) * std::f32::consts::LN_2;
    // The series of e^−part, for a part of at most half of ln 2 either way.
    let rest = 1.0 / 24.0 - part * (1.0 / 120.0 - part / 720.0);
    let series = 1.0 - part * (1.0 - part * (0.5 - part * (1.0 / 6.0 - part * rest)));
    series * f32::from_bits(127_u32.wrapping_sub(whole) << 23)
}

#[cfg(test)]
mod tests {
    use super::decay;

    #[test]
    fn decay_is_the_exponential() {
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
