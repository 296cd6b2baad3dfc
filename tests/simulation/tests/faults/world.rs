//! Schedulers, engines, clients and what is true of them.

use std::ops::AddAssign;
use std::time::Duration;

use engine_model::{Config, Engine, Event, Profile};
use scheduler_core::flow::FlowConfig;
use scheduler_core::{
    AttemptEnd, BookingId, EndpointId, EndpointSpec, Input, Observation, Output, Pool, PoolConfig,
    Timestamp,
};
use workload::BLOCK_TOKENS;

use crate::chance::Chance;
use crate::check::Limit;
use crate::client::{Client, Place};
use crate::trouble;

pub(crate) const ENGINES: u32 = 4;
pub(crate) const DEPTH: u32 = 4;
/// Of the prefix index, in bytes.
pub(crate) const INDEX: usize = 1 << 20;
const SCRAPE: u64 = 100_000_000;
const ATTEMPTS: usize = 3;
/// Clients leave streams that hang for so long.
const PATIENCE: u64 = 60_000_000_000;

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) completed: u32,
    pub(crate) refused: u32,
    pub(crate) retried: u32,
    pub(crate) canceled: u32,
    pub(crate) abandoned: u32,
    /// Requests whose scheduler died.
    pub(crate) killed: u32,
    /// Second looks at the same moment, and those that found somebody who could go.
    pub(crate) looks: u32,
    pub(crate) second_finds: u32,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.refused += other.refused;
        self.retried += other.retried;
        self.canceled += other.canceled;
        self.abandoned += other.abandoned;
        self.killed += other.killed;
        self.looks += other.looks;
        self.second_finds += other.second_finds;
    }
}

/// How an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// Answers nobody and goes on with nothing.
    Hangs,
    /// Ends every new attempt at once in this way.
    Refuses(AttemptEnd),
    /// Takes so many times as long.
    Slow(u32),
}

/// What a scheduler has been told of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    Up,
    Draining,
    Down,
}

pub(crate) struct Seat {
    pub(crate) engine: Engine,
    pub(crate) mood: Mood,
    pub(crate) listed: Listed,
    /// Another one is another engine behind the same id.
    pub(crate) generation: u64,
    /// When its process began, in seconds.
    pub(crate) started: f64,
    /// When the step under way ends.
    pub(crate) ends: Option<u64>,
}

pub(crate) struct Scheduler {
    pub(crate) pool: Pool,
    pub(crate) flow: FlowConfig,
    pub(crate) limit: Limit,
    next_scrape: u64,
    pub(crate) is_blind: bool,
    /// Something has just made it look at all that waits. (After other news it looks a little later.)
    pub(crate) has_looked: bool,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) chance: Chance,
    pub(crate) schedulers: Vec<Scheduler>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) clients: Vec<Client>,
    /// Clients without an end, in order.
    pub(crate) open: Vec<usize>,
    pub(crate) tally: Tally,
    digest: u64,
    next_trouble: u64,
    pub(crate) is_healing: bool,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let seats = (0..ENGINES).map(|_| Seat {
            engine: engine(),
            mood: Mood::Well,
            listed: Listed::Up,
            generation: 0,
            started: 1.0,
            ends: None,
        });
        let mut world = Self {
            now: 1_000_000_000,
            schedulers: Vec::new(),
            seats: seats.collect(),
            clients: Vec::new(),
            open: Vec::new(),
            tally: Tally::default(),
            digest: 0,
            next_trouble: 1_000_000_000,
            is_healing: false,
            chance: Chance(chance.next()),
        };
        for _ in 0..=seed % 3 {
            let scheduler = world.new_scheduler();
            world.schedulers.push(scheduler);
        }
        world
    }

    pub(crate) fn new_scheduler(&mut self) -> Scheduler {
        let flow = trouble::flow(&mut self.chance);
        let mut config = PoolConfig {
            flow: flow.clone(),
            ..PoolConfig::default()
        };
        config.engine.depth = DEPTH;
        config.residency.max_bytes = INDEX;
        let mut pool = Pool::new(config, self.chance.next());
        let now = Timestamp(self.now);
        for id in 0..ENGINES {
            if self.seats[id as usize].listed != Listed::Down {
                pool.handle(now, Input::EndpointUp(self.spec(id)));
            }
            if self.seats[id as usize].listed == Listed::Draining {
                pool.handle(now, Input::Draining(EndpointId(id)));
            }
        }
        Scheduler {
            pool,
            limit: Limit::of(&flow),
            flow,
            next_scrape: self.now + self.chance.below(SCRAPE),
            is_blind: false,
            has_looked: false,
        }
    }

    pub(crate) fn spec(&self, id: u32) -> EndpointSpec {
        let mut spec = EndpointSpec::new(EndpointId(id), &format!("engine-{id}"));
        spec.generation = self.seats[id as usize].generation;
        spec.room = Some(24);
        spec
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Of everything that was decided, in order.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    fn note(&mut self, what: u64) {
        self.digest = Chance(self.digest ^ what).next();
    }

    /// The next event, whatever it is, and everything that follows at once.
    pub(crate) fn step(&mut self) {
        let step = (0..self.seats.len())
            .filter(|at| self.seats[*at].mood != Mood::Hangs)
            .filter_map(|at| Some((self.seats[at].ends?, 0, at)))
            .min();
        let timeout = (0..self.schedulers.len())
            .filter_map(|at| Some((self.schedulers[at].pool.poll_timeout()?.0, 1, at)))
            .min();
        let scrape = (0..self.schedulers.len())
            .map(|at| (self.schedulers[at].next_scrape, 2, at))
            .min();
        let trouble = (!self.is_healing).then_some((self.next_trouble, 3, 0));
        let next = [step, timeout, scrape, trouble].into_iter().flatten().min();
        let (at, kind, whose) = next.expect("a scheduler has a next scrape");
        self.now = self.now.max(at);
        match kind {
            0 => self.step_ends(whose),
            1 => {
                let now = Timestamp(self.now);
                self.schedulers[whose].pool.handle_timeout(now);
            }
            2 => self.scrape(whose),
            _ => {
                self.next_trouble = self.now + self.chance.below(80_000_000);
                self.make_trouble();
            }
        }
        self.settle();
    }

    /// Everything works again and nobody new comes: all end, and nothing is left of them.
    pub(crate) fn heal(&mut self) {
        self.is_healing = true;
        for seat in 0..self.seats.len() {
            self.seats[seat].mood = Mood::Well;
            self.list(seat as u32, Listed::Up);
        }
        self.settle();
        let end = self.now + 1_200_000_000_000;
        while !self.open.is_empty() {
            assert!(self.now < end, "{} requests never end", self.open.len());
            self.step();
        }
        self.check_rest();
    }

    /// Tells every scheduler of an endpoint.
    pub(crate) fn list(&mut self, id: u32, listed: Listed) {
        self.seats[id as usize].listed = listed;
        let input = match listed {
            Listed::Up => Input::EndpointUp(self.spec(id)),
            Listed::Draining => Input::Draining(EndpointId(id)),
            Listed::Down => Input::EndpointDown(EndpointId(id)),
        };
        for at in 0..self.schedulers.len() {
            self.feed(at, input.clone());
        }
    }

    pub(crate) fn feed(&mut self, scheduler: usize, input: Input) {
        let now = Timestamp(self.now);
        let scheduler = &mut self.schedulers[scheduler];
        scheduler.has_looked |= matches!(
            input,
            Input::Finished { .. } | Input::FirstToken(_) | Input::EndpointUp(_)
        );
        scheduler.pool.handle(now, input);
    }

    fn scrape(&mut self, at: usize) {
        self.schedulers[at].next_scrape = self.now + SCRAPE;
        for id in 0..ENGINES {
            let seat = &self.seats[id as usize];
            let endpoint = EndpointId(id);
            if self.schedulers[at].is_blind {
                self.feed(at, Input::ScrapeFailed { endpoint });
                continue;
            }
            // An engine that hangs shows what it showed before.
            let gauges = seat.engine.gauges();
            let observation = Observation {
                waiting: Some(gauges.waiting),
                running: Some(gauges.running),
                kv_use: Some(gauges.kv_use),
                kv_tokens: Some(seat.engine.config().profile.kv_tokens),
                start_time_s: Some(seat.started),
                ..Observation::default()
            };
            self.feed(
                at,
                Input::Observed {
                    endpoint,
                    observation,
                },
            );
        }
        self.leave_what_hangs();
    }

    /// Clients do not wait for ever.
    fn leave_what_hangs(&mut self) {
        for index in self.open.clone() {
            let client = &self.clients[index];
            if matches!(client.place, Place::Runs { .. }) && self.now > client.heard + PATIENCE {
                self.hang_up(index);
            }
        }
    }

    /// Does what the schedulers ask for until they ask for nothing, and looks whether all is true.
    fn settle(&mut self) {
        self.act_all();
        self.check();
    }

    pub(crate) fn act_all(&mut self) {
        loop {
            let mut has_acted = false;
            for at in 0..self.schedulers.len() {
                while let Some(output) = self.schedulers[at].pool.poll_output() {
                    has_acted = true;
                    self.act(at, output);
                }
            }
            if !has_acted {
                break;
            }
        }
    }

    pub(crate) fn act(&mut self, scheduler: usize, output: Output) {
        match output {
            Output::Dispatch {
                request,
                booking,
                endpoint,
                ..
            } => {
                self.note(request.0 << 8 | u64::from(endpoint.0));
                self.send(scheduler, request.0 as usize, booking, endpoint.0);
            }
            Output::Refuse { request, refusal } => {
                self.note(request.0 << 8 | 255);
                let index = request.0 as usize;
                self.must_wait(scheduler, index);
                assert!(!refusal.kind.code().is_empty());
                self.tally.refused += 1;
                self.end(index);
            }
            Output::Probe { endpoint } => {
                let mood = self.seats[endpoint.0 as usize].mood;
                let ok = matches!(mood, Mood::Well | Mood::Slow(_));
                self.feed(scheduler, Input::Probed { endpoint, ok });
            }
            Output::Abandon { booking } => {
                let of = |index: &usize| self.clients[*index].is_attempt(scheduler, booking);
                let index = self.open.iter().copied().find(of);
                let index = index.expect("only what runs is abandoned");
                self.tally.abandoned += 1;
                self.fail(index, AttemptEnd::Failed);
            }
        }
    }

    fn must_wait(&self, scheduler: usize, index: usize) {
        let place = self.clients[index].place;
        assert_eq!(
            place,
            Place::Waits { scheduler },
            "request {index}: one outcome"
        );
    }

    fn send(&mut self, scheduler: usize, index: usize, booking: BookingId, engine: u32) {
        self.must_wait(scheduler, index);
        let client = &mut self.clients[index];
        // At the very moment it expires it is refused.
        assert!(
            self.now < client.expires,
            "request {index} was sent too late"
        );
        client.place = Place::Runs {
            scheduler,
            booking,
            engine,
        };
        client.attempt += 1;
        client.heard = self.now;
        client.streams = false;
        client.generation = self.seats[engine as usize].generation;
        let seat = &mut self.seats[engine as usize];
        assert_eq!(
            seat.listed,
            Listed::Up,
            "request {index} was sent to engine {engine}"
        );
        if let Mood::Refuses(end) = seat.mood {
            return self.fail(index, end);
        }
        let request = client.for_engine(index);
        if seat.engine.submit(request).is_err() {
            return self.fail(index, AttemptEnd::Rejected);
        }
        self.begin(engine as usize);
    }

    /// An attempt ends badly; its client tries again a few times, unless it has had something or is told it is at fault.
    pub(crate) fn fail(&mut self, index: usize, end: AttemptEnd) {
        let client = &self.clients[index];
        let Place::Runs {
            scheduler,
            booking,
            engine,
        } = client.place
        else {
            unreachable!("only what runs can fail");
        };
        let may_retry = !client.streams && client.tried.len() + 1 < ATTEMPTS;
        self.seats[engine as usize].engine.abort(client.id(index));
        self.feed(scheduler, Input::Finished { booking, end });
        // A second end of the same attempt hits nothing.
        self.feed(scheduler, Input::Finished { booking, end });
        if may_retry && matches!(end, AttemptEnd::Failed | AttemptEnd::Busy) {
            self.tally.retried += 1;
            self.clients[index].tried.push(EndpointId(engine));
            self.ask(index, scheduler);
        } else {
            self.tally.refused += 1;
            self.end(index);
        }
    }

    pub(crate) fn end(&mut self, index: usize) {
        self.clients[index].place = Place::Over;
        self.open.retain(|open| *open != index);
    }

    /// A client whose request runs leaves.
    pub(crate) fn hang_up(&mut self, index: usize) {
        if let Place::Runs {
            scheduler,
            booking,
            engine,
        } = self.clients[index].place
        {
            let id = self.clients[index].id(index);
            self.seats[engine as usize].engine.abort(id);
            let end = AttemptEnd::ClientClosed;
            self.feed(scheduler, Input::Finished { booking, end });
            self.tally.canceled += 1;
            self.end(index);
        }
    }

    fn begin(&mut self, engine: usize) {
        let seat = &mut self.seats[engine];
        if seat.ends.is_some() || seat.mood == Mood::Hangs {
            return;
        }
        if let Some(run) = seat.engine.begin(1) {
            let factor = if let Mood::Slow(factor) = seat.mood {
                factor
            } else {
                1
            };
            let duration: Duration = run.duration * factor;
            seat.ends = Some(self.now + duration.as_nanos() as u64);
        }
    }

    fn step_ends(&mut self, engine: usize) {
        let events: Vec<Event> = self.seats[engine].engine.finish().to_vec();
        self.seats[engine].ends = None;
        self.begin(engine);
        for event in events {
            self.observe(event);
        }
    }

    fn observe(&mut self, event: Event) {
        match event {
            Event::Tokens {
                request,
                new,
                total,
            } => {
                let Some((index, scheduler, booking)) = self.running(request) else {
                    return;
                };
                self.clients[index].heard = self.now;
                self.clients[index].streams = true;
                if new == total {
                    self.feed(scheduler, Input::FirstToken(booking));
                } else if total.is_multiple_of(4) {
                    let output_tokens = u64::from(total);
                    self.feed(
                        scheduler,
                        Input::Progress {
                            booking,
                            output_tokens,
                        },
                    );
                }
            }
            Event::Finished { request } => {
                let Some((index, scheduler, booking)) = self.running(request) else {
                    return;
                };
                let output_tokens = u64::from(self.clients[index].output);
                let end = AttemptEnd::Completed {
                    cached_tokens: None,
                    output_tokens,
                };
                self.feed(scheduler, Input::Finished { booking, end });
                self.tally.completed += 1;
                self.end(index);
            }
            Event::Admitted { .. } | Event::Preempted { .. } => {}
        }
    }

    /// The attempt that an engine means, unless it was taken from it.
    fn running(&self, request: engine_model::RequestId) -> Option<(usize, usize, BookingId)> {
        let index = Client::index(request);
        let client = &self.clients[index];
        match client.place {
            Place::Runs {
                scheduler, booking, ..
            } if client.id(index) == request => Some((index, scheduler, booking)),
            Place::Runs { .. } | Place::Waits { .. } | Place::Over => None,
        }
    }
}

pub(crate) fn engine() -> Engine {
    Engine::new(Config::new(Profile::LLAMA_8B_A100).with_block_size(BLOCK_TOKENS))
}
