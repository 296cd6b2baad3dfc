//! The other schedulers of the pool as written.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::file::is_name;
use super::origin::shown;
use super::{ConfigError, Origin, Peers, millis, refuse};

/// Schedulers of one pool at most, this one not counted.
pub(crate) const MOST_PEERS: usize = 64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PeersFile {
    urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    interval_ms: u64,
}

impl Default for PeersFile {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            key_file: None,
            name: None,
            interval_ms: 100,
        }
    }
}

impl PeersFile {
    pub(super) fn check(&self) -> Result<Peers, ConfigError> {
        if self.urls.len() > MOST_PEERS {
            let allowed = format!("at most {MOST_PEERS} other schedulers");
            return Err(refuse("peers.urls", self.urls.len(), allowed));
        }
        let mut urls = Vec::with_capacity(self.urls.len());
        for (index, url) in self.urls.iter().enumerate() {
            let at = format!("peers.urls[{index}]");
            let origin = Origin::parse(url).map_err(|why| refuse(&at, shown(url), why))?;
            if urls
                .iter()
                .any(|known: &Origin| known.is_same_place(&origin))
            {
                return Err(refuse(at, url, "an address that stands here once"));
            }
            urls.push(origin);
        }
        if self.key_file.is_none() && !urls.is_empty() {
            let allowed = "a file with the secret that all schedulers of the pool share";
            return Err(refuse("peers.key_file", format_args!("nothing"), allowed));
        }
        if let Some(name) = self.name.as_ref().filter(|name| !is_name(name)) {
            let allowed = "1 to 128 visible ASCII characters";
            return Err(refuse("peers.name", name, allowed));
        }
        Ok(Peers {
            urls,
            key_file: self.key_file.clone(),
            name: self.name.clone(),
            interval: millis("peers.interval_ms", self.interval_ms, 10, 400)?,
        })
    }
}
