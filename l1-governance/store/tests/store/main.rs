//! The ledger on a real SQLite file: parallel, failing, killed, damaged.

mod crash;
mod damage;
mod desk;
mod failure;
mod keys;
mod ledger;
