//! The whole proxy against scripted engines on real sockets.
#![allow(clippy::panic, reason = "a test fails by panicking")]

mod endurance;
mod entry;
mod flow;
mod front;
mod hangs;
mod peers;
mod relaying;
mod retries;
mod rig;
mod simulated;
mod stub;
mod work;
