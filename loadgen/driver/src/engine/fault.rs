//! Ways to break a simulated engine on command.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};

/// Something that goes wrong. Faults of requests strike every request that arrives while they are active;
/// the others strike the engine or its metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Nobody listens: connections are refused and those that are open end.
    Refuse,
    /// The process restarts: requests are cut, cache and counters are empty, nobody listens for a while.
    Restart {
        #[serde(default)]
        down_ms: u64,
    },
    /// The engine makes no step; health and metrics go on answering with what they knew.
    Stall,
    /// Every step takes this many times as long.
    Slow { factor: f64 },
    /// `/health` answers 503.
    Unhealthy,
    /// A request is accepted (headers included, if it streams) and never computed.
    HangBeforeFirstToken,
    /// A request goes silent after its first token.
    HangAfterFirstToken,
    /// The connection breaks after this many chunks of a stream; a whole answer never comes.
    Cut { chunks: u32 },
    /// 500 after this many generated tokens (0: at once, with no work done), with usage or without.
    InternalError {
        #[serde(default)]
        after_tokens: u32,
        usage: UsageReport,
    },
    /// An error object inside a 200 stream after this many chunks, then `[DONE]`.
    ErrorInStream { chunks: u32 },
    /// 503 as if the queue were full.
    Busy,
    /// `/metrics` repeats what it said first.
    MetricsFreeze,
    /// `/metrics` takes this long.
    MetricsSlow { delay_ms: u64 },
    /// `/metrics` closes the connection without an answer.
    MetricsDrop,
    /// `/metrics` ends in the middle of a line, with a `content-length` that was kept.
    MetricsTruncate,
    /// `/metrics` says the engine is idle.
    MetricsLie,
}

/// Whether an error says what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsageReport {
    Included,
    Missing,
}

/// How long a fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    UntilCleared,
    Until(Instant),
}

impl Lasting {
    pub(super) async fn over(self) {
        match self {
            Self::UntilCleared => std::future::pending().await,
            Self::Until(at) => tokio::time::sleep_until(at.into()).await,
        }
    }
}

/// What a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Listener,
    Engine,
    Health,
    Request,
    MetricsPage,
}

impl Fault {
    fn victim(self) -> Victim {
        match self {
            Self::Refuse | Self::Restart { .. } => Victim::Listener,
            Self::Stall | Self::Slow { .. } => Victim::Engine,
            Self::Unhealthy => Victim::Health,
            Self::HangBeforeFirstToken
            | Self::HangAfterFirstToken
            | Self::Cut { .. }
            | Self::InternalError { .. }
            | Self::ErrorInStream { .. }
            | Self::Busy => Victim::Request,
            Self::MetricsFreeze
            | Self::MetricsSlow { .. }
            | Self::MetricsDrop
            | Self::MetricsTruncate
            | Self::MetricsLie => Victim::MetricsPage,
        }
    }
}

/// What the accept loop must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listening {
    Stop,
    Resume,
    Restart { down: Duration },
}

#[derive(Clone, Copy, Debug)]
struct Active {
    fault: Fault,
    /// Requests left to strike.
    times: Option<u32>,
    lasting: Lasting,
}

impl Active {
    fn lasts(&self, now: Instant) -> bool {
        match self.lasting {
            Lasting::UntilCleared => true,
            Lasting::Until(until) => until > now,
        }
    }
}

/// The faults of one engine. Later faults win over earlier ones of the same kind.
#[derive(Debug)]
pub struct Faults {
    /// Locked for a few instructions by whoever asks or tells; nobody waits for changes of most faults,
    /// so a channel would only add a queue.
    active: Mutex<Vec<Active>>,
    listening: mpsc::Sender<Listening>,
    changed: Notify,
}

const MAX_ACTIVE: usize = 64;

impl Faults {
    pub(super) fn new(listening: mpsc::Sender<Listening>) -> Self {
        Self {
            active: Mutex::default(),
            listening,
            changed: Notify::new(),
        }
    }

    /// Until cleared.
    pub fn inject(&self, fault: Fault) {
        self.add(Active {
            fault,
            times: None,
            lasting: Lasting::UntilCleared,
        });
    }

    /// For the next `times` requests; meant for faults of requests.
    pub fn inject_times(&self, fault: Fault, times: u32) {
        self.add(Active {
            fault,
            times: Some(times),
            lasting: Lasting::UntilCleared,
        });
    }

    /// For a while.
    pub fn inject_for(&self, fault: Fault, duration: Duration) {
        self.add(Active {
            fault,
            times: None,
            lasting: Lasting::Until(Instant::now() + duration),
        });
    }

    /// Ends all faults.
    pub fn clear(&self) {
        self.lock().clear();
        self.tell(Listening::Resume);
        self.changed.notify_waiters();
    }

    fn add(&self, active: Active) {
        if let Fault::Restart { down_ms } = active.fault {
            return self.tell(Listening::Restart {
                down: Duration::from_millis(down_ms),
            });
        }
        if active.fault == Fault::Refuse {
            self.tell(Listening::Stop);
        }
        let mut all = self.lock();
        if all.len() == MAX_ACTIVE {
            all.remove(0);
        }
        all.push(active);
        drop(all);
        self.changed.notify_waiters();
    }

    fn tell(&self, listening: Listening) {
        // The accept loop drains this at once; when it is gone there is nothing left to stop.
        let _ = self.listening.try_send(listening);
    }

    /// The latest active fault that `wanted` accepts, with when it ends.
    fn latest<T>(&self, mut wanted: impl FnMut(Fault) -> Option<T>) -> Option<(T, Lasting)> {
        let now = Instant::now();
        let mut all = self.lock();
        all.retain(|a| a.lasts(now));
        all.iter()
            .rev()
            .find_map(|a| wanted(a.fault).map(|t| (t, a.lasting)))
    }

    /// What strikes a request that arrives now.
    pub(super) fn strike(&self) -> Option<Fault> {
        let now = Instant::now();
        let mut all = self.lock();
        all.retain(|a| a.lasts(now));
        let at = all
            .iter()
            .rposition(|a| a.fault.victim() == Victim::Request)?;
        let fault = all[at].fault;
        if let Some(times) = &mut all[at].times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                all.remove(at);
            }
        }
        Some(fault)
    }

    /// Whether the engine may not step, and until when it is known to last.
    pub(super) fn stalled(&self) -> Option<Lasting> {
        self.latest(|f| (f == Fault::Stall).then_some(()))
            .map(|((), lasting)| lasting)
    }

    pub(super) fn refusing(&self) -> Option<Lasting> {
        self.latest(|f| (f == Fault::Refuse).then_some(()))
            .map(|((), lasting)| lasting)
    }

    pub(super) fn slowness(&self) -> f64 {
        let factor = self.latest(|f| {
            if let Fault::Slow { factor } = f {
                Some(factor)
            } else {
                None
            }
        });
        factor.map_or(1.0, |(factor, _)| factor.max(0.0))
    }

    pub(super) fn is_unhealthy(&self) -> bool {
        self.latest(|f| (f == Fault::Unhealthy).then_some(()))
            .is_some()
    }

    /// What strikes the metrics page, in the order told.
    pub(super) fn metrics(&self) -> Vec<Fault> {
        let now = Instant::now();
        let all = self.lock();
        let live = all.iter().filter(|a| a.lasts(now)).map(|a| a.fault);
        live.filter(|f| f.victim() == Victim::MetricsPage).collect()
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Active>> {
        self.active
            .lock()
            .expect("nobody panics while holding the list of faults")
    }
}

/// Body of `POST /sim/fault`: a fault with how long it lasts, or `{"fault":"clear"}`.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Clear,
    Inject(Fault),
    Times(Fault, u32),
    For(Fault, Duration),
}

impl Command {
    pub(super) fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        let mut value: serde_json::Value = serde_json::from_slice(body)?;
        if value.get("fault").is_some_and(|f| f == "clear") {
            return Ok(Self::Clear);
        }
        let mut take = |name: &str| value.as_object_mut().and_then(|o| o.remove(name));
        let (times, for_ms) = (take("times"), take("for_ms"));
        let fault: Fault = serde_json::from_value(value)?;
        if let Some(times) = times {
            return Ok(Self::Times(fault, serde_json::from_value(times)?));
        }
        if let Some(for_ms) = for_ms {
            return Ok(Self::For(
                fault,
                Duration::from_millis(serde_json::from_value(for_ms)?),
            ));
        }
        Ok(Self::Inject(fault))
    }

    pub(super) fn apply(self, faults: &Faults) {
        match self {
            Self::Clear => faults.clear(),
            Self::Inject(fault) => faults.inject(fault),
            Self::Times(fault, times) => faults.inject_times(fault, times),
            Self::For(fault, duration) => faults.inject_for(fault, duration),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Faults {
        Faults::new(mpsc::channel(8).0)
    }

    #[test]
    fn commands_read_as_they_are_written() {
        let parse = |text: &str| Command::parse(text.as_bytes()).ok();
        for (text, command) in [
            (r#"{"fault":"clear"}"#, Some(Command::Clear)),
            (
                r#"{"fault":"refuse"}"#,
                Some(Command::Inject(Fault::Refuse)),
            ),
            (
                r#"{"fault":"cut","chunks":3,"times":1}"#,
                Some(Command::Times(Fault::Cut { chunks: 3 }, 1)),
            ),
            (
                r#"{"fault":"slow","factor":2.5,"for_ms":100}"#,
                Some(Command::For(
                    Fault::Slow { factor: 2.5 },
                    Duration::from_millis(100),
                )),
            ),
            (r#"{"fault":"explode"}"#, None),
            (r#"{"fault":"cut"}"#, None),
        ] {
            assert_eq!(parse(text), command, "{text}");
        }
    }

    #[test]
    fn a_fault_strikes_as_often_as_told() {
        let faults = faults();
        faults.inject_times(Fault::Busy, 2);
        assert_eq!(faults.strike(), Some(Fault::Busy));
        assert_eq!(faults.strike(), Some(Fault::Busy));
        assert_eq!(faults.strike(), None);
    }

    #[test]
    fn the_latest_fault_wins_until_all_are_cleared() {
        let faults = faults();
        faults.inject(Fault::Slow { factor: 2.0 });
        faults.inject(Fault::Slow { factor: 3.0 });
        assert!((faults.slowness() - 3.0).abs() < f64::EPSILON);
        faults.clear();
        assert!((faults.slowness() - 1.0).abs() < f64::EPSILON);
    }
}
