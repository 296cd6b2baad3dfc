//! L2 in values: what is known of each engine, what it holds, what a request would cost there, and the [`Pool`] state
//! machine that decides. No clock, no socket, no task, no lock: time, seeds and ids are arguments.

mod cost;
mod decision;
mod endpoint;
mod filters;
pub mod flow;
mod ids;
mod observation;
mod peers;
mod plan;
mod policy;
mod pool;
mod request;
pub mod residency;
mod rng;
mod time;
mod window;

pub use decision::{Candidate, Decision, Filtered, Predicted, TieBreak, Turn};
pub use ids::{BookingId, EndpointId, RequestKey};
pub use observation::Observation;
pub use peers::{EndpointLoad, Extent, LoadVector, PeerId, SentPrompt};
pub use policy::{Policy, UnknownPolicy};
pub use pool::{
    AttemptEnd, BandSnapshot, EndpointSnapshot, EndpointSpec, EndpointState, EngineConfig,
    FlowSnapshot, HealthConfig, Input, Output, PeersConfig, Pool, PoolConfig, PoolSnapshot, Queued,
    ResidencyConfig, Saturation, SaturationCause,
};
pub use request::{EmptiedBy, Refusal, RefusalKind, Request, Scope, Targets};
pub use time::Timestamp;
