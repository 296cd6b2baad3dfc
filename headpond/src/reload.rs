//! The configuration file, read again at SIGHUP: flow control changes at once, everything else at the next start. A file
//! that is wrong, or changes more than that, is refused, and what was in force stays so.

use std::path::{Path, PathBuf};

use anyhow::bail;
use scheduler_proxy::SchedulerProxy;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::File;

/// Listens from the moment it exists: without it SIGHUP ends the process.
pub(crate) struct Reload {
    hangup: Signal,
    path: PathBuf,
    running: File,
}

impl Reload {
    /// Begins to listen; `running` is what the file said at the start.
    pub(crate) fn listen(path: &Path, running: File) -> anyhow::Result<Self> {
        let hash = hash(&running);
        tracing::info!(path = %path.display(), hash, "the configuration in force");
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            path: path.to_owned(),
            running,
        })
    }

    /// Follows the file. Never returns.
    pub(crate) async fn follow(mut self, scheduler: SchedulerProxy) {
        let path = self.path.display().to_string();
        while self.hangup.recv().await.is_some() {
            let result = match self.read_again(&scheduler) {
                Ok(true) => {
                    let hash = hash(&self.running);
                    tracing::info!(path, hash, "flow control follows the configuration file");
                    "applied"
                }
                Ok(false) => {
                    let hash = hash(&self.running);
                    tracing::info!(
                        path,
                        hash,
                        "the configuration file says what it said before"
                    );
                    "unchanged"
                }
                Err(error) => {
                    let hash = hash(&self.running);
                    let error = format!("{error:#}");
                    tracing::error!(
                        path,
                        hash,
                        error,
                        "the configuration file is refused; what was in force stays"
                    );
                    "refused"
                }
            };
            scheduler.note_reload(result);
        }
    }

    /// Whether anything changed.
    fn read_again(&mut self, scheduler: &SchedulerProxy) -> anyhow::Result<bool> {
        let file = File::read(&self.path)?;
        let checked = file.clone().check()?;
        if let Some(at) = difference(&fixed(&self.running), &fixed(&file)) {
            bail!("{at}: has changed; restart for it, since only flow control changes at once");
        }
        if difference(&plain(&self.running), &plain(&file)).is_none() {
            return Ok(false);
        }
        scheduler.reconfigure(checked.scheduling.flow);
        self.running = file;
        Ok(true)
    }
}

/// Names a configuration in logs: the same values, the same hash.
fn hash(file: &File) -> String {
    let text = plain(file).to_string();
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// All that takes a restart.
fn fixed(file: &File) -> Value {
    plain(&File {
        scheduling: file.scheduling.without_flow(),
        ..file.clone()
    })
}

fn plain(file: &File) -> Value {
    serde_json::to_value(file).expect("a configuration is plain data")
}

/// The path of the first value that differs.
fn difference(before: &Value, after: &Value) -> Option<String> {
    fn join(path: &str, rest: &str) -> String {
        if rest.is_empty() || rest.starts_with('[') {
            format!("{path}{rest}")
        } else {
            format!("{path}.{rest}")
        }
    }
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let names = before.keys().chain(after.keys());
            names.into_iter().find_map(|name| {
                let value = |object: &serde_json::Map<String, Value>| {
                    object.get(name).cloned().unwrap_or(Value::Null)
                };
                difference(&value(before), &value(after)).map(|rest| join(name, &rest))
            })
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => before
            .iter()
            .zip(after)
            .enumerate()
            .find_map(|(index, (before, after))| {
                difference(before, after).map(|rest| join(&format!("[{index}]"), &rest))
            }),
        (before, after) => (before != after).then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, after: &str) -> Option<String> {
        let file = |text| File::parse(text).expect("a configuration");
        difference(&fixed(&file(before)), &fixed(&file(after)))
    }

    #[test]
    fn only_flow_control_may_change() {
        let base = "scheduling: { room: 3, endpoints: [{ url: 'http://a:1' }] }";
        for (after, expected) in [
            (base, None),
            (
                "scheduling: { room: 3, endpoints: [{ url: 'http://a:1' }], fairness: strict, queue: { ttl_ms: 5 }, \
                 bands: [{ band: 1 }], other_bands: { ttl_ms: 7 }, wtu: { output: 3 }, quota: { wtu_per_s: 5 } }",
                None,
            ),
            (
                "scheduling: { room: 4, endpoints: [{ url: 'http://a:1' }] }",
                Some("scheduling.room"),
            ),
            (
                "scheduling: { room: 3, endpoints: [{ url: 'http://b:1' }] }",
                Some("scheduling.endpoints[0].url"),
            ),
            (
                "scheduling: { room: 3, endpoints: [{ url: 'http://a:1' }], queue: { comments_after_ms: 50 } }",
                Some("scheduling.queue.comments_after_ms"),
            ),
            (
                "listen: 127.0.0.1:1\nscheduling: { room: 3, endpoints: [{ url: 'http://a:1' }] }",
                Some("listen"),
            ),
        ] {
            assert_eq!(check(base, after).as_deref(), expected, "{after}");
        }
    }

    #[test]
    fn the_same_values_have_the_same_hash() {
        let of = |text| hash(&File::parse(text).expect("a configuration"));
        assert_eq!(
            of("scheduling: { room: 3 }"),
            of("# x\nscheduling:\n  room: 3\n")
        );
        assert_ne!(of("scheduling: { room: 3 }"), of("scheduling: { room: 4 }"));
    }
}
