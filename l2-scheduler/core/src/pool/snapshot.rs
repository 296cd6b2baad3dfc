//! The state of a pool for metrics and people.

use std::sync::Arc;

use serde::Serialize;

use crate::EndpointId;

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolSnapshot {
    /// Every endpoint known, by id.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Requests waiting.
    pub queue_length: usize,
    /// Bytes held by waiting requests.
    pub queue_bytes: u64,
    /// Attempts in flight.
    pub bookings: usize,
    /// How full the pool is, and why.
    pub saturation: Saturation,
    /// (block, endpoint) pairs in the prefix index.
    pub index_pairs: usize,
    /// Bytes of the prefix index.
    pub index_bytes: usize,
}

/// How full a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saturation {
    /// What the value rests on.
    pub cause: SaturationCause,
    /// Mean over endpoints of the larger of room taken and KV taken, 0 to 1; 1 without endpoints.
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
