//! The thread that owns the connection: one transaction per job, in order.

use std::sync::mpsc::Receiver;

use governance_core::ledger::{Config, Ledger};
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
    Recovered(Result<Box<(Ledger, KeyRing)>, String>),
}

pub(super) fn run(
    mut connection: Connection,
    config: &Config,
    jobs: &Receiver<Job>,
    report: &Sender<Done>,
) {
    connection.set_prepared_statement_cache_capacity(32);
    while let Ok(job) = jobs.recv() {
        let done = match job {
            Job::Write(changes) => {
                Done::Wrote(write(&mut connection, &changes).map_err(|error| error.to_string()))
            }
            Job::Recover => Done::Recovered(recover(&mut connection, config)),
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

/// The ledger is read back here rather than by whoever decides: they would all wait for it.
fn recover(connection: &mut Connection, config: &Config) -> Result<Box<(Ledger, KeyRing)>, String> {
    let read = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        rows::write_probe(&transaction)?;
        transaction.commit()?;
        let snapshot = rows::load(connection, config.remember)?;
        Ok((snapshot, rows::load_keys(connection)?))
    };
    let (snapshot, keys) = read(connection).map_err(|error: rusqlite::Error| error.to_string())?;
    let ledger = Ledger::restore(config.clone(), snapshot).map_err(|error| error.to_string())?;
    Ok(Box::new((ledger, keys)))
}
