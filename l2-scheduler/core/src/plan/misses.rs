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

/// Chance that a stream ends before it has made up for being `late_s` behind, when it gains `gain_s` with every token and
/// the rest of it is exponential with mean `expected`.
fn miss(late_s: f64, gain_s: f64, expected: f64) -> f64 {
    if late_s <= 0.0 {
        0.0
    } else {
        1.0 - (-late_s / (gain_s * expected.max(1.0))).exp()
    }
}

impl Spot {
    /// Whether even undisturbed decoding is too slow for this target: then no prefill can cost it.
    fn is_hopeless(&self, tpot_s: f64) -> bool {
        self.step_s >= tpot_s
    }

    /// Expected number of targets missed by computing `uncached` tokens in `prefill_s` behind what is queued here.
    pub(crate) fn misses(
        &self,
        streams: &[Stream],
        uncached: u32,
        prefill_s: f64,
        ask: &Ask,
    ) -> f64 {
        let steps = self.model.steps(f64::from(uncached));
        // Every step of the prefill still yields a token.
        let stall = |tpot_s: f64| (prefill_s - tpot_s * steps).max(0.0);
        let before = |tpot_s: f64| (self.queue_s - tpot_s * self.steps_left).max(0.0);
        // Prefills of others will go on taking their part of the time.
        let token_s = self.step_s / (1.0 - ask.utilisation);
        let gain = |tpot_s: f64| tpot_s - token_s.min(0.9 * tpot_s);
        let mut sum = 0.0;
        for stream in streams {
            // A band does not wait for the sake of lower ones.
            if stream.band < ask.band.0 || self.is_hopeless(stream.tpot_s) {
                continue;
            }
            let (stall, before) = (stall(stream.tpot_s), before(stream.tpot_s));
            let slack = stream.slack(self.now, self.step_s);
            if stall <= 0.0 || slack >= before + stall {
                continue;
            }
            let gain = gain(stream.tpot_s);
            sum += miss(before + stall - slack, gain, stream.expected)
                - miss(before - slack, gain, stream.expected);
        }
        let (stall, before) = (stall(ask.tpot_s), before(ask.tpot_s));
        if stall > 0.0 && !self.is_hopeless(ask.tpot_s) {
            let gain = gain(ask.tpot_s);
            // What still prefills has nothing to spare yet.
            sum += self.prefilling * miss(stall, gain, ask.output);
            for (count, slack) in self.peer_slack.iter().zip(SLACK_OF_BUCKET) {
                if *count > 0 {
                    let more = miss(before + stall - slack, gain, ask.output)
                        - miss(before - slack, gain, ask.output);
                    sum += f64::from(*count) * more;
                }
            }
        }
        sum
    }
}
