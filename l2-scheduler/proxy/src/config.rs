//! The `scheduling:` section: as checked ([`Config`]); as written it is a [`File`]. Holding a `Config` means it is valid.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use governance_context::PoolName;
use scheduler_core::Policy;
use scheduler_core::flow::FlowConfig;
use thiserror::Error;

mod file;
mod flow;
mod origin;
mod peers;
mod quota;
#[cfg(test)]
mod tests;

pub use file::{EndpointFile, File};
pub use origin::Origin;
pub(crate) use peers::MOST_PEERS;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A valid configuration of the scheduler.
#[derive(Debug, Clone)]
pub struct Config {
    /// The audience that contexts must name.
    pub pool: PoolName,
    pub policy: Policy,
    pub endpoints: Vec<Endpoint>,
    /// Who waits, for how long, and who goes first.
    pub flow: FlowConfig,
    /// What callers hear of their wait who want to.
    pub comments: Comments,
    /// The other schedulers of the pool.
    pub peers: Peers,
    /// Attempts in flight per endpoint; what is more waits here.
    pub room: u32,
    /// Attempts without a first token per endpoint.
    pub depth: u32,
    pub scrape: engine_telemetry::config::Config,
    /// Endpoints a request may be sent to before it is given up; at least one.
    pub attempts: u32,
    pub timeouts: Timeouts,
    pub untrusted: Untrusted,
    pub profile: Profile,
    /// Decision records kept; the oldest goes first.
    pub records: usize,
    /// Largest request body accepted over HTTP, in bytes.
    pub body_limit: usize,
    /// Idle connections kept per endpoint.
    pub idle_connections: usize,
}

/// One engine replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Identity and label; an address never leaves the process.
    pub name: String,
    pub origin: Origin,
    /// Where `/metrics` is.
    pub metrics: Origin,
    pub engine: Engine,
    /// Served models; empty: any.
    pub models: Vec<String>,
}

/// What an endpoint runs, as far as it is stated. Metrics pages are recognised by themselves; it decides whether the
/// models must be named, and is shown in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Auto,
    Vllm,
    Sglang,
}

impl Engine {
    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}

/// When and how often a caller who wants it is told of its wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comments {
    /// From arrival: until then a refusal keeps its status.
    pub after: Duration,
    pub every: Duration,
}

/// Other schedulers of the pool, and how they are told of this one's load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    pub urls: Vec<Origin>,
    /// Where the key is that all of them share.
    pub key_file: Option<PathBuf>,
    /// What this scheduler calls itself; otherwise chance decides at every start.
    pub name: Option<String>,
    pub interval: Duration,
}

/// How long the parts of an exchange may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    pub idle_connection: Duration,
    /// From dispatch to the first output of an attempt (the head of an answer that is not streamed).
    pub first_output: Duration,
    /// Between two pieces of an answer.
    pub silence: Duration,
    /// The same, at an endpoint that leaves a probe unanswered.
    pub hung_silence: Duration,
    /// For the whole body of a request over HTTP.
    pub body_read: Duration,
    /// Below this no silence counts as a hang.
    pub hang_floor: Duration,
}

/// What a request without a signed context is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untrusted {
    /// 401.
    Refuse,
    /// Served in the lowest band as `anonymous`.
    Lowest,
}

/// What is known of the engines before they have been observed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// Prefill tokens per second of an otherwise idle engine.
    pub peak_prefill: f64,
    /// Capacity of the KV cache in tokens, until the engine states it.
    pub kv_tokens: u64,
    /// Most tokens of one step (`max_num_batched_tokens`).
    pub batched_tokens: u32,
}

/// A value that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{path}: {value} is not allowed; use {allowed}")]
pub struct ConfigError {
    /// Path of the field, such as `scheduling.endpoints[1].url`.
    pub path: String,
    pub value: String,
    pub allowed: String,
}

impl Config {
    /// Checks a section as written.
    pub fn check(file: File) -> Result<Self, ConfigError> {
        file.check()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::check(File::default()).expect("the default values are allowed; a test checks it")
    }
}

fn refuse(
    path: impl fmt::Display,
    value: impl fmt::Debug,
    allowed: impl Into<String>,
) -> ConfigError {
    ConfigError {
        path: format!("scheduling.{path}"),
        value: format!("{value:?}"),
        allowed: allowed.into(),
    }
}

/// A whole number within limits that are part of the error.
fn within<N>(path: &str, value: N, low: N, high: N) -> Result<N, ConfigError>
where
    N: PartialOrd + Copy + fmt::Debug + fmt::Display,
{
    if low <= value && value <= high {
        Ok(value)
    } else {
        Err(refuse(
            path,
            value,
            format!("a number from {low} to {high}"),
        ))
    }
}

fn millis(path: &str, value: u64, low: u64, high: u64) -> Result<Duration, ConfigError> {
    within(path, value, low, high).map(Duration::from_millis)
}

fn endpoints(list: Vec<EndpointFile>) -> Result<Vec<Endpoint>, ConfigError> {
    let mut names = BTreeSet::new();
    let mut checked: Vec<Endpoint> = Vec::with_capacity(list.len());
    for (index, file) in list.into_iter().enumerate() {
        let endpoint = file.check(index)?;
        let same_place = |known: &Endpoint| known.origin.is_same_place(&endpoint.origin);
        // One engine that counts twice would get twice its work.
        if let Some(first) = checked.iter().position(same_place) {
            return Err(refuse(
                format_args!("endpoints[{index}].url"),
                endpoint.origin.to_string(),
                format!("an address that no other endpoint has: it is that of endpoints[{first}]"),
            ));
        }
        if !names.insert(endpoint.name.clone()) {
            return Err(refuse(
                format_args!("endpoints[{index}].name"),
                &endpoint.name,
                "a name that no other endpoint has",
            ));
        }
        checked.push(endpoint);
    }
    Ok(checked)
}
