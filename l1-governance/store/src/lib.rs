//! The ledger made durable: SQLite with group commit.
