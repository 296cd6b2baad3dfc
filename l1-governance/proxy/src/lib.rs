//! The HTTP shell of L1: accepts requests, judges them in a fixed order, reserves their largest
//! possible charge, passes them to L2 with a trusted context, meters the answer and settles.
//!
//! What is decided is decided in `governance-core`; what is durable is `ledger-store`'s. Here is
//! what needs sockets, clocks and tasks.
#![deny(missing_docs)]

mod access_log;
mod admin;
mod admission;
mod answer;
mod body;
mod call;
mod closing;
pub mod config;
mod cors;
mod ending;
mod exchange;
mod governance;
mod idempotency;
mod identity;
mod metered;
mod metrics;
mod models;
pub mod record;
mod respond;
mod room;
mod scheduler;
mod server;
mod shared;
mod sieve;
mod start;

pub use access_log::TARGET as ACCESS_LOG;
pub use body::{Body, BoxError};
pub use governance::Governance;
pub use scheduler::{Reached, RemoteConfigError, RemoteScheduler, Scheduler, Unreachable};
pub use server::serve;
pub use start::StartError;
