//! The record of one dispatch: enough to answer "why this endpoint?" later.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::Policy;

/// Why a request went where it went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The policy that ranked the candidates.
    pub policy: Policy,
    /// Name of the chosen endpoint.
    pub chosen: Arc<str>,
    /// The chosen endpoint and its closest rivals, best first, at most 16.
    pub candidates: Vec<Candidate>,
    /// Endpoints left after the filters.
    pub eligible: u32,
    /// Endpoints each filter removed.
    pub filtered: Filtered,
    /// The best endpoint not chosen.
    pub runner_up: Option<Arc<str>>,
    /// Score of the runner-up minus that of the choice: seconds for predicted-cost, otherwise the policy's unit.
    /// Zero or slightly negative when a tie was broken.
    pub margin: Option<f64>,
    /// What broke a tie, if one had to be broken.
    pub tie: Option<TieBreak>,
    /// Price of duplicate work at that moment (the cost model's kappa).
    pub kappa: f64,
    /// What is expected of the chosen endpoint.
    pub predicted: Predicted,
    /// Time spent in the queue.
    pub waited: Duration,
    /// Requests for its model ahead of it when it arrived.
    pub queue_position: usize,
    /// What its turn rested on.
    pub turn: Turn,
}

/// Why a request went when it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Turn {
    /// The band it waited in: its own, or a higher one it was raised to.
    pub band: i32,
    /// It went before higher bands because its own had not had its guaranteed share.
    pub by_share: bool,
    /// Seconds left until its first token was wanted; below zero when it was late.
    pub slack_s: f64,
    /// Seconds per output token it was promised.
    pub tpot_s: f64,
    /// Output tokens expected of it.
    pub expected_output: f64,
    /// Targets of running streams it is expected to have cost.
    pub misses: f64,
    /// Later requests that went where it could have gone, while it was held back.
    pub passed: u32,
    /// Its band could not serve everybody in time, so flows were ordered by what they had had.
    pub overloaded: bool,
    /// Work its flow was charged with, in WTU.
    pub charged_wtu: f64,
}

/// One endpoint as the decision saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Endpoint name.
    pub endpoint: Arc<str>,
    /// What the policy ranked by; least wins.
    pub score: f64,
    /// Prompt tokens believed to be cached there.
    pub cached_tokens: u32,
    /// Prompt tokens it would have to compute.
    pub uncached_tokens: u32,
    /// Seconds until its prefill could start.
    pub queue_s: f64,
    /// Seconds its prefill would take.
    pub prefill_s: f64,
    /// Seconds for slowing others down.
    pub others_s: f64,
    /// Seconds for computing what is cached elsewhere.
    pub duplicate_s: f64,
    /// Seconds for its own slower decoding.
    pub decode_s: f64,
    /// Targets of running streams expected to be missed if it went there now; nothing where it was too dear to be weighed,
    /// or the policy does not weigh them. Each counts for three seconds, unless the engine had better rest.
    pub misses: Option<f64>,
    /// Seconds for which its engine had better only decode before, at three seconds each; then the score counts the misses
    /// that are left.
    pub rest_s: f64,
    /// Requests it works on or holds waiting.
    pub in_flight: u32,
    /// Tokens of context its decoding streams hold.
    pub context_tokens: u64,
    /// Share of its KV cache in use.
    pub kv_use: f64,
    /// Seconds added because its metrics are old.
    pub handicap_s: f64,
}

/// Endpoints removed per filter, in the order of the filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filtered {
    /// Draining.
    pub draining: u32,
    /// Does not serve the model.
    pub model: u32,
    /// Context too short.
    pub context: u32,
    /// Quarantined.
    pub quarantined: u32,
    /// Failed this request before.
    pub tried: u32,
    /// No room for another request.
    pub full: u32,
}

/// What decided between equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TieBreak {
    /// Most free KV cache.
    FreeKv,
    /// Rendezvous hash of the first block nobody else shares.
    Rendezvous,
    /// Seeded chance.
    Random,
}

/// Expectations at dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Predicted {
    /// Prompt tokens believed to be cached.
    pub cached_tokens: u32,
    /// Prompt tokens to compute.
    pub uncached_tokens: u32,
    /// Seconds of work ahead of it.
    pub queue_s: f64,
    /// Seconds of its own prefill.
    pub prefill_s: f64,
    /// Seconds to the first token.
    pub ttft_s: f64,
}
