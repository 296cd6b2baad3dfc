//! The thread that owns the connection: one transaction per job, in order.

use std::sync::mpsc::Receiver;

use governance_core::ledger::Snapshot;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::mpsc::Sender;

use super::batch::Changes;
use crate::keys::KeyRing;
use crate::rows;

/// What the disk thread is asked to do.
pub(super) enum Job {
    Write(Changes),
    /// Read everything back after a failed write, and show that writing works again.
    Recover,
}

/// What it did.
pub(super) enum Done {
    Wrote(Result<(), String>),
    Recovered(Result<Box<(Snapshot, KeyRing)>, String>),
}

pub(super) fn run(
    mut connection: Connection,
    remember: usize,
    jobs: &Receiver<Job>,
    report: &Sender<Done>,
) {
    connection.set_prepared_statement_cache_capacity(32);
    while let Ok(job) = jobs.recv() {
        let done = match job {
            Job::Write(changes) => {
                Done::Wrote(write(&mut connection, &changes).map_err(|error| error.to_string()))
            }
            Job::Recover => Done::Recovered(
                recover(&mut connection, remember).map_err(|error| error.to_string()),
            ),
        };
        if report.blocking_send(done).is_err() {
            return;
        }
    }
}

fn write(connection: &mut Connection, changes: &Changes) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    rows::write(&transaction, &changes.effects)?;
    for key in &changes.keys {
        rows::write_key(&transaction, key)?;
    }
    transaction.commit()
}

fn recover(
    connection: &mut Connection,
    remember: usize,
) -> rusqlite::Result<Box<(Snapshot, KeyRing)>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    rows::write_probe(&transaction)?;
    transaction.commit()?;
    Ok(Box::new((
        rows::load(connection, remember)?,
        rows::load_keys(connection)?,
    )))
}
