//! The ledger made durable: SQLite with group commit. It decides nothing; `governance_core::ledger` does.
//!
//! One thread owns the ledger and one owns the connection. Operations are decided as they come; what they
//! changed is written in one transaction while the next ones are being decided.

mod error;
mod hold;
mod keys;
mod open;
mod rows;
mod schema;
mod sqlite;
mod verify;
mod writer;

pub use error::{KeyError, OpenError, ReserveError, Unavailable};
pub use hold::Hold;
pub use keys::{By, KeyRecord, KeyRing, NewKey, ScopeChange};
pub use open::{Clock, Options, system_clock};
pub use sqlite::{Declaration, SqliteLedger};
pub use verify::{VerifyError, verify_file};
