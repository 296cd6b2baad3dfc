//! One attempt in flight.

use governance_context::FairnessId;

use crate::endpoint::ModelKey;
use crate::flow::queue::Charge;
use crate::residency::Footprint;
use crate::{BookingId, EndpointId, Timestamp};

/// What the pool keeps of a dispatched request until it ends.
#[derive(Debug)]
pub(crate) struct Booking {
    pub(crate) id: BookingId,
    pub(crate) endpoint: EndpointId,
    /// The incarnation of the endpoint it was sent to; a later one knows nothing of it.
    pub(crate) incarnation: u32,
    pub(crate) uncached: u32,
    pub(crate) cached: u32,
    /// Tokens of answer at most; 0 when unknown.
    pub(crate) output_bound: u32,
    pub(crate) output: u32,
    pub(crate) phase: Phase,
    pub(crate) streaming: bool,
    pub(crate) dispatched_at: Timestamp,
    pub(crate) first_token_at: Option<Timestamp>,
    /// Dispatch, or its last sign of life.
    pub(crate) last_at: Timestamp,
    /// Silent longer than this, it is overdue; in seconds.
    pub(crate) patience_s: f64,
    /// Whether it had its engine's prefill for itself at dispatch: then its time to first token teaches something.
    pub(crate) alone: bool,
    /// The endpoint hung and the shell was told to give this attempt up.
    pub(crate) abandoned: bool,
    /// Position in its endpoint's list.
    pub(crate) position: usize,
    /// Position among its endpoint's streams, once it decodes.
    pub(crate) stream: usize,
    pub(crate) band: i32,
    pub(crate) fairness: FairnessId,
    pub(crate) model: ModelKey,
    /// Seconds per output token it wants.
    pub(crate) tpot_s: f64,
    /// Output tokens expected of it.
    pub(crate) expected_output: f64,
    /// What its flow was charged; none once given back.
    pub(crate) charge: Option<Charge>,
    /// What it will have left in the cache of its engine.
    pub(crate) footprint: Footprint,
    /// Since when, and from which token, its steps have been pure decoding.
    pub(crate) calm: (Timestamp, u32),
    /// When an answer that does not stream is taken to have finished its prefill.
    pub(crate) prefill_timer: Option<Timestamp>,
}

/// Which resource of its engine an attempt holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Prefill,
    Decode,
}

impl Booking {
    /// Prompt and answer so far.
    pub(crate) fn context(&self) -> u64 {
        u64::from(self.uncached) + u64::from(self.cached) + u64::from(self.output)
    }

    /// Twice the attention area, as an integer: sums of it return to exactly zero.
    pub(crate) fn double_area(&self) -> u64 {
        let (u, c) = (u64::from(self.uncached), u64::from(self.cached));
        u * (2 * c + u)
    }

    pub(crate) fn overdue_at(&self) -> Timestamp {
        self.last_at.after_seconds(self.patience_s)
    }
}
