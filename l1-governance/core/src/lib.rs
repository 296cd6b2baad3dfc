//! L1 in values: what is stripped, what is priced, what is admitted, how the ledger moves. Pure.

pub mod account;
pub mod catalogue;
pub mod keys;
pub mod ledger;
pub mod limits;
pub mod objective;
pub mod price;
pub mod sanitize;
