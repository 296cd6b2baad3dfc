//! The tables, and the way from older ones to them. Forward only.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use crate::error::OpenError;
use crate::open::explain;

/// `HPLG`: tells a ledger from any other SQLite file.
const APPLICATION_ID: i64 = 0x4850_4C47;

/// Step n brings version n to n + 1. Never edited once released, only added to.
const MIGRATIONS: [&str; 2] = [
    include_str!("schema/0001_ledger.sql"),
    include_str!("schema/0002_key_objective.sql"),
];

/// Brings a database to the newest version and sets the connection up for durable writing.
pub(crate) fn prepare(path: &Path, connection: &mut Connection) -> Result<(), OpenError> {
    let fail = |error| explain(path, error);
    connection
        .busy_timeout(Duration::from_millis(250))
        .map_err(fail)?;
    check(path, connection)?;
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;")
        .map_err(fail)?;
    migrate(connection).map_err(fail)
}

/// Refuses what is not a ledger or is newer than this program. Changes nothing.
pub(crate) fn check(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    let pragma = |name: &str| {
        connection
            .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
            .map_err(|error| explain(path, error))
    };
    let (found, application, tables) = (
        pragma("user_version")?,
        pragma("application_id")?,
        pragma("schema_version")?,
    );
    let known = i64::try_from(MIGRATIONS.len()).expect("a short list");
    if tables > 0 && application != APPLICATION_ID {
        return Err(OpenError::Corrupt {
            path: path.to_owned(),
            why: "it is a database of another program".to_owned(),
        });
    }
    if found > known {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    Ok(())
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: usize =
        transaction.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0))? as usize;
    for step in MIGRATIONS.iter().skip(version) {
        transaction.execute_batch(step)?;
    }
    let newest = MIGRATIONS.len();
    transaction.execute_batch(&format!(
        "PRAGMA user_version = {newest}; PRAGMA application_id = {APPLICATION_ID};"
    ))?;
    transaction.commit()
}
