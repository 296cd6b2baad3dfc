//! Opening a ledger: one owner, the right schema, rows that agree.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use governance_core::account::UnixMs;
use governance_core::keys::Pepper;
use governance_core::ledger::{Config, Ledger};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::OpenError;
use crate::keys::KeyRing;
use crate::{rows, schema};

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> UnixMs + Send + Sync>;

/// The wall clock.
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        UnixMs(u64::try_from(since.as_millis()).unwrap_or(0))
    })
}

/// Settings of a store.
#[derive(Clone)]
pub struct Options {
    /// How long a reservation may take, and how long a write may be under way before reservations are refused.
    pub patience: Duration,
    /// Most holds and queued operations at once.
    pub capacity: usize,
    /// How long what nobody waits for may stay unwritten, so that it is written together with what follows.
    pub linger: Duration,
    /// The secret keys are hashed under. Not stored in the database.
    pub pepper: Pepper,
    /// Where the time comes from.
    pub clock: Clock,
    /// Settings of the ledger.
    pub ledger: Config,
}

impl Options {
    /// The defaults: 50 ms of patience, 65,536 operations, 5 ms between writes.
    pub fn new(pepper: Pepper) -> Options {
        Options {
            patience: Duration::from_millis(50),
            capacity: 65_536,
            linger: Duration::from_millis(5),
            pepper,
            clock: system_clock(),
            ledger: Config::default(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("patience", &self.patience)
            .field("capacity", &self.capacity)
            .field("linger", &self.linger)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

/// An opened database.
pub(crate) struct Opened {
    pub(crate) ledger: Ledger,
    pub(crate) keys: KeyRing,
    pub(crate) writer: Connection,
    pub(crate) reader: Connection,
    /// Held as long as the ledger is owned; released by the kernel if the process dies.
    pub(crate) owner: File,
}

pub(crate) fn open(path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let owner = own(path)?;
    let fail = |error| explain(path, error);
    let mut writer = Connection::open(path).map_err(fail)?;
    schema::prepare(path, &mut writer)?;
    let snapshot = rows::load(&writer, options.ledger.remember).map_err(fail)?;
    let keys = rows::load_keys(&writer).map_err(fail)?;
    let ledger = Ledger::restore(options.ledger.clone(), snapshot).map_err(|source| {
        OpenError::Inconsistent {
            path: path.to_owned(),
            source,
        }
    })?;
    let reader = read_only(path).map_err(fail)?;
    Ok(Opened {
        ledger,
        keys,
        writer,
        reader,
        owner,
    })
}

/// A connection that cannot write.
pub(crate) fn read_only(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(1))?;
    Ok(connection)
}

/// The in-memory ledger is the truth between commits, so two processes on one database would both admit.
fn own(path: &Path) -> Result<File, OpenError> {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let io = |source: std::io::Error| OpenError::Io {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(PathBuf::from(lock))
        .map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

pub(crate) fn explain(path: &Path, error: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Locked { path },
        Some(ErrorCode::DiskFull) => OpenError::Full { path },
        // The shared memory beside the database does not fit: what else a full disk says.
        Some(ErrorCode::SystemIoFailure)
            if extended(&error) == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) =>
        {
            OpenError::Full { path }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => OpenError::Corrupt {
            path,
            why: error.to_string(),
        },
        _ if matches!(error, rusqlite::Error::FromSqlConversionFailure(..)) => OpenError::Corrupt {
            path,
            why: error.to_string(),
        },
        _ => OpenError::Io {
            path,
            source: Box::new(error),
        },
    }
}

fn extended(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn a_full_disk_is_told_however_sqlite_says_it() {
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_SHMSIZE] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let told = explain(Path::new("ledger.db"), error);
            assert!(matches!(told, OpenError::Full { .. }), "{code}: {told}");
        }
    }
}
