//! One endpoint during one plan: its load, and what has been planned onto it.

use crate::Timestamp;
use crate::cost::{Offer, StepModel, attention_area};

#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// Index of the endpoint.
    pub(crate) index: u32,
    pub(crate) now: Timestamp,
    pub(crate) model: StepModel,
    /// How much slower than its class it is.
    pub(crate) pace: f64,
    pub(crate) decoding: f64,
    /// Tokens of context that decode.
    pub(crate) context: f64,
    /// What decoding adds to a step.
    pub(crate) over: f64,
    /// Seconds of a step that only decodes.
    pub(crate) step_s: f64,
    pub(crate) pending_tokens: f64,
    pub(crate) pending_area: f64,
    /// Requests without a first token, planned ones too.
    pub(crate) prefilling: f64,
    /// Seconds of work on the first of them that are done.
    pub(crate) done_s: f64,
    /// Own requests in flight, planned ones too.
    pub(crate) in_flight: u32,
    /// Requests of others.
    pub(crate) others: u32,
    pub(crate) places: u32,
    /// Most requests that may wait inside the engine.
    pub(crate) depth: u32,
    /// Memory that requests take, as a share of the sum of their contexts.
    pub(crate) sharing: f64,
    pub(crate) kv_used: f64,
    pub(crate) kv_capacity: f64,
    pub(crate) handicap_s: f64,
    pub(crate) peer_slack: [u32; 8],
    /// Seconds until a new prefill would start.
    pub(crate) queue_s: f64,
    /// Steps until then.
    pub(crate) steps_left: f64,
    /// Seconds to prefill one full step.
    pub(crate) full_step_s: f64,
    /// Somebody was passed over here often enough.
    pub(crate) is_reserved: bool,
}

impl Spot {
    /// Brings what follows from the rest up to date.
    pub(crate) fn settle(&mut self) {
        let all = self
            .model
            .prefill(self.pending_tokens, self.pending_area, self.over)
            * self.pace;
        self.queue_s = if self.pending_tokens > 0.0 {
            (all - self.done_s).max(0.0)
        } else {
            0.0
        };
        self.steps_left = if all > 0.0 {
            self.model.steps(self.pending_tokens) * self.queue_s / all
        } else {
            0.0
        };
    }

    pub(crate) fn prefill_s(&self, uncached: u32, cached: u32) -> f64 {
        self.model.prefill(
            f64::from(uncached),
            attention_area(uncached, cached),
            self.over,
        ) * self.pace
    }

    /// Seconds until the first token of a prefill of `prefill_s`, with some to spare.
    pub(crate) fn prudent_s(&self, prefill_s: f64) -> f64 {
        self.queue_s + super::SAFETY.0 * prefill_s + super::SAFETY.1
    }

    /// Seconds a step of one stream takes longer for the context of all.
    fn context_s(&self) -> f64 {
        self.model.per_context * self.context * self.pace
    }

    /// Memory a prompt takes: what is cached may be shared with others that run.
    fn memory(&self, uncached: u32, cached: u32) -> f64 {
        f64::from(uncached) + f64::from(cached) * self.sharing
    }

    /// What this endpoint offers a request whose prefill takes `prefill_s` there.
    pub(crate) fn offer(&self, prefill_s: f64) -> Offer {
        Offer {
            queue_s: self.queue_s,
            prefill_s,
            decoding: self.decoding,
            context_s: self.context_s(),
            handicap_s: self.handicap_s,
        }
    }

    /// Whether a prompt may go there now, with `gate` of a full step before it at most.
    pub(crate) fn is_open(&self, uncached: u32, cached: u32, gate: f64) -> bool {
        self.queue_s <= gate * self.full_step_s
            && self.in_flight < self.places
            && self.prefilling < f64::from(self.depth)
            && (self.kv_used + self.memory(uncached, cached) <= self.kv_capacity
                || self.in_flight == 0)
            && !self.is_reserved
    }

    /// A request is expected to go there, or has just gone.
    pub(crate) fn add(&mut self, uncached: u32, cached: u32) {
        self.pending_tokens += f64::from(uncached);
        self.pending_area += attention_area(uncached, cached);
        self.prefilling += 1.0;
        self.in_flight += 1;
        self.kv_used += self.memory(uncached, cached);
        self.settle();
    }

    /// Used share of its KV cache in whole percents: a difference nobody can feel decides nothing.
    pub(crate) fn kv_percent(&self) -> u32 {
        (self.kv_used / self.kv_capacity.max(1.0) * 100.0) as u32
    }

    /// How full it is, 0 to 1: backlog, memory, and requests that wait inside.
    pub(crate) fn saturation(&self) -> f64 {
        let backlog = self.queue_s / (super::GATE * self.full_step_s).max(1e-9);
        let memory = self.kv_used / self.kv_capacity.max(1.0);
        let waiting = self.prefilling / f64::from(self.depth.max(1));
        let places = f64::from(self.in_flight) / f64::from(self.places.max(1));
        backlog.max(memory).max(waiting).max(places).min(1.0)
    }
}
