//! The whole system, as its users meet it: real processes, real sockets, real clients.

mod aborts;
mod cli;
mod crash;
mod dice;
mod drain;
mod hard_cap;
mod process;
mod sdk;
mod site;
mod split;
mod stub;
mod wire;
