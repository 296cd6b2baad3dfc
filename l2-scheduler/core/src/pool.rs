//! The state machine of one pool: requests come in, wait their turn, and go to an endpoint that is booked in the same step.
//!
//! Invariants: every request that arrives leaves with exactly one outcome; sums of bookings are exactly zero when nothing
//! is in flight; after every turn, whoever still waits is held, or waits for an endpoint that is not open.

mod arrive;
mod attempts;
mod bind;
mod config;
mod consider;
mod dispatch;
mod event;
mod fleet;
mod health;
mod look;
mod peers;
mod snapshot;
mod store;
mod survey;
mod tell;
#[cfg(test)]
mod tests;
mod timers;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use governance_context::Band;
use rustc_hash::FxHashMap;

pub use config::{EngineConfig, HealthConfig, PeersConfig, PoolConfig, ResidencyConfig};
pub use event::{AttemptEnd, EndpointSpec, Input, Output};
pub use snapshot::{
    BandSnapshot, EndpointSnapshot, EndpointState, FlowSnapshot, PoolSnapshot, Queued, Saturation,
    SaturationCause,
};

use crate::cost::{Calibration, StepModel};
use crate::endpoint::booking::Booking;
use crate::endpoint::list::Endpoints;
use crate::flow::outputs::Outputs;
use crate::flow::queue::{Place, Queue};
use crate::residency::Residency;
use crate::rng::Rng;
use crate::window::Window;
use crate::{BookingId, EndpointId, Timestamp};

use dispatch::FIRST_MEAN_UNCACHED;
use peers::Peers;
use store::Unstored;
use tell::Teller;
use timers::{Timer, Timers};
use turn::Scratch;

/// The scheduler of one pool of interchangeable engines.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    rng: Rng,
    /// In the order of their ids.
    endpoints: Endpoints,
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
    /// What waiting prompts of others are taken to be: the mean as of lately.
    mean_applied: f64,
    last_chosen: Option<EndpointId>,
    /// How long answers are.
    answers: Outputs,
    peers: Peers,
    teller: Teller,
    /// The latest time the pool was told.
    now: Timestamp,
    /// Since when something has waited without a break.
    busy_since: Option<Timestamp>,
    /// What waits should be looked at before the next output is given out.
    wants_plan: bool,
    plan_timer: Option<Timestamp>,
    /// When flows and bands that are over a quota are within it again.
    quota_timers: BTreeMap<Timer, Option<Timestamp>>,
    /// Whoever comes with a later deadline, in this band or below it, need not be looked at before the next turn.
    horizon: Option<(Band, Timestamp)>,
    /// As of the last turn.
    saturation: f64,
    /// Arrived since the last look.
    newly: Vec<Place>,
    unstored: Unstored,
    /// The latest scrape of any endpoint.
    observed_at: Timestamp,
    /// Counts changes of who is there, so that look-ups into the index know when they are out of date.
    fleet_version: u64,
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
    /// What the plan goes by: the calibration as of lately.
    model: StepModel,
    applied_at: Option<Timestamp>,
    /// Endpoints from this index on still have to hear of that.
    untold: Option<u32>,
    /// First tokens seen of its engines.
    first_tokens: u32,
}

impl Class {
    fn new(name: Arc<str>, first: StepModel) -> Self {
        Self {
            name,
            calibration: Calibration::new(first),
            model: first,
            applied_at: None,
            untold: None,
            first_tokens: 0,
        }
    }

    /// Lets the plan know what was learned, if that is worth it, it was not told for `pause`, and every endpoint has heard
    /// of what it was told then.
    fn apply_lessons(&mut self, now: Timestamp, pause: Duration) {
        let learned = self.calibration.model();
        let is_due = match self.applied_at {
            None => true,
            Some(at) => {
                self.untold.is_none() && now.since(at) >= pause && learned.differs(&self.model)
            }
        };
        if is_due {
            self.model = *learned;
            self.applied_at = Some(now);
            self.untold = Some(0);
        }
    }
}

impl Pool {
    /// An empty pool. The same inputs with the same seed give the same outputs.
    pub fn new(config: PoolConfig, seed: u64) -> Self {
        let mut pool = Self {
            residency: Residency::new(config.residency.max_bytes, seed),
            config,
            rng: Rng::new(seed),
            endpoints: Endpoints::default(),
            by_holder: Vec::new(),
            classes: Vec::new(),
            bookings: FxHashMap::default(),
            next_booking: 0,
            queue: Queue::new(),
            timers: Timers::default(),
            assigned: Window::default(),
            ended: Window::default(),
            mean_uncached: FIRST_MEAN_UNCACHED,
            mean_applied: FIRST_MEAN_UNCACHED,
            last_chosen: None,
            answers: Outputs::new(),
            peers: Peers::new(seed),
            teller: Teller::default(),
            now: Timestamp::ZERO,
            busy_since: None,
            wants_plan: false,
            plan_timer: None,
            quota_timers: BTreeMap::new(),
            newly: Vec::new(),
            unstored: Unstored::default(),
            observed_at: Timestamp::ZERO,
            horizon: None,
            saturation: 0.0,
            fleet_version: 0,
            next_incarnation: 0,
            is_draining: false,
            scratch: Scratch::default(),
            outputs: VecDeque::new(),
        };
        pool.begin_telling();
        pool
    }

    /// Something happened at `now`.
    pub fn handle(&mut self, now: Timestamp, input: Input) {
        // A clock that goes back stands still.
        let now = now.max(self.now);
        self.now = now;
        self.store_sent();
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
            Input::PeerLoad { peer, vector } => self.peer_load(now, peer, vector),
            Input::Reconfigure(flow) => self.reconfigure(now, *flow),
            Input::Drain => self.is_draining = true,
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let now = now.max(self.now);
        self.now = now;
        self.store_sent();
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Plan => {
                    self.plan_timer = None;
                    self.wants_plan = true;
                }
                Timer::Flow(flow) => {
                    self.quota_timers.remove(&timer);
                    self.queue.unpark(now, flow);
                    self.wants_plan = true;
                }
                Timer::Band(band) => {
                    self.quota_timers.remove(&timer);
                    self.queue.unpark_band(band);
                    self.wants_plan = true;
                }
                Timer::Waiting(place) => self.waited_long(now, place),
                Timer::Prefilled(booking) => self.presume_prefilled(now, booking),
                Timer::Room(id) => self.widen_room(now, id),
                Timer::Probe(id) => self.probe(now, id),
                Timer::Hang(id) => self.look_for_hang(now, id),
                Timer::Tell => self.teller_is_due(),
            }
        }
    }

    /// When [`Pool::handle_timeout`] is wanted next. Ask after [`Pool::poll_output`] has given its last.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    /// What to do next, until `None`. All that happened since the last `None` is planned together.
    pub fn poll_output(&mut self) -> Option<Output> {
        while self.outputs.is_empty() && (self.wants_plan || !self.newly.is_empty()) {
            self.turn(self.now);
        }
        let output = self.outputs.pop_front().or_else(|| self.tell(self.now));
        if output.is_none() {
            self.store_ended();
            self.keep_up(self.now);
        }
        output
    }
}
