//! One run: arrivals, steps of engines, looks at their gauges and the pools' timers, in order of virtual time.

mod flight;
mod scheduler;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use engine_model::{Config, Engine, Event, RequestId};
use governance_context::FairnessId;
use scheduler_core::{
    AttemptEnd, BookingId, EndpointId, Input, LoadVector, Output, PeerId, Request, RequestKey,
    Timestamp,
};
use workload::BLOCK_TOKENS;

use crate::load::{Load, nanoseconds};
use crate::outcome::{End, Outcome};
use crate::scenario::Scenario;

use flight::{Arriving, Flight};
use scheduler::Scheduler;

/// How often a scheduler looks at the engines' gauges.
const SCRAPE: u64 = 100_000_000;
/// How often a scheduler hears of a stream's progress, as the proxy tells it.
const PROGRESS: u64 = 50_000_000;
/// How long what schedulers tell each other is under way.
const WORD: u64 = 1_000_000;
/// A run ends so long after the last arrival, whatever is left: time enough for any queue, and an end for a run in which
/// nothing moves any more.
const DRAIN: u64 = 86_400_000_000_000;
/// Attempts a request has before its client is told that engines fail.
const ATTEMPTS: u32 = 3;
/// The code of that.
const UPSTREAM_TIMEOUT: &str = "upstream_timeout";
/// The engine itself refused.
const REJECTED: &str = "rejected";
const NEVER: u64 = u64::MAX;

/// What happens next. At one instant an engine goes on before a scheduler reacts, as in life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    StepEnds,
    Scrape,
    Word,
    Arrival,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    load: &'a Load,
    model: Arc<str>,
    tenants: Vec<FairnessId>,
    schedulers: Vec<Scheduler>,
    engines: Vec<Seat>,
    /// When the steps that are under way end, and whose they are.
    steps: BinaryHeap<Reverse<(u64, u32)>>,
    /// Vectors on their way: when they arrive, and who sent them.
    words: VecDeque<(u64, usize, LoadVector)>,
    /// By place in the load.
    flights: Vec<Flight>,
    outcome: Outcome,
    events: Vec<Event>,
    next_arrival: usize,
    ended: usize,
    missed: u64,
    now: u64,
}

struct Seat {
    engine: Engine,
    is_stepping: bool,
}

/// Replays a load until its last request has ended, or until its verdict is clear where the scenario says so.
pub fn replay(scenario: &Scenario, load: &Load) -> Outcome {
    let mut simulation = Simulation::new(scenario, load);
    simulation.run();
    simulation.finish()
}

/// The flow of the tenant with this number.
pub fn flow_of(tenant: u32) -> FairnessId {
    FairnessId::new(format!("tenant-{tenant}")).expect("a short name")
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, load: &'a Load) -> Self {
        let config = scenario.pool_config();
        let model = Config::new(scenario.profile).with_block_size(BLOCK_TOKENS);
        let seat = || Seat {
            engine: Engine::new(model.clone()),
            is_stepping: false,
        };
        let schedulers = scenario.schedulers.max(1);
        let tenants = load.entries.iter().map(|entry| entry.tenant + 1).max();
        Self {
            scenario,
            load,
            model: Arc::from("model"),
            tenants: (0..tenants.unwrap_or(0)).map(flow_of).collect(),
            schedulers: (0..schedulers)
                .map(|number| Scheduler::new(scenario, &config, number, model.num_blocks))
                .collect(),
            engines: (0..scenario.engines).map(|_| seat()).collect(),
            steps: BinaryHeap::new(),
            words: VecDeque::new(),
            flights: load
                .entries
                .iter()
                .map(|entry| Flight::new(entry, scenario))
                .collect(),
            outcome: Outcome {
                assigned_s: vec![0.0; scenario.engines as usize],
                ..Outcome::default()
            },
            events: Vec::new(),
            next_arrival: 0,
            ended: 0,
            missed: 0,
            now: 0,
        }
    }

    fn run(&mut self) {
        let patience = self.scenario.give_up_after.unwrap_or(u64::MAX);
        let last = self.load.entries.last().map_or(0, |entry| entry.at);
        while self.ended < self.load.len()
            && self.missed <= patience
            && self.now <= last.saturating_add(DRAIN)
        {
            let (at, happening, whose) = self.next_happening();
            match self.next_timeout() {
                Some((timeout, scheduler)) if timeout < at => {
                    self.now = self.now.max(timeout);
                    let now = self.stamp();
                    self.schedulers[scheduler].pool.handle_timeout(now);
                }
                _ => {
                    self.now = self.now.max(at);
                    self.happen(happening, whose);
                }
            }
            self.act();
        }
    }

    fn next_happening(&self) -> (u64, Happening, usize) {
        let step = self
            .steps
            .peek()
            .map(|Reverse((at, engine))| (*at, Happening::StepEnds, *engine as usize));
        let rounds = self
            .schedulers
            .iter()
            .enumerate()
            .map(|(number, scheduler)| (scheduler.next_scrape, Happening::Scrape, number));
        let word = self.words.front();
        let word = word.map(|(at, teller, _)| (*at, Happening::Word, *teller));
        let arrival = self
            .load
            .entries
            .get(self.next_arrival)
            .map(|entry| (entry.at, Happening::Arrival, self.next_arrival));
        rounds
            .chain(step)
            .chain(word)
            .chain(arrival)
            .min()
            .expect("every scheduler has a next scrape")
    }

    fn next_timeout(&self) -> Option<(u64, usize)> {
        let timeout = |(number, scheduler): (usize, &Scheduler)| {
            Some((scheduler.pool.poll_timeout()?.0, number))
        };
        self.schedulers.iter().enumerate().filter_map(timeout).min()
    }

    fn happen(&mut self, happening: Happening, whose: usize) {
        match happening {
            Happening::StepEnds => self.step_ends(whose),
            Happening::Scrape => self.scrape(whose),
            Happening::Word => self.word(),
            Happening::Arrival => {
                self.next_arrival += 1;
                self.arrive(whose, Vec::new());
            }
        }
    }

    fn arrive(&mut self, index: usize, tried: Vec<EndpointId>) {
        let entry = &self.load.entries[index];
        let request = Request {
            key: RequestKey(index as u64),
            model: self.model.clone(),
            fairness: self.tenants[entry.tenant as usize].clone(),
            band: entry.band,
            weight: 1,
            prompt_tokens: u64::from(entry.prompt_tokens),
            output_bound: 0,
            blocks: self.load.blocks(entry).to_vec(),
            streaming: true,
            bytes: 0,
            expires_at: None,
            targets: entry.targets,
            first_arrived: (!tried.is_empty()).then_some(Timestamp(entry.at)),
            tried,
        };
        let now = self.stamp();
        let scheduler = self.flights[index].scheduler as usize;
        self.schedulers[scheduler]
            .pool
            .handle(now, Input::Arrive(Box::new(request)));
    }

    /// Does what the schedulers ask for, until they ask for nothing.
    fn act(&mut self) {
        for scheduler in 0..self.schedulers.len() {
            while let Some(output) = self.schedulers[scheduler].pool.poll_output() {
                match output {
                    Output::Dispatch {
                        request,
                        booking,
                        endpoint,
                        decision,
                    } => {
                        let record = &mut self.flights[request.0 as usize].record;
                        record.believed_tokens = decision.predicted.cached_tokens;
                        self.send(request.0 as usize, booking, endpoint);
                    }
                    Output::Refuse { request, refusal } => {
                        self.refused(request.0 as usize, refusal.kind.code());
                    }
                    // Simulated engines never hang: whoever is called hung proves the opposite.
                    Output::Probe { endpoint } => {
                        let proof = Input::Probed { endpoint, ok: true };
                        let now = self.stamp();
                        self.schedulers[scheduler].pool.handle(now, proof);
                    }
                    Output::Abandon { booking } => self.abandon(scheduler, booking),
                    Output::Tell(vector) => {
                        self.words.push_back((self.now + WORD, scheduler, vector));
                    }
                }
            }
        }
    }

    fn send(&mut self, index: usize, booking: BookingId, endpoint: EndpointId) {
        let entry = &self.load.entries[index];
        let flight = &mut self.flights[index];
        let id = flight.board(self.now, index, booking, endpoint.0);
        let request = engine_model::Request {
            id,
            prompt_tokens: entry.prompt_tokens,
            output_tokens: entry.output_tokens,
            blocks: self.load.contents(entry).into(),
            priority: 0,
        };
        let engine = endpoint.0 as usize;
        if self.engines[engine].engine.submit(request).is_ok() {
            self.begin(engine);
            let waiting = self.engines[engine].engine.gauges().waiting;
            let deepest = &mut self.outcome.deepest_engine_queue;
            *deepest = waiting.max(*deepest);
            return;
        }
        self.end_attempt(index, AttemptEnd::Rejected);
        self.refused(index, REJECTED);
    }

    /// Takes an attempt from an engine that is believed to hang, and tries elsewhere.
    fn abandon(&mut self, scheduler: usize, booking: BookingId) {
        let is_meant = |flight: &Flight| {
            flight.scheduler as usize == scheduler && flight.booking == Some(booking)
        };
        let Some(index) = self.flights.iter().position(is_meant) else {
            return;
        };
        self.outcome.abandoned += 1;
        let flight = &mut self.flights[index];
        let (engine, attempts) = (flight.engine, flight.attempts);
        self.engines[engine as usize].engine.abort(flight.id(index));
        self.end_attempt(index, AttemptEnd::Failed);
        if attempts < ATTEMPTS {
            self.arrive(index, vec![EndpointId(engine)]);
        } else {
            self.refused(index, UPSTREAM_TIMEOUT);
        }
    }

    fn end_attempt(&mut self, index: usize, end: AttemptEnd) {
        let now = self.stamp();
        let flight = &mut self.flights[index];
        let booking = flight.booking.take().expect("an attempt ends once");
        self.schedulers[flight.scheduler as usize]
            .pool
            .handle(now, Input::Finished { booking, end });
    }

    fn refused(&mut self, index: usize, code: &'static str) {
        self.flights[index].record.end = End::Refused(code);
        self.ended += 1;
        self.missed += 1;
    }

    fn begin(&mut self, engine: usize) {
        let seat = &mut self.engines[engine];
        if seat.is_stepping {
            return;
        }
        // One step: a longer run would end later than a request that arrives meanwhile can be begun.
        if let Some(run) = seat.engine.begin(1) {
            seat.is_stepping = true;
            let ends = self.now + nanoseconds(run.duration);
            self.steps.push(Reverse((ends, engine as u32)));
        }
    }

    fn step_ends(&mut self, engine: usize) {
        self.steps.pop();
        let seat = &mut self.engines[engine];
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        events.extend_from_slice(seat.engine.finish());
        seat.is_stepping = false;
        self.begin(engine);
        for event in &events {
            self.observe(engine, *event);
        }
        self.events = events;
    }

    fn observe(&mut self, engine: usize, event: Event) {
        match event {
            Event::Tokens {
                request,
                new,
                total,
            } => self.tokens(Flight::index(request), new == total, total),
            Event::Finished { request } => self.finished(Flight::index(request)),
            Event::Admitted {
                request,
                cached_tokens,
            } => self.admitted(engine, request, cached_tokens),
            Event::Preempted { .. } => self.outcome.preemptions += 1,
        }
    }

    fn admitted(&mut self, engine: usize, request: RequestId, cached: u32) {
        let index = Flight::index(request);
        let flight = &mut self.flights[index];
        if flight.id(index) != request {
            return;
        }
        let uncached = flight.record.prompt_tokens - cached;
        flight.record.cached_tokens = cached;
        flight.record.computed_tokens += uncached;
        self.outcome.assigned_s[engine] += self.scenario.profile.prefill_seconds(uncached, cached);
    }

    fn tokens(&mut self, index: usize, is_first: bool, total: u32) {
        let now = self.stamp();
        let flight = &mut self.flights[index];
        let booking = flight.booking.expect("a request that computes is booked");
        let pool = &mut self.schedulers[flight.scheduler as usize].pool;
        if is_first {
            flight.first_token(self.now);
            self.missed += u64::from(!flight.record.met_ttft);
            pool.handle(now, Input::FirstToken(booking));
            return;
        }
        flight.token(self.now);
        if self.now - flight.told >= PROGRESS {
            flight.told = self.now;
            let output_tokens = u64::from(total);
            pool.handle(
                now,
                Input::Progress {
                    booking,
                    output_tokens,
                },
            );
        }
    }

    fn finished(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        let had_met = flight.record.met_ttft || flight.first == NEVER;
        let arriving = if self.next_arrival < self.load.len() {
            Arriving::Still
        } else {
            Arriving::Over
        };
        flight.completed(self.now, arriving);
        self.missed += u64::from(had_met && !flight.record.good);
        self.ended += 1;
        let end = AttemptEnd::Completed {
            cached_tokens: Some(u64::from(flight.record.cached_tokens)),
            output_tokens: u64::from(flight.record.output_tokens),
        };
        self.end_attempt(index, end);
    }

    fn scrape(&mut self, scheduler: usize) {
        let now = self.stamp();
        let looking = &mut self.schedulers[scheduler];
        looking.next_scrape += SCRAPE;
        let seconds = self.now as f64 * 1e-9;
        let is_dark = self
            .scenario
            .blackout
            .is_some_and(|(from, to)| (from..to).contains(&seconds));
        if is_dark {
            for id in 0..self.scenario.engines {
                let endpoint = EndpointId(id);
                looking.pool.handle(now, Input::ScrapeFailed { endpoint });
            }
            return;
        }
        for (seat, id) in self.engines.iter().zip(0..) {
            let gauges = seat.engine.gauges();
            let generated = seat.engine.counters().generated_tokens;
            let kv_tokens = self.scenario.profile.kv_tokens;
            looking.observe(now, EndpointId(id), gauges, generated, kv_tokens);
        }
    }

    /// What one scheduler said of its load comes to all others.
    fn word(&mut self) {
        let Some((_, scheduler, vector)) = self.words.pop_front() else {
            return;
        };
        let now = self.stamp();
        let peer = PeerId(scheduler as u64);
        for (number, other) in self.schedulers.iter_mut().enumerate() {
            if number != scheduler {
                let vector = vector.clone();
                other.pool.handle(now, Input::PeerLoad { peer, vector });
            }
        }
    }

    fn finish(mut self) -> Outcome {
        self.outcome.seconds = self.now as f64 * 1e-9;
        let now = self.stamp();
        let left = |scheduler: &Scheduler| {
            let snapshot = scheduler.pool.snapshot(now);
            snapshot.queue_length + snapshot.bookings
        };
        self.outcome.left = self.schedulers.iter().map(left).sum();
        self.outcome.steps = self
            .engines
            .iter()
            .map(|seat| seat.engine.counters().steps)
            .sum();
        self.outcome.records = self
            .flights
            .into_iter()
            .map(|flight| flight.record)
            .collect();
        self.outcome
    }

    fn stamp(&self) -> Timestamp {
        Timestamp(self.now)
    }
}
