//! The HTTP shell of L2: a streaming reverse proxy. Which endpoint a request goes to is decided in `scheduler-core`.

mod answer;
mod body;
mod call;
pub mod config;
mod dispatcher;
mod entry;
mod events;
mod facts;
mod failure;
mod flight;
mod forward;
mod heard;
mod journey;
mod limit;
mod metrics;
mod models;
mod patience;
pub mod peers;
mod probe;
mod proxy;
mod records;
mod refusal;
mod relay;
mod trust;
mod upstream;
mod watch;

pub use body::{Body, BodyError};
pub use config::{Config, ConfigError};
pub use peers::{PeerKey, PeerKeyError};
pub use proxy::SchedulerProxy;
pub use trust::ANONYMOUS;
