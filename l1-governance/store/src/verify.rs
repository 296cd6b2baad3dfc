//! Checks a ledger file without owning it: while it runs, or after.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use governance_core::account::UnixMs;
use governance_core::ledger::{Auditor, Entry, Report};
use rusqlite::Connection;

use crate::error::OpenError;
use crate::{open, rows, schema};

const CHUNK: usize = 4096;

/// Why a check could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// There is no such file.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// It is no ledger of ours, or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A row cannot be read as one of ours.
    #[error("a row cannot be read; the file is damaged or was changed by hand")]
    Row(#[source] rusqlite::Error),
    /// The check was interrupted.
    #[error("the check stopped: {0}")]
    Stopped(String),
}

/// Checks every invariant of a ledger file, as of its last entry. Changes nothing.
pub fn verify_file(path: &Path) -> Result<Report, VerifyError> {
    verify_at(path, None)
}

/// As of `now`, or of the last entry.
pub(crate) fn verify_at(path: &Path, now: Option<UnixMs>) -> Result<Report, VerifyError> {
    if !path.exists() {
        return Err(VerifyError::Missing(path.to_owned()));
    }
    let connection = open::read_only(path).map_err(|error| open::explain(path, error))?;
    schema::check(path, &connection)?;
    // Every page is read once: mapping the file saves copying it.
    let mapped = connection.execute_batch("PRAGMA mmap_size = 8589934592");
    mapped.map_err(|error| open::explain(path, error))?;
    // One snapshot for all tables, however long it takes and whatever is written meanwhile.
    let transaction = connection
        .unchecked_transaction()
        .map_err(VerifyError::Row)?;
    check(&transaction, now).map_err(VerifyError::Row)
}

fn check(connection: &Connection, now: Option<UnixMs>) -> rusqlite::Result<Report> {
    let policies = rows::policies(connection)?;
    let now = now.map_or_else(|| last_instant(connection), Ok)?;
    let mut auditor = Auditor::new(now, &policies);
    let (send, receive) = sync_channel(4);
    // Reading rows and hashing them cost about the same, so each gets a core.
    let (read, mut auditor) = thread::scope(|scope| {
        let audit = scope.spawn(move || {
            audit_entries(&mut auditor, &receive);
            auditor
        });
        let read = read_entries(connection, &send);
        // Ends the audit.
        drop(send);
        (read, audit.join().expect("auditing values does not panic"))
    });
    read?;
    rows::for_each_attempt(connection, |id, state, due| auditor.attempt(id, state, due))?;
    rows::for_each_leg(connection, |leg| auditor.leg(leg))?;
    rows::for_each_window(connection, |window| auditor.window(window))?;
    Ok(auditor.finish())
}

fn last_instant(connection: &Connection) -> rusqlite::Result<UnixMs> {
    let at: i64 = connection.query_row(
        "SELECT coalesce(max(at), 0) FROM (SELECT at FROM entry ORDER BY seq DESC LIMIT 1)",
        [],
        |row| row.get(0),
    )?;
    Ok(UnixMs(u64::try_from(at).unwrap_or(0)))
}

fn read_entries(connection: &Connection, send: &SyncSender<Vec<Entry>>) -> rusqlite::Result<()> {
    let mut chunk = Vec::with_capacity(CHUNK);
    rows::entries(connection, |entry| {
        chunk.push(entry);
        if chunk.len() < CHUNK {
            return true;
        }
        let full = std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK));
        send.send(full).is_ok()
    })?;
    // The audit receives until the sender is gone.
    drop(send.send(chunk));
    Ok(())
}

fn audit_entries(auditor: &mut Auditor, receive: &Receiver<Vec<Entry>>) {
    while let Ok(chunk) = receive.recv() {
        for entry in &chunk {
            auditor.entry(entry, &entry.computed_hash());
        }
    }
}
