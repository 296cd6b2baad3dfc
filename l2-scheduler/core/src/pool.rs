//! The state machine of one pool: requests come in, wait their turn, and go to an endpoint that is booked in the same step.
//!
//! Invariants: every request that arrives leaves with exactly one outcome; sums of bookings are exactly zero when nothing
//! is in flight; after every step, whoever still waits could not have been dispatched.

mod attempts;
mod config;
mod dispatch;
mod event;
mod fleet;
mod health;
mod queue;
mod snapshot;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

pub use config::{EngineConfig, HealthConfig, PoolConfig, QueueConfig, ResidencyConfig};
pub use event::{AttemptEnd, EndpointSpec, Input, Output};
pub use snapshot::{EndpointSnapshot, EndpointState, PoolSnapshot, Saturation, SaturationCause};

use crate::cost::Calibration;
use crate::endpoint::booking::Booking;
use crate::endpoint::{Endpoint, ModelKey};
use crate::residency::Residency;
use crate::rng::Rng;
use crate::window::{WINDOW_S, Window};
use crate::{
    BookingId, EmptiedBy, EndpointId, Refusal, RefusalKind, Request, RequestKey, Timestamp,
};

use dispatch::{Changed, FIRST_MEAN_UNCACHED, Placement, Scratch};
use queue::{Queue, Waiting};
use timers::{Timer, Timers};

/// Bounds of the advice when to come back, in seconds.
const RETRY_AFTER: (f64, f64) = (1.0, 60.0);

/// The scheduler of one pool of interchangeable engines.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    rng: Rng,
    /// In the order of their ids.
    endpoints: Vec<Endpoint>,
    /// Index of the endpoint behind each cache of the prefix index.
    by_holder: Vec<Option<u32>>,
    classes: Vec<Class>,
    residency: Residency,
    bookings: FxHashMap<BookingId, Booking>,
    next_booking: u64,
    queue: Queue,
    timers: Timers,
    /// Seconds of prefill assigned lately.
    assigned: Window,
    /// Attempts that ended lately: the drain rate.
    ended: Window,
    /// Running mean of uncached tokens per dispatch.
    mean_uncached: f64,
    last_chosen: Option<EndpointId>,
    /// Distinguishes endpoints that used one id after the other.
    next_incarnation: u32,
    is_draining: bool,
    scratch: Scratch,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Class {
    name: Arc<str>,
    calibration: Calibration,
    /// First tokens seen of its engines.
    first_tokens: u32,
}

impl Pool {
    /// An empty pool. The same inputs with the same seed give the same outputs.
    pub fn new(config: PoolConfig, seed: u64) -> Self {
        Self {
            residency: Residency::new(config.residency.max_bytes),
            config,
            rng: Rng::new(seed),
            endpoints: Vec::new(),
            by_holder: Vec::new(),
            classes: Vec::new(),
            bookings: FxHashMap::default(),
            next_booking: 0,
            queue: Queue::default(),
            timers: Timers::default(),
            assigned: Window::default(),
            ended: Window::default(),
            mean_uncached: FIRST_MEAN_UNCACHED,
            last_chosen: None,
            next_incarnation: 0,
            is_draining: false,
            scratch: Scratch::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Something happened at `now`.
    pub fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::EndpointUp(spec) => self.endpoint_up(now, &spec),
            Input::EndpointDown(id) => self.endpoint_down(id),
            Input::Draining(id) => self.endpoint_draining(id),
            Input::Observed {
                endpoint,
                observation,
            } => self.observed(now, endpoint, &observation),
            Input::ScrapeFailed { endpoint } => self.scrape_failed(endpoint),
            Input::Arrive(request) => self.arrive(now, request),
            Input::Cancel(key) => self.cancel(now, key),
            Input::FirstToken(booking) => self.first_token(now, booking),
            Input::Progress {
                booking,
                output_tokens,
            } => self.progress(now, booking, output_tokens),
            Input::Finished { booking, end } => self.finished(now, booking, end),
            Input::Probed { endpoint, ok } => self.probed(now, endpoint, ok),
            Input::Drain => self.is_draining = true,
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Waiting(place) => self.waited_long(now, place),
                Timer::Prefilled(booking) => self.presume_prefilled(now, booking),
                Timer::Room(id) => self.widen_room(now, id),
                Timer::Probe(id) => self.probe(now, id),
                Timer::Hang(id) => self.look_for_hang(now, id),
            }
        }
    }

    /// When [`Pool::handle_timeout`] is wanted next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    /// What to do next, until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn arrive(&mut self, now: Timestamp, request: Box<Request>) {
        if self.queue.contains(request.key) {
            return;
        }
        let is_retry = !request.tried.is_empty();
        if self.is_draining && !is_retry {
            return self.refuse(request.key, RefusalKind::ShuttingDown, Duration::ZERO);
        }
        if request.expires_at.is_some_and(|at| at <= now) {
            return self.refuse(request.key, RefusalKind::QueueExpired, Duration::ZERO);
        }
        let model = ModelKey::new(&request.model);
        // Who waits for the same model goes first; who waits for another waits because its endpoints are full.
        let may_go = is_retry || self.queue.lane_length(model) == 0;
        let emptied_by = if may_go {
            match self.place_new(now, &request, model) {
                Placement::Dispatched => return,
                Placement::Full { .. } => None,
                Placement::Empty(filter) => Some(filter),
            }
        } else {
            self.emptied_by(&request, model)
        };
        match emptied_by {
            // Waiting would not help.
            Some(filter @ (EmptiedBy::Model | EmptiedBy::Context)) => {
                self.refuse(request.key, RefusalKind::NoEndpoint(filter), Duration::ZERO);
            }
            Some(EmptiedBy::Pool | EmptiedBy::Draining | EmptiedBy::Quarantine) | None => {
                self.enqueue(now, request, model);
                if !may_go {
                    // Those ahead may wait only because of their own history.
                    self.turn(now, Changed::Lane(model));
                }
            }
        }
    }

    fn enqueue(&mut self, now: Timestamp, request: Box<Request>, model: ModelKey) {
        let limits = &self.config.queue;
        let is_full = self.queue.len() >= limits.requests
            || self.queue.bytes().saturating_add(request.bytes) > limits.bytes;
        if is_full {
            return self.refuse(request.key, RefusalKind::QueueFull, Duration::ZERO);
        }
        let own = request.expires_at.unwrap_or(Timestamp::MAX);
        let expires = (now + limits.ttl).min(own);
        let look = expires.min(now + limits.no_endpoint_ttl);
        let position = self.queue.lane_length(model);
        let place = self.queue.push(Waiting {
            request,
            model,
            arrived: now,
            expires,
            position,
            timer: None,
        });
        self.set_waiting_timer(place, look);
    }

    fn set_waiting_timer(&mut self, place: u64, at: Timestamp) {
        if let Some(waiting) = self.queue.get_mut(place) {
            self.timers
                .set(&mut waiting.timer, Timer::Waiting(place), Some(at));
        }
    }

    /// A waiting request has reached its own end, or the time by which some endpoint must have appeared.
    fn waited_long(&mut self, now: Timestamp, place: u64) {
        if let Some(waiting) = self.queue.get_mut(place) {
            waiting.timer = None;
        }
        let Some(waiting) = self.queue.get(place) else {
            return;
        };
        let (expires, waited) = (waiting.expires, now.since(waiting.arrived));
        let kind = match self.emptied_by(&waiting.request, waiting.model) {
            Some(filter) => RefusalKind::NoEndpoint(filter),
            None if expires <= now => RefusalKind::QueueExpired,
            None => return self.set_waiting_timer(place, expires),
        };
        if let Some(waiting) = self.leave_queue(place) {
            self.refuse(waiting.request.key, kind, waited);
        }
    }

    fn cancel(&mut self, now: Timestamp, key: RequestKey) {
        if let Some(waiting) = self
            .queue
            .place_of(key)
            .and_then(|place| self.leave_queue(place))
        {
            self.refuse(key, RefusalKind::ClientClosed, now.since(waiting.arrived));
        }
    }

    fn leave_queue(&mut self, place: u64) -> Option<Waiting> {
        let mut waiting = self.queue.remove(place)?;
        self.timers
            .set(&mut waiting.timer, Timer::Waiting(place), None);
        Some(waiting)
    }

    fn refuse(&mut self, request: RequestKey, kind: RefusalKind, waited: Duration) {
        let queue_length = self.queue.len();
        let retry_after = match kind {
            RefusalKind::ClientClosed => None,
            RefusalKind::QueueFull
            | RefusalKind::QueueExpired
            | RefusalKind::NoEndpoint(_)
            | RefusalKind::ShuttingDown => Some(self.retry_after(queue_length)),
        };
        self.outputs.push_back(Output::Refuse {
            request,
            refusal: Refusal {
                kind,
                retry_after,
                queue_length,
                waited,
            },
        });
    }

    /// Own backlog divided by own drain rate, and up to half of that on top so that clients do not come back together.
    fn retry_after(&mut self, backlog: usize) -> Duration {
        let rate = self.ended.newest_sum() / WINDOW_S;
        let wait = if rate > 0.0 {
            (backlog + 1) as f64 / rate
        } else {
            RETRY_AFTER.0
        };
        let jitter = 1.0 + self.rng.unit() / 2.0;
        Duration::from_secs_f64(wait.clamp(RETRY_AFTER.0, RETRY_AFTER.1) * jitter)
    }
}
