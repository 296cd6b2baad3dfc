//! The way into an engine: what the HTTP side may do to the one task that owns its step model.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use engine_model::{Request, RequestId};
use tokio::sync::Notify;

use super::{
    config::EngineConfig, fault::Faults, flight::Flight, metrics::Metrics, record::Records,
};

mod task;

pub(super) use task::run;

/// The way into an engine: everything the HTTP side may do to it.
pub(super) struct Runner {
    pub(super) config: EngineConfig,
    pub(super) faults: Arc<Faults>,
    /// Locked for a push by requests and for a swap by the engine task between steps. Bounded by the
    /// number of open connections.
    inbox: Mutex<Inbox>,
    arrived: Notify,
    next_id: AtomicU64,
    /// Locked by the engine task when a step ends and by scrapes.
    metrics: Mutex<Metrics>,
    /// Locked when a request ends and by `/sim/usage`.
    records: Mutex<Records>,
}

#[derive(Default)]
struct Inbox {
    submissions: Vec<Submission>,
    aborts: Vec<RequestId>,
    reset_cache: bool,
    restart: bool,
    /// Sequences the step in progress had no room for.
    unplaced: u32,
    /// Sequences in the engine.
    inside: u32,
}

impl Inbox {
    /// Whether the queue may grow. A request that arrives during a step does not count as queued as long
    /// as the next step has a place for it.
    fn has_room(&self, queue_limit: u32, max_sequences: u32) -> bool {
        let arrived = self.submissions.len() as u32;
        if self.unplaced > 0 {
            return self.unplaced + arrived < queue_limit;
        }
        self.inside + arrived < max_sequences.saturating_add(queue_limit)
    }
}

/// A sequence on its way into the engine.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) flight: Arc<Flight>,
    pub(super) index: usize,
    pub(super) shape: Shape,
}

/// Facts of a request that only metrics ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) streaming: bool,
    pub(super) choices: u32,
    pub(super) max_tokens: u32,
    /// Ends because of its length and not by itself.
    pub(super) ends_by_length: bool,
}

/// The queue is as long as it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

impl Runner {
    pub(super) fn new(config: EngineConfig, faults: Arc<Faults>) -> Self {
        Self {
            metrics: Mutex::new(Metrics::new(unix_seconds())),
            config,
            faults,
            inbox: Mutex::default(),
            arrived: Notify::new(),
            next_id: AtomicU64::new(0),
            records: Mutex::default(),
        }
    }

    pub(super) fn next_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues sequences, all or none.
    pub(super) fn submit(&self, submissions: Vec<Submission>) -> Result<(), QueueFull> {
        let mut inbox = self.inbox();
        let max_sequences = self.config.step_model().max_sequences;
        if self
            .config
            .queue_limit
            .is_some_and(|limit| !inbox.has_room(limit, max_sequences))
        {
            drop(inbox);
            self.metrics().rejected += 1;
            return Err(QueueFull);
        }
        inbox.submissions.extend(submissions);
        drop(inbox);
        self.arrived.notify_one();
        Ok(())
    }

    pub(super) fn abort(&self, requests: &[RequestId]) {
        self.inbox().aborts.extend_from_slice(requests);
        self.arrived.notify_one();
    }

    pub(super) fn reset_cache(&self) {
        self.inbox().reset_cache = true;
        self.arrived.notify_one();
    }

    /// Begins again with an empty cache and no counters; everything in the engine is lost.
    pub(super) fn restart(&self) {
        self.inbox().restart = true;
        self.arrived.notify_one();
    }

    pub(super) fn metrics(&self) -> MutexGuard<'_, Metrics> {
        self.metrics
            .lock()
            .expect("nobody panics while holding the metrics")
    }

    pub(super) fn records(&self) -> MutexGuard<'_, Records> {
        self.records
            .lock()
            .expect("nobody panics while holding the records")
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox
            .lock()
            .expect("nobody panics while holding the inbox")
    }
}

pub(super) fn unix_seconds() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}
