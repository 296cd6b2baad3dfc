//! Settings of a pool; every limit is finite by default.

use std::time::Duration;

use crate::Policy;
use crate::flow::FlowConfig;

/// Settings of one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolConfig {
    /// How endpoints are chosen.
    pub policy: Policy,
    /// Who waits, for how long, and who goes first.
    pub flow: FlowConfig,
    /// Room and first guesses for engines.
    pub engine: EngineConfig,
    /// The prefix index.
    pub residency: ResidencyConfig,
    /// Quarantine and hang detection.
    pub health: HealthConfig,
    /// Other schedulers of the pool.
    pub peers: PeersConfig,
}

/// What is told to other schedulers of the pool.
#[derive(Clone, Debug, Default)]
pub struct PeersConfig {
    /// The whole load is told so often; what changes much is told sooner. `None`: nothing is told.
    pub every: Option<Duration>,
}

/// What is assumed of an engine until it is known better.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most requests in flight per endpoint.
    pub room: u32,
    /// Peak prefill rate in tokens per second; every other parameter of the step model starts from it.
    pub prefill_rate: f64,
    /// Tokens per engine step (`max_num_batched_tokens`).
    pub batch_tokens: u32,
    /// Most requests without a first token per endpoint: what an engine has waiting inside.
    pub depth: u32,
    /// Metrics older than this no longer count; the endpoint is handicapped instead.
    pub stale_after: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            room: 256,
            prefill_rate: 10_000.0,
            batch_tokens: 8192,
            depth: 32,
            stale_after: Duration::from_secs(5),
        }
    }
}

/// Bounds of the prefix index.
#[derive(Clone, Debug)]
pub struct ResidencyConfig {
    /// KV capacity in tokens assumed until the engine tells its own.
    pub default_capacity_tokens: u64,
    /// Most bytes of the whole index.
    pub max_bytes: usize,
}

impl Default for ResidencyConfig {
    fn default() -> Self {
        Self {
            default_capacity_tokens: 400_000,
            max_bytes: 512 << 20,
        }
    }
}

/// When an endpoint is no longer trusted.
#[derive(Clone, Debug)]
pub struct HealthConfig {
    /// Failures in a row that quarantine an endpoint.
    pub failures: u32,
    /// First wait before a probe; doubles with every failed probe.
    pub backoff: Duration,
    /// Longest wait before a probe.
    pub max_backoff: Duration,
    /// Silence below this is never a hang.
    pub hang_floor: Duration,
    /// Silence beyond this multiple of the prediction is overdue.
    pub hang_factor: f64,
    /// Longest silence of an answer that does not stream when its size is unknown.
    pub whole_answer: Duration,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            failures: 3,
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            hang_floor: Duration::from_secs(2),
            hang_factor: 5.0,
            whole_answer: Duration::from_mins(2),
        }
    }
}
