//! The state machine of one pool: requests come in, wait their turn, and go to an endpoint that is booked in the same step.

mod config;
mod event;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use config::{EngineConfig, HealthConfig, PoolConfig, QueueConfig, ResidencyConfig};
pub use event::{AttemptEnd, EndpointSpec, Input, Output};
pub use snapshot::{EndpointSnapshot, EndpointState, PoolSnapshot, Saturation, SaturationCause};

use crate::{
    BookingId, Candidate, Decision, EmptiedBy, EndpointId, Filtered, Policy, Predicted, Refusal,
    RefusalKind, Request, RequestKey, Timestamp,
};

/// The scheduler of one pool of interchangeable engines.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    seed: u64,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    bookings: BTreeMap<BookingId, EndpointId>,
    next_booking: u64,
    next_turn: usize,
    waiting: VecDeque<(Timestamp, Box<Request>)>,
    draining: bool,
    outputs: VecDeque<Output>,
}

#[derive(Debug)]
struct Endpoint {
    spec: EndpointSpec,
    draining: bool,
    in_flight: u32,
}

impl Pool {
    /// An empty pool. The same inputs with the same seed give the same outputs.
    pub fn new(config: PoolConfig, seed: u64) -> Self {
        Self {
            config,
            seed,
            endpoints: BTreeMap::new(),
            bookings: BTreeMap::new(),
            next_booking: 0,
            next_turn: 0,
            waiting: VecDeque::new(),
            draining: false,
            outputs: VecDeque::new(),
        }
    }

    /// Something happened at `now`.
    pub fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::EndpointUp(spec) => {
                self.endpoints.insert(
                    spec.id,
                    Endpoint {
                        spec,
                        draining: false,
                        in_flight: 0,
                    },
                );
            }
            Input::EndpointDown(id) => {
                self.endpoints.remove(&id);
            }
            Input::Draining(id) => {
                if let Some(endpoint) = self.endpoints.get_mut(&id) {
                    endpoint.draining = true;
                }
            }
            Input::Arrive(request) => self.arrive(now, request),
            Input::Cancel(key) => {
                if let Some(at) = self
                    .waiting
                    .iter()
                    .position(|(_, request)| request.key == key)
                {
                    let (since, request) = self
                        .waiting
                        .remove(at)
                        .expect("the position was just found");
                    self.refuse(request.key, RefusalKind::ClientClosed, now.since(since));
                }
            }
            Input::Finished { booking, .. } => {
                if let Some(id) = self.bookings.remove(&booking)
                    && let Some(endpoint) = self.endpoints.get_mut(&id)
                {
                    endpoint.in_flight = endpoint.in_flight.saturating_sub(1);
                }
            }
            Input::Drain => self.draining = true,
            Input::Observed { .. }
            | Input::ScrapeFailed { .. }
            | Input::FirstToken(_)
            | Input::Progress { .. }
            | Input::Probed { .. } => {}
        }
        self.turn(now);
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((since, request)) = self.waiting.front()
            && *since + self.config.queue.ttl <= now
        {
            let (key, waited) = (request.key, now.since(*since));
            self.waiting.pop_front();
            self.refuse(key, RefusalKind::QueueExpired, waited);
        }
        self.turn(now);
    }

    /// When [`Pool::handle_timeout`] is wanted next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.waiting
            .front()
            .map(|(since, _)| *since + self.config.queue.ttl)
    }

    /// What to do next, until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The state of the pool at `now`.
    pub fn snapshot(&self, _now: Timestamp) -> PoolSnapshot {
        PoolSnapshot {
            endpoints: self
                .endpoints
                .values()
                .map(|endpoint| self.endpoint_snapshot(endpoint))
                .collect(),
            queue_length: self.waiting.len(),
            queue_bytes: self.waiting.iter().map(|(_, request)| request.bytes).sum(),
            bookings: self.bookings.len(),
            saturation: Saturation {
                cause: SaturationCause::NoData,
                value: 0.0,
            },
            index_pairs: 0,
            index_bytes: 0,
        }
    }

    fn endpoint_snapshot(&self, endpoint: &Endpoint) -> EndpointSnapshot {
        EndpointSnapshot {
            id: endpoint.spec.id,
            name: endpoint.spec.name.clone(),
            state: if endpoint.draining {
                EndpointState::Draining
            } else {
                EndpointState::Ready
            },
            bookings: endpoint.in_flight,
            prefilling: 0,
            pending_tokens: 0,
            context_tokens: 0,
            effective_load: endpoint.in_flight,
            room: self.room(endpoint),
            kv_use: 0.0,
            metrics_age_s: None,
            resident_tokens: 0,
            queue_s: 0.0,
        }
    }

    fn room(&self, endpoint: &Endpoint) -> u32 {
        endpoint.spec.room.unwrap_or(self.config.engine.room)
    }

    fn arrive(&mut self, now: Timestamp, request: Box<Request>) {
        if self.draining && request.tried.is_empty() {
            self.refuse(request.key, RefusalKind::ShuttingDown, Duration::ZERO);
        } else if self.waiting.len() >= self.config.queue.requests {
            self.refuse(request.key, RefusalKind::QueueFull, Duration::ZERO);
        } else {
            self.waiting.push_back((now, request));
        }
    }

    fn refuse(&mut self, request: RequestKey, kind: RefusalKind, waited: Duration) {
        let refusal = Refusal {
            kind,
            retry_after: Some(Duration::from_secs(1)),
            queue_length: self.waiting.len(),
            waited,
        };
        self.outputs.push_back(Output::Refuse { request, refusal });
    }

    fn turn(&mut self, now: Timestamp) {
        let mut blocked = VecDeque::new();
        while let Some((since, request)) = self.waiting.pop_front() {
            match self.choose(&request) {
                Ok(Some(id)) => self.dispatch(&request, id, now.since(since)),
                Ok(None) => blocked.push_back((since, request)),
                Err(EmptiedBy::Pool) => blocked.push_back((since, request)),
                Err(filter) => self.refuse(
                    request.key,
                    RefusalKind::NoEndpoint(filter),
                    now.since(since),
                ),
            }
        }
        self.waiting = blocked;
    }

    fn choose(&mut self, request: &Request) -> Result<Option<EndpointId>, EmptiedBy> {
        if self.endpoints.is_empty() {
            return Err(EmptiedBy::Pool);
        }
        let mut eligible: Vec<&Endpoint> = self
            .endpoints
            .values()
            .filter(|e| {
                e.spec.models.is_empty()
                    || e.spec.models.iter().any(|model| **model == *request.model)
            })
            .collect();
        if eligible.is_empty() {
            return Err(EmptiedBy::Model);
        }
        eligible.retain(|endpoint| !endpoint.draining);
        if eligible.is_empty() {
            return Err(EmptiedBy::Draining);
        }
        if eligible
            .iter()
            .any(|endpoint| !request.tried.contains(&endpoint.spec.id))
        {
            eligible.retain(|endpoint| !request.tried.contains(&endpoint.spec.id));
        }
        eligible.retain(|endpoint| endpoint.in_flight < self.room(endpoint));
        self.next_turn += 1;
        Ok(match self.config.policy {
            Policy::RoundRobin => eligible
                .get(self.next_turn % eligible.len().max(1))
                .map(|endpoint| endpoint.spec.id),
            Policy::PredictedCost | Policy::LeastRequest | Policy::Weighted | Policy::Random => {
                eligible
                    .iter()
                    .min_by_key(|endpoint| (endpoint.in_flight, self.seed))
                    .map(|endpoint| endpoint.spec.id)
            }
        })
    }

    fn dispatch(&mut self, request: &Request, id: EndpointId, waited: Duration) {
        let booking = BookingId(self.next_booking);
        self.next_booking += 1;
        let endpoint = self
            .endpoints
            .get_mut(&id)
            .expect("the choice is one of the endpoints");
        endpoint.in_flight += 1;
        let name: Arc<str> = endpoint.spec.name.clone();
        self.bookings.insert(booking, id);
        let decision = Decision {
            policy: self.config.policy,
            chosen: name,
            candidates: Vec::<Candidate>::new(),
            eligible: 0,
            filtered: Filtered::default(),
            runner_up: None,
            margin: None,
            tie: None,
            kappa: 0.0,
            predicted: Predicted::default(),
            waited,
            queue_position: 0,
        };
        self.outputs.push_back(Output::Dispatch {
            request: request.key,
            booking,
            endpoint: id,
            decision: Box::new(decision),
        });
    }
}
