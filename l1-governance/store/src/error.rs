//! What can go wrong, by what the caller would do about it.

use std::path::PathBuf;

use governance_core::keys::Beyond;
use governance_core::ledger::{DeclareError, Inconsistent, Refusal};

/// The ledger cannot answer; nothing was admitted. Strict tiers refuse with 503 `quota_unavailable`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Too many holds or operations are outstanding.
    #[error("the ledger has too many operations outstanding")]
    Busy,
    /// No answer in time; if the hold is granted after all it is released again.
    #[error("the ledger did not answer in time")]
    Slow,
    /// A write has been under way for longer than admission may wait.
    #[error("the ledger's disk does not answer")]
    Frozen,
    /// A write failed; the ledger is reading itself back.
    #[error("the ledger could not write: {0}")]
    Failed(String),
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

/// Why there is no hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// By the rules.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// For want of a ledger.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Why the ledger could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process owns it.
    #[error(
        "{path} is in use by another process; a ledger has one owner. Stop the other process, or give this one its own data directory"
    )]
    InUse {
        /// The database.
        path: PathBuf,
    },
    /// Another process holds SQLite's write lock.
    #[error("{path} is locked by another program; close it and try again")]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// Written by a newer version.
    #[error(
        "{path} has schema version {found}, newer than version {known} of this program; upgrade the program, schemas do not go back"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema version.
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    /// Not a ledger, or damaged.
    #[error(
        "{path} is damaged or is not a ledger: {why}. Restore it from a copy; `headpond ledger verify` says more"
    )]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The rows contradict each other.
    #[error("{path} contradicts itself; `headpond ledger verify` says where")]
    Inconsistent {
        /// The database.
        path: PathBuf,
        /// How.
        #[source]
        source: Inconsistent,
    },
    /// The disk is full.
    #[error("there is no room on the disk of {path}")]
    Full {
        /// The database.
        path: PathBuf,
    },
    /// Anything else the file system or SQLite says.
    #[error("{path} cannot be opened")]
    Io {
        /// The database.
        path: PathBuf,
        /// What it says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a change of keys or accounts was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is no such key.
    #[error("there is no such key")]
    NotFound,
    /// It was revoked or has expired, and does not come back.
    #[error("the key was revoked or has expired; it does not come back")]
    Over,
    /// Someone changed it in between.
    #[error("the key was changed in between; it is at version {0}")]
    Changed(u64),
    /// The one who asks may not do this themselves.
    #[error(transparent)]
    Beyond(#[from] Beyond),
    /// The key that asks is not valid.
    #[error("the key that asks for the change is not valid")]
    NoActor,
    /// A key with this public part exists with another secret.
    #[error("a different key with this public part exists")]
    Exists,
    /// The account does not fit.
    #[error(transparent)]
    Account(#[from] DeclareError),
    /// For want of a ledger.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}
