//! The whole proxy against scripted engines on real sockets.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod cardinality;
mod endurance;
mod entry;
mod flow;
mod front;
mod hangs;
mod peers;
mod relaying;
mod replaced;
mod retries;
mod rig;
mod simulated;
mod stub;
mod work;
