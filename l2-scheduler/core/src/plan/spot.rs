//! One endpoint as the plan sees it: its load, and what has been planned onto it.

use crate::Timestamp;
use crate::cost::{Offer, StepModel, attention_area};
use crate::plan::GATE;

#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// Index of the endpoint.
    pub(crate) index: u32,
    /// As of when the rest holds.
    pub(crate) now: Timestamp,
    /// After this it is different even if nothing happens.
    pub(crate) holds_until: Timestamp,
    /// It is up, and trusted.
    pub(crate) is_ready: bool,
    pub(crate) name_hash: u64,
    pub(crate) class: u32,
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
    /// When the engine began with the first of them, and how many seconds that one takes.
    pub(crate) front: (Timestamp, f64),
    /// Uncached tokens of that one, and their attention area.
    pub(crate) front_work: (f64, f64),
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
    /// Seconds of everything that prefills.
    pub(crate) backlog_s: f64,
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
    /// What was learned of its class of engines reaches it.
    pub(crate) fn relearn(&mut self, model: StepModel) {
        self.model = model;
        self.over = model.over(self.decoding, self.context);
        self.step_s = model.decode_step(self.over) * self.pace;
        let (tokens, area) = self.front_work;
        self.front.1 = model.prefill(tokens, area, self.over) * self.pace;
        let full = model.batch;
        self.full_step_s = model.prefill(full, full * full / 2.0, self.over) * self.pace;
        self.settle();
    }

    /// Brings what follows from the load up to date.
    fn settle(&mut self) {
        self.backlog_s = self
            .model
            .prefill(self.pending_tokens, self.pending_area, self.over)
            * self.pace;
        self.advance(self.now);
    }

    /// Brings what follows from the time up to date.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        self.now = now;
        let (began, front_s) = self.front;
        let done_s = now.seconds_since(began).min(front_s);
        self.queue_s = (self.backlog_s - done_s).max(0.0);
        self.steps_left = if self.backlog_s > 0.0 {
            self.model.steps(self.pending_tokens) * self.queue_s / self.backlog_s
        } else {
            0.0
        };
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

    /// Used share of its KV cache.
    pub(crate) fn kv_use(&self) -> f64 {
        self.kv_used / self.kv_capacity
    }

    /// How full it is with `kv_use` but for its backlog, 0 to 1: memory, places, and requests that wait inside.
    pub(crate) fn fullness(&self, kv_use: f64) -> f64 {
        let waiting = self.prefilling / f64::from(self.depth.max(1));
        let places = f64::from(self.in_flight) / f64::from(self.places.max(1));
        kv_use.max(waiting).max(places).min(1.0)
    }

    /// Backlog that leaves no gate open, in seconds.
    pub(crate) fn full_backlog_s(&self) -> f64 {
        (GATE * self.full_step_s).max(1e-9)
    }

    /// How full it is, 0 to 1.
    pub(crate) fn saturation(&self) -> f64 {
        let backlog = self.queue_s / self.full_backlog_s();
        self.fullness(self.kv_use()).max(backlog).min(1.0)
    }

    /// Seconds to prefill so many tokens here.
    pub(crate) fn prefill_s(&self, uncached: u32, cached: u32) -> f64 {
        let area = attention_area(uncached, cached);
        self.model.prefill(f64::from(uncached), area, self.over) * self.pace
    }
}
