//! What L1 decided about a request, as L2 may rely on it.

use serde::{Deserialize, Serialize};

use crate::ids::{
    AttemptId, CacheDomain, FairnessId, ObjectiveName, PathHash, PolicyVersion, PoolName,
    RequestId, TenantId,
};
use crate::units::{Band, MicroWtu};

/// Everything L2 needs to know about one attempt; decided by L1 from the authenticated identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The pool the attempt is for; a token for another pool is refused.
    pub pool: PoolName,
    /// This attempt; unique, so that a token cannot be used twice.
    pub attempt: AttemptId,
    /// The request the attempt belongs to.
    pub request: RequestId,
    /// Who asks.
    pub tenant: TenantId,
    /// Which accounts pay, without naming them.
    pub account_path: PathHash,
    /// The flow the request queues in.
    pub fairness: FairnessId,
    /// The flow's share relative to the other flows of its band; at least 1.
    pub weight: u32,
    /// The priority level.
    pub band: Band,
    /// The objective the band, waiting time and targets came from.
    pub objective: Option<ObjectiveName>,
    /// How long the caller is willing to wait for its turn, in milliseconds.
    pub ttl_ms: u64,
    /// Who said so.
    pub ttl_by: TtlSource,
    /// The latency the caller was promised.
    pub targets: Targets,
    /// Estimated prompt tokens.
    pub prompt_tokens: u64,
    /// The most output tokens the engine may generate, over all choices.
    pub output_bound: u64,
    /// The quota held for this attempt.
    pub held: MicroWtu,
    /// Whose prefix cache the request may share.
    pub cache_domain: CacheDomain,
    /// The policy snapshot all of this was decided with.
    pub policy_version: PolicyVersion,
}

/// Who said how long a request may wait for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TtlSource {
    /// Nobody for this request: it is what the gateway lets any wait, `governance.timeouts.queue`.
    Gateway,
    /// The objective in force.
    Objective,
    /// The tenant.
    Tenant,
    /// The project.
    Project,
    /// The key.
    Key,
    /// It is not told, or told in a word of a newer release.
    #[default]
    #[serde(other)]
    Unsaid,
}

impl TtlSource {
    /// Whether it is not told.
    pub fn is_unsaid(&self) -> bool {
        *self == Self::Unsaid
    }
}

/// Latency targets in milliseconds; absent means none was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Targets {
    /// Time to the first token.
    #[serde(rename = "ttft", default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u32>,
    /// Time per output token after the first.
    #[serde(rename = "tpot", default, skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<u32>,
}

impl Targets {
    /// Whether nothing was promised.
    pub fn is_empty(&self) -> bool {
        self.ttft_ms.is_none() && self.tpot_ms.is_none()
    }
}
