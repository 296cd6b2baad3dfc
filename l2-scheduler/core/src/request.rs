//! A request as the scheduler sees it, and why it may be refused.

use std::sync::Arc;
use std::time::Duration;

use governance_context::{Band, FairnessId};
use serde::Serialize;

use crate::residency::Block;
use crate::{EndpointId, RequestKey, Timestamp};

/// Everything the choice of an endpoint needs to know of a request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The shell's name for it; comes back in exactly one output.
    pub key: RequestKey,
    /// Model (or adapter) name as engines know it.
    pub model: Arc<str>,
    /// Flow that shares fairly with others of its band.
    pub fairness: FairnessId,
    /// Priority; higher goes first where bands differ.
    pub band: Band,
    /// Share of its flow.
    pub weight: u32,
    /// Prompt size in tokens, counted or estimated; 0 takes the estimate of `blocks`.
    pub prompt_tokens: u64,
    /// Most tokens the answer can have; 0 when unknown.
    pub output_bound: u64,
    /// Chained hashes of the prompt's prefix, from [`crate::residency::BlockHasher`].
    pub blocks: Vec<Block>,
    /// Whether the answer comes token by token; otherwise its end is the first sign of life.
    pub streaming: bool,
    /// Bytes the request holds while it waits.
    pub bytes: u64,
    /// Expires in the queue then, if the band's own limit is not earlier.
    pub expires_at: Option<Timestamp>,
    /// What its answer should feel like; the band's where absent.
    pub targets: Targets,
    /// When it first arrived, where this is a later attempt.
    pub first_arrived: Option<Timestamp>,
    /// Endpoints that failed it already; avoided while any other is eligible.
    pub tried: Vec<EndpointId>,
}

/// Latency targets of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Time to the first token.
    pub ttft: Option<Duration>,
    /// Time per output token after the first.
    pub tpot: Option<Duration>,
}

/// Why a request was not dispatched, with what helps the client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// The outcome.
    pub kind: RefusalKind,
    /// When trying again makes sense: own backlog divided by own drain rate, with jitter.
    pub retry_after: Option<Duration>,
    /// Requests waiting in the pool at that moment.
    pub queue_length: usize,
    /// How long this request waited.
    pub waited: Duration,
    /// How long it would have waited, where that is why it is refused.
    pub predicted_wait: Option<Duration>,
}

/// The outcomes of a request other than its dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The queue has no place for it.
    QueueFull(Scope),
    /// It would be served too late: its target cannot be met any more, or the wait is longer than its time to live.
    QueueWait,
    /// A band below 0 found the pool saturated.
    Shed,
    /// Its flow or band has all the work it may have.
    OverQuota(Scope),
    /// It waited as long as it may.
    QueueExpired,
    /// A request of a higher band took its place.
    Displaced,
    /// No endpoint can serve it.
    NoEndpoint(EmptiedBy),
    /// The pool takes no new requests.
    ShuttingDown,
    /// The client left while it waited.
    ClientClosed,
}

impl RefusalKind {
    /// The stable error code.
    pub fn code(self) -> &'static str {
        match self {
            Self::QueueFull(_) => "queue_full",
            Self::QueueWait => "queue_wait",
            Self::Shed => "shed",
            Self::OverQuota(_) => "over_quota",
            Self::QueueExpired => "queue_expired",
            Self::Displaced => "displaced",
            Self::NoEndpoint(_) => "no_endpoint",
            Self::ShuttingDown => "shutting_down",
            Self::ClientClosed => "client_closed",
        }
    }
}

/// Whose limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The flow's.
    Flow,
    /// The band's.
    Band,
    /// The pool's.
    Pool,
}

/// The filter that left no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptiedBy {
    /// The pool has no endpoint at all.
    Pool,
    /// Every endpoint is draining.
    Draining,
    /// No endpoint serves the model.
    Model,
    /// The prompt fits no endpoint's context.
    Context,
    /// Every endpoint that could serve it is quarantined.
    Quarantine,
}

impl EmptiedBy {
    /// One sentence for error messages.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Pool => "the pool has no endpoint",
            Self::Draining => "every endpoint of the pool is draining",
            Self::Model => "no endpoint of the pool serves this model",
            Self::Context => "the prompt is longer than the context of every endpoint",
            Self::Quarantine => {
                "every endpoint that serves this model is quarantined after failures"
            }
        }
    }
}
