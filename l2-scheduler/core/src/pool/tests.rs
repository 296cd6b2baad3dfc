//! Behaviour of a pool, told event by event.

mod acceptance;
mod again;
mod attacks;
mod bands;
mod choice;
mod commuting;
mod crowd;
mod flow;
mod health;
mod heard;
mod held;
mod instant;
mod large;
mod late;
mod metamorphic;
mod newest_first;
mod no_data;
mod policies;
mod properties;
mod queue;
mod residency;
mod site;
mod tell;
mod told;

use std::sync::Arc;
use std::time::Duration;

use governance_context::{Band, FairnessId};

use super::*;
use crate::flow::{FlowConfig, Limits};
use crate::residency::{BlockHasher, Chunking, Seed};
use crate::{
    Decision, EmptiedBy, LoadVector, Observation, Policy, Refusal, RefusalKind, Request,
    RequestKey, Targets,
};

/// A pool, its clock, and everything it asked for.
pub(super) struct Bench {
    pub(super) pool: Pool,
    pub(super) now: Timestamp,
    pub(super) dispatched: Vec<(RequestKey, BookingId, EndpointId, Decision)>,
    pub(super) refused: Vec<(RequestKey, Refusal)>,
    pub(super) abandoned: Vec<BookingId>,
    pub(super) probes: Vec<EndpointId>,
    pub(super) told: Vec<(Timestamp, LoadVector)>,
    next_key: u64,
}

impl Bench {
    pub(super) fn new(config: PoolConfig) -> Self {
        Self {
            pool: Pool::new(config, 7),
            now: Timestamp(1_000_000_000),
            dispatched: Vec::new(),
            refused: Vec::new(),
            abandoned: Vec::new(),
            probes: Vec::new(),
            told: Vec::new(),
            next_key: 0,
        }
    }

    /// A pool with `endpoints` that serve anything.
    pub(super) fn with_endpoints(endpoints: u32, config: PoolConfig) -> Self {
        let mut bench = Self::new(config);
        for id in 0..endpoints {
            bench.up(id, |_| ());
        }
        bench
    }

    pub(super) fn up(&mut self, id: u32, change: impl FnOnce(&mut EndpointSpec)) {
        let mut spec = EndpointSpec::new(EndpointId(id), &format!("engine-{id}"));
        change(&mut spec);
        self.feed(Input::EndpointUp(spec));
    }

    pub(super) fn feed(&mut self, input: Input) {
        self.pool.handle(self.now, input);
        self.collect();
    }

    /// Lets time pass, handling every timeout at its own time.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.pool.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.pool.handle_timeout(self.now);
            self.collect();
        }
        self.now = end;
    }

    /// A request for a prompt of the given token ids; returns its key.
    pub(super) fn ask(&mut self, prompt: &[u32]) -> RequestKey {
        self.ask_with(prompt, |_| ())
    }

    pub(super) fn ask_with(
        &mut self,
        prompt: &[u32],
        change: impl FnOnce(&mut Request),
    ) -> RequestKey {
        let key = RequestKey(self.next_key);
        self.next_key += 1;
        let mut request = request(key, prompt);
        change(&mut request);
        self.feed(Input::Arrive(Box::new(request)));
        key
    }

    pub(super) fn end(&mut self, booking: BookingId, end: AttemptEnd) {
        self.feed(Input::Finished { booking, end });
    }

    pub(super) fn complete(&mut self, booking: BookingId) {
        self.end(
            booking,
            AttemptEnd::Completed {
                cached_tokens: None,
                output_tokens: 10,
            },
        );
    }

    /// Where the last dispatch went.
    pub(super) fn last(&self) -> &(RequestKey, BookingId, EndpointId, Decision) {
        self.dispatched.last().expect("something was dispatched")
    }

    pub(super) fn refusal(&self, key: RequestKey) -> Option<&Refusal> {
        self.refused
            .iter()
            .find(|(refused, _)| *refused == key)
            .map(|(_, refusal)| refusal)
    }

    /// Sums of everything that must be zero at rest.
    pub(super) fn at_rest(&self) -> bool {
        let snapshot = self.pool.snapshot(self.now);
        let quiet = |e: &EndpointSnapshot| {
            e.bookings == 0 && e.prefilling == 0 && e.pending_tokens == 0 && e.context_tokens == 0
        };
        snapshot.bookings == 0
            && (snapshot.queue_length, snapshot.queue_bytes) == (0, 0)
            && snapshot.endpoints.iter().all(quiet)
            && self
                .pool
                .endpoints
                .iter()
                .all(|endpoint| endpoint.load.is_at_rest())
    }

    /// Plans at this moment, whether or not anything happened.
    pub(super) fn look_again(&mut self) {
        self.pool.wants_plan = true;
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(output) = self.pool.poll_output() {
            match output {
                Output::Dispatch {
                    request,
                    booking,
                    endpoint,
                    decision,
                } => {
                    self.dispatched
                        .push((request, booking, endpoint, *decision));
                }
                Output::Refuse { request, refusal } => self.refused.push((request, refusal)),
                Output::Abandon { booking } => self.abandoned.push(booking),
                Output::Probe { endpoint } => self.probes.push(endpoint),
                Output::Tell(vector) => self.told.push((self.now, vector)),
            }
        }
        self.pool.store_sent();
    }
}

pub(super) fn request(key: RequestKey, prompt: &[u32]) -> Request {
    let mut hasher = BlockHasher::new(Seed::new("m", None, "d"), Chunking::Tokens { size: 16 });
    hasher.tokens(prompt);
    Request {
        key,
        model: "m".into(),
        fairness: FairnessId::new("tenant").expect("a valid name"),
        band: Band(0),
        weight: 1,
        prompt_tokens: prompt.len() as u64,
        output_bound: 100,
        blocks: hasher.finish(),
        streaming: true,
        bytes: 100,
        expires_at: None,
        targets: Targets::default(),
        first_arrived: None,
        tried: Vec::new(),
    }
}

/// `length` tokens that share nothing with those of another `family`.
pub(super) fn tokens(family: u32, length: u32) -> Vec<u32> {
    (0..length).map(|at| family << 20 | at).collect()
}

pub(super) fn idle_metrics() -> Observation {
    Observation {
        waiting: Some(0),
        running: Some(0),
        kv_use: Some(0.0),
        block_size: Some(16),
        num_blocks: Some(10_000),
        start_time_s: Some(1000.0),
        ..Observation::default()
    }
}

/// A pool whose queue has this much room.
pub(super) fn limited(requests: usize, bytes: u64, config: PoolConfig) -> PoolConfig {
    PoolConfig {
        flow: FlowConfig {
            pool_limits: Limits { requests, bytes },
            ..config.flow
        },
        ..config
    }
}

/// Binds at arrival, with room for so many per endpoint.
pub(super) fn with_room(room: u32) -> PoolConfig {
    PoolConfig {
        policy: Policy::PredictedCost,
        engine: EngineConfig {
            room,
            ..EngineConfig::default()
        },
        ..PoolConfig::default()
    }
}

pub(super) fn with_policy(policy: Policy) -> PoolConfig {
    PoolConfig {
        policy,
        ..PoolConfig::default()
    }
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub(super) fn named(name: &str) -> Arc<str> {
    name.into()
}
