//! The whole system, as its users meet it: real processes, real sockets, real clients.

mod cli;
mod process;
mod sdk;
mod wire;
