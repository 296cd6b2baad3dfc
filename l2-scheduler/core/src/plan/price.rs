//! What a plan takes of every endpoint, packed by how often: for every request of a turn, or once.

use super::Spot;
use super::spot::queue_s;
use crate::Timestamp;
use crate::cost::{Work, harm};

/// What a predicted prefill may take longer: a factor, and seconds.
const SAFETY: (f64, f64) = (1.3, 0.3);

/// What the cost of a place depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    /// Seconds until a new prefill would start.
    pub(super) queue_s: f64,
    /// Seconds that do not depend on the prompt: own decode slow-down, old metrics.
    fixed_s: f64,
    pace: f64,
    /// Seconds of one step besides its tokens.
    step_s: f64,
    /// Seconds that a second of prefill costs itself and others.
    weight: f64,
    pub(super) class: u32,
}

impl Price {
    pub(super) fn of(spot: &Spot) -> Self {
        let rest = spot.offer(0.0);
        Self {
            queue_s: spot.queue_s,
            fixed_s: rest.decode_s() + rest.handicap_s,
            pace: spot.pace,
            step_s: (spot.model.fix + spot.over) * spot.pace,
            weight: 1.0 + harm(spot.decoding),
            class: spot.class,
        }
    }

    pub(super) fn prefill_s(&self, work: Work) -> f64 {
        work.tokens_s * self.pace + work.steps * self.step_s
    }

    /// Seconds until the first token of a prefill of `prefill_s`, with some to spare.
    pub(super) fn prudent_s(&self, prefill_s: f64) -> f64 {
        self.queue_s + SAFETY.0 * prefill_s + SAFETY.1
    }

    /// The cost model's sum, but for what a prefill elsewhere would have saved.
    pub(super) fn cost(&self, prefill_s: f64, kappa: f64) -> f64 {
        self.queue_s + self.fixed_s + prefill_s * (self.weight + kappa)
    }
}

/// What time changes, what sums over the pool take, and what tells equals apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) holds_until: Timestamp,
    backlog_s: f64,
    front: (Timestamp, f64),
    pub(super) is_ready: bool,
    /// Used share of its KV cache.
    pub(super) kv_use: f64,
    fullness: f64,
    full_backlog_s: f64,
    pub(super) name_hash: u64,
}

impl Clock {
    pub(super) fn of(spot: &Spot) -> Self {
        Self {
            holds_until: spot.holds_until,
            backlog_s: spot.backlog_s,
            front: spot.front,
            is_ready: spot.is_ready,
            kv_use: spot.kv_use(),
            fullness: spot.fullness(),
            full_backlog_s: spot.full_backlog_s(),
            name_hash: spot.name_hash,
        }
    }

    pub(super) fn queue_s(&self, now: Timestamp) -> f64 {
        queue_s(now, self.backlog_s, self.front)
    }

    /// Used share of its KV cache in whole percents: a difference nobody can feel decides nothing.
    pub(super) fn kv_percent(&self) -> u32 {
        (self.kv_use * 100.0) as u32
    }

    /// How full it is with `queue_s` of backlog, 0 to 1.
    pub(super) fn saturation(&self, queue_s: f64) -> f64 {
        self.fullness.max(queue_s / self.full_backlog_s).min(1.0)
    }
}
