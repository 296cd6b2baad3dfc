//! The whole system in front of real vLLM servers, which can disagree with every model of them in this repository.
//!
//! Built only with the feature `real-engine`. `scripts/test-real-engine` starts the servers and runs it; the tests take
//! turns, since each looks at counters that every request moves.

mod abort;
mod ask;
mod cache;
mod charge;
mod engines;
mod failure;
mod front;
mod observe;
#[path = "../whole/process.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the whole, which use the rest"
)]
mod process;
mod refuse;
mod routes;
mod stream;
#[path = "../whole/wire.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the whole, which use the rest"
)]
mod wire;
