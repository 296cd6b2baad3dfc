//! The ledger on a real SQLite file: parallel, failing, killed, damaged.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on stops"
)]

mod crash;
mod damage;
mod desk;
mod failure;
mod keys;
mod ledger;
mod migration;
