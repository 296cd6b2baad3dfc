//! L2 in values: what is known of each engine, what it holds, what a request would cost there, and the [`Pool`] state
//! machine that decides. No clock, no socket, no task, no lock: time, seeds and ids are arguments.

mod cost;
mod decision;
mod endpoint;
mod filters;
mod ids;
mod observation;
mod policy;
mod pool;
mod request;
pub mod residency;
mod rng;
mod time;
mod window;

pub use decision::{Candidate, Decision, Filtered, Predicted, TieBreak};
pub use ids::{BookingId, EndpointId, RequestKey};
pub use observation::Observation;
pub use policy::{Policy, UnknownPolicy};
pub use pool::{
    AttemptEnd, EndpointSnapshot, EndpointSpec, EndpointState, EngineConfig, HealthConfig, Input,
    Output, Pool, PoolConfig, PoolSnapshot, QueueConfig, ResidencyConfig, Saturation,
    SaturationCause,
};
pub use request::{EmptiedBy, Refusal, RefusalKind, Request};
pub use time::Timestamp;
