//! The data directory: the ledger, and the secrets that this installation made for itself.

use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use governance_core::keys::{KeyText, Pepper};
use ledger_store::{Options, SqliteLedger};

use crate::random;
use crate::ready::write_private;

/// A directory of our own. A temporary one goes when this is dropped.
pub(crate) struct DataDir {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl DataDir {
    /// Uses or creates a directory, or makes a temporary one.
    pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = path {
            // It holds secrets and everybody's use: nobody else's to read.
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .with_context(|| format!("cannot create the data directory {}", path.display()))?;
            return Ok(Self {
                path: path.to_owned(),
                _temporary: None,
            });
        }
        let temporary = tempfile::Builder::new()
            .prefix("headpond-")
            .tempdir()
            .context("cannot create a temporary data directory; name one with --data-dir")?;
        Ok(Self {
            path: temporary.path().to_owned(),
            _temporary: Some(temporary),
        })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The database of the ledger in a data directory.
    pub(crate) fn ledger_file(path: &Path) -> PathBuf {
        path.join("ledger.db")
    }

    /// Opens the ledger and takes ownership of it.
    pub(crate) fn ledger(&self, patience: std::time::Duration) -> anyhow::Result<SqliteLedger> {
        let pepper = self.secret("pepper")?;
        let pepper: [u8; 32] = *blake3::hash(pepper.as_bytes()).as_bytes();
        let options = Options {
            patience,
            ..Options::new(Pepper(pepper))
        };
        let file = Self::ledger_file(&self.path);
        // SQLite gives the files beside it the same mode.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&file)
            .with_context(|| format!("cannot write the ledger {}", file.display()))?;
        SqliteLedger::open(&file, options).map_err(anyhow::Error::new)
    }

    /// A secret of this installation: made once, then read again.
    pub(crate) fn secret(&self, name: &str) -> anyhow::Result<String> {
        self.once(name, || {
            // Not a hash of anything: the type writes 256 bits as hexadecimal digits.
            Ok(blake3::Hash::from(random::bytes()?).to_string())
        })
    }

    /// A virtual key for a demonstration tenant: made once, then read again.
    pub(crate) fn key(&self, name: &str) -> anyhow::Result<String> {
        self.once(name, || {
            Ok(KeyText::generate(&random::bytes()?).reveal().to_owned())
        })
    }

    fn once(
        &self,
        name: &str,
        make: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<String> {
        let path = self.file(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = make()?;
                write_private(&path, text.as_bytes())?;
                Ok(text)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}
