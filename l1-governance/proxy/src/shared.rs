//! What all requests of one L1 have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use governance_context::{AttemptId, RequestId, Work};
use governance_core::account::UnixMs;
use governance_core::limits::{self, Nanos};
use governance_core::price::Book;
use governance_core::sanitize::CacheKey;
use ledger_store::SqliteLedger;
use tokio::time::Instant;

use crate::closing::Closing;
use crate::config::Config;
use crate::idempotency::Running;
use crate::identity::Owners;
use crate::metrics::Metrics;
use crate::record::Ring;
use crate::room::Room;

/// Distinct tier A limits counted at once.
const LIMITS_IN_USE: usize = 100_000;

/// Asks L2 what became of an attempt.
pub(crate) type WorkDone = Box<dyn Fn(&AttemptId) -> Option<Work> + Send + Sync>;

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) ledger: SqliteLedger,
    pub(crate) book: Book,
    pub(crate) owners: Owners,
    pub(crate) running: Running,
    pub(crate) metrics: Metrics,
    pub(crate) ring: Ring,
    pub(crate) room: Room,
    pub(crate) cache_key: CacheKey,
    pub(crate) admin_token: Option<blake3::Hash>,
    pub(crate) work_done: WorkDone,
    /// A mutex: judging all limits of a request is one step of a microsecond, and the caller waits
    /// for the verdict anyway.
    limits: Mutex<limits::Table>,
    draining: AtomicBool,
    pub(crate) closing: Closing,
    started: Instant,
}

/// The parts a [`Shared`] is made of that come from elsewhere.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) ledger: SqliteLedger,
    pub(crate) book: Book,
    pub(crate) owners: Owners,
    pub(crate) cache_key: CacheKey,
    pub(crate) admin_token: Option<blake3::Hash>,
    pub(crate) work_done: WorkDone,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let tenants = parts
            .config
            .tenants
            .iter()
            .map(|tenant| tenant.name.as_str());
        Arc::new(Self {
            metrics: Metrics::new(tenants),
            ring: Ring::new(parts.config.decision_records),
            room: Room::new(parts.config.sizes.body),
            ledger: parts.ledger,
            book: parts.book,
            owners: parts.owners,
            running: Running::default(),
            cache_key: parts.cache_key,
            admin_token: parts.admin_token,
            work_done: parts.work_done,
            limits: Mutex::new(limits::Table::new(LIMITS_IN_USE)),
            draining: AtomicBool::new(false),
            closing: Closing::default(),
            started: Instant::now(),
            config: parts.config,
        })
    }

    /// Judges a request against the tier A limits of its path.
    pub(crate) fn admit(
        &self,
        limits: &[limits::Limit],
    ) -> Result<limits::Admitted, limits::Refused> {
        let now = self.nanos();
        self.limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(now, limits, 1)
    }

    pub(crate) fn release(&self, admitted: limits::Admitted) {
        self.limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .release(admitted);
    }

    /// The request rate with the least left.
    pub(crate) fn tightest(&self, limits: &[limits::Limit]) -> Option<limits::Standing> {
        let table = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.nanos();
        let standings = limits.iter().map(|limit| table.standing(now, limit));
        standings.min_by_key(|standing| standing.remaining)
    }

    pub(crate) fn standing(&self, limit: &limits::Limit) -> limits::Standing {
        let table = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        table.standing(self.nanos(), limit)
    }

    pub(crate) fn refuse_new(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    fn nanos(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

pub(crate) fn unix_ms() -> UnixMs {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn new_request_id() -> RequestId {
    RequestId::new(unix_ms().0, rand::random())
}

pub(crate) fn new_attempt_id() -> AttemptId {
    AttemptId::new(unix_ms().0, rand::random())
}
