//! What schedulers of one pool tell each other about the load they have put on its endpoints.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Another scheduler of the same pool, numbered by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PeerId(pub u64);

/// Upper edges of the slack buckets in seconds; the last bucket is open.
pub(crate) const SLACK_EDGES: [f64; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
/// The slack a stream of each bucket is taken to have, in seconds.
pub(crate) const SLACK_OF_BUCKET: [f64; 8] = [0.0, 0.125, 0.375, 0.75, 1.5, 3.0, 6.0, 16.0];
/// A vector older than this is worse than none.
pub(crate) const VECTOR_LIFE: Duration = Duration::from_millis(500);

/// Blocks in one vector; what is sent beyond them is not told, so that a vector stays small.
pub(crate) const MOST_TOLD: usize = 8192;

/// Nobody has more than this; larger numbers are errors or lies, and sums of them must not overflow.
pub(crate) const MOST_REQUESTS: u32 = 1_000_000;
const MOST_TOKENS: u64 = 1_000_000_000_000;
const MOST_AREA: u64 = 1_000_000_000_000_000_000;

impl EndpointLoad {
    /// The same within what an endpoint can have.
    pub(crate) fn bounded(self) -> Self {
        Self {
            prefilling: self.prefilling.min(MOST_REQUESTS),
            pending_tokens: self.pending_tokens.min(MOST_TOKENS),
            pending_double_area: self.pending_double_area.min(MOST_AREA),
            pending_context: self.pending_context.min(MOST_TOKENS),
            decoding: self.decoding.min(MOST_REQUESTS),
            decoding_context: self.decoding_context.min(MOST_TOKENS),
            slack: self.slack.map(|count| count.min(MOST_REQUESTS)),
            endpoint: self.endpoint,
        }
    }
}

/// What a vector says of endpoints it does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// There is no load on them.
    #[default]
    Whole,
    /// Nothing: what was said of them before still holds.
    Changed,
}

/// The load one scheduler has on endpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadVector {
    /// Whether the endpoints are all that have any load.
    #[serde(default)]
    pub extent: Extent,
    /// One entry per endpoint.
    pub endpoints: Vec<EndpointLoad>,
    /// Prompts it has sent since its last vector: each is told once.
    #[serde(default)]
    pub sent: Vec<SentPrompt>,
}

/// What one prompt leaves in the cache of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentPrompt {
    /// Name of the endpoint.
    pub endpoint: Arc<str>,
    /// Hash of every prefix and the token it ends at, as in [`crate::residency::Block`].
    pub blocks: Vec<(u64, u32)>,
}

/// The load of one scheduler on one endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointLoad {
    /// Name of the endpoint.
    pub endpoint: Arc<str>,
    /// Requests without a first token.
    pub prefilling: u32,
    /// Prompt tokens still to compute.
    pub pending_tokens: u64,
    /// Twice their attention area (pairs of a computed token and one it attends to).
    pub pending_double_area: u64,
    /// Prompt tokens (cached too) of what still prefills.
    pub pending_context: u64,
    /// Streams that decode.
    pub decoding: u32,
    /// Tokens of their context.
    pub decoding_context: u64,
    /// Streams by how long they may stall and still meet their target: at most 0, 0.25, 0.5, 1, 2, 4, 8 s, more.
    pub slack: [u32; 8],
}
