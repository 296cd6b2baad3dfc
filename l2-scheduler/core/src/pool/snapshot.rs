//! The state of a pool for metrics and people.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::{EndpointId, RequestKey};

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolSnapshot {
    /// Every endpoint known, by id.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Requests waiting.
    pub queue_length: usize,
    /// Bytes held by waiting requests.
    pub queue_bytes: u64,
    /// Bands with anything waiting or running, highest first.
    pub bands: Vec<BandSnapshot>,
    /// The flows with most waiting, then most running, at most 64.
    pub flows: Vec<FlowSnapshot>,
    /// Flows with anything waiting or running.
    pub active_flows: usize,
    /// Other schedulers heard of in the last ten seconds.
    pub peers: usize,
    /// Seconds since the newest word of another scheduler.
    pub peer_silence_s: Option<f64>,
    /// Attempts in flight.
    pub bookings: usize,
    /// How full the pool is, and why.
    pub saturation: Saturation,
    /// (block, endpoint) pairs in the prefix index.
    pub index_pairs: usize,
    /// Bytes of the prefix index.
    pub index_bytes: usize,
}

/// One band at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BandSnapshot {
    /// Priority.
    pub band: i32,
    /// Requests waiting.
    pub waiting: usize,
    /// Bytes held by them.
    pub waiting_bytes: u64,
    /// Work that waits, in WTU.
    pub waiting_wtu: f64,
    /// Attempts in flight.
    pub running: usize,
    /// Work in flight, in WTU.
    pub running_wtu: f64,
    /// Not everybody can be served in time: flows are ordered by what they have had.
    pub overloaded: bool,
    /// Waits have been too long for too long: inside flows the newest goes first.
    pub newest_first: bool,
    /// Over its quota.
    pub over_quota: bool,
}

/// One flow of one band at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowSnapshot {
    /// Priority of its band.
    pub band: i32,
    /// Fairness id.
    pub flow: String,
    /// Requests waiting.
    pub waiting: usize,
    /// Attempts in flight.
    pub running: usize,
    /// Work in flight, in WTU.
    pub running_wtu: f64,
    /// Over its quota.
    pub over_quota: bool,
}

/// The place in line of one waiting request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queued {
    /// The request.
    pub request: RequestKey,
    /// Requests for its model that would go before it.
    pub position: usize,
    /// When it would go at the present rate, where that is known.
    pub wait: Option<Duration>,
}

/// How full a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saturation {
    /// What the value rests on.
    pub cause: SaturationCause,
    /// Mean over endpoints of the largest of backlog, KV, waiting and places taken, each as a share of what is allowed; 0 to
    /// 1, and 1 without endpoints.
    pub value: f64,
}

/// What a saturation rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SaturationCause {
    /// Measured load.
    Load,
    /// Own bookings only: no endpoint has fresh metrics.
    NoData,
    /// Nothing could serve a request.
    NoEndpoint,
}

/// One endpoint at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EndpointSnapshot {
    /// The shell's id.
    pub id: EndpointId,
    /// Its name.
    pub name: Arc<str>,
    /// Whether it takes requests.
    pub state: EndpointState,
    /// Own attempts in flight.
    pub bookings: u32,
    /// Own attempts without a first token.
    pub prefilling: u32,
    /// Prompt tokens still to compute for own attempts.
    pub pending_tokens: u64,
    /// Context tokens of own attempts that decode.
    pub context_tokens: u64,
    /// Requests in flight with what the last scrape shows of others.
    pub effective_load: u32,
    /// Most requests in flight at present (lower than configured after busy answers).
    pub room: u32,
    /// Share of the KV cache in use, as far as known.
    pub kv_use: f64,
    /// Seconds since the last scrape.
    pub metrics_age_s: Option<f64>,
    /// Tokens of prefixes believed to be cached.
    pub resident_tokens: u64,
    /// Seconds predicted until a new prompt would start.
    pub queue_s: f64,
}

/// Whether an endpoint takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointState {
    /// It does.
    Ready,
    /// It finishes what it has.
    Draining,
    /// It failed or hung and waits for a probe.
    Quarantined,
    /// It is gone; attempts in flight have not ended yet.
    Gone,
}
