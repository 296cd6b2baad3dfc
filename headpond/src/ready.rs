//! The ready file: written once requests are served, so that scripts need not parse a banner.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// What a script needs to talk to a running Headpond.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) url: String,
    pub(crate) admin_url: String,
    pub(crate) models: Vec<String>,
    pub(crate) tenants: Vec<ReadyTenant>,
    pub(crate) endpoints: Vec<String>,
}

/// A tenant and its keys.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ReadyTenant {
    pub(crate) name: String,
    /// The text of the first of its keys.
    pub(crate) key: String,
    /// All its keys that the configuration names, in its order.
    #[serde(default)]
    pub(crate) keys: Vec<ReadyKey>,
}

/// Which key it is, and where its text stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadyKey {
    pub(crate) project: String,
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) secret: ReadySecret,
}

/// As the configuration says it: `{ file: PATH }` or `{ env: NAME }`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReadySecret {
    File(PathBuf),
    Env(String),
}

impl std::fmt::Debug for ReadyTenant {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReadyTenant")
            .field("name", &self.name)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl Ready {
    /// Writes the file in one step: a reader sees nothing or all of it. It holds keys, so only
    /// its owner may read it.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("the ready file is plain data")?;
        write_private(path, text.as_bytes())
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the ready file {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a ready file of `headpond up`", path.display()))
    }
}

/// Replaces a file atomically with one that only its owner may read.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = Path::new(&name);
    let write = || {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
