//! The ledger made durable: SQLite with group commit. It decides nothing; `governance_core::ledger` does.
//!
//! The ledger stands behind a lock and is asked by whoever has a hold to take or to settle; one thread minds its time,
//! and one owns the connection. What was decided is written in one transaction while the next is being decided: at
//! once if somebody waits for it, else a few milliseconds later, together with what came in between.

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
