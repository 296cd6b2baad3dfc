//! The whole system, as its users meet it: real processes, real sockets, real clients.

#![allow(
    clippy::panic,
    reason = "a test that cannot go on says why, also in what its cases share"
)]

mod aborts;
mod canary;
mod cli;
mod crash;
mod dice;
mod drain;
mod flow;
mod hard_cap;
mod load;
mod process;
mod sdk;
mod simulate;
mod site;
mod split;
mod start;
mod stub;
mod surface;
mod wire;
