//! Schedulers, engines, clients and what is true of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::AddAssign;
use std::time::Duration;

use engine_model::{Config, Engine, Profile};
use governance_context::AttemptId;
use governance_core::price::Book;
use scheduler_core::flow::FlowConfig;
use scheduler_core::{
    AttemptEnd, EndpointId, EndpointSpec, Input, Observation, Pool, PoolConfig, Timestamp,
};
use workload::BLOCK_TOKENS;

use crate::books::Books;
use crate::chance::Chance;
use crate::check::Limit;
use crate::client::{Client, Place};
use crate::ending::End;
use crate::governor::Governor;
use crate::trouble::Theme;
use crate::{tenants, trouble};

pub(crate) const ENGINES: u32 = 4;
pub(crate) const DEPTH: u32 = 4;
/// Of the prefix index, in bytes.
pub(crate) const INDEX: usize = 1 << 20;
const SCRAPE: u64 = 100_000_000;
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
    /// Requests without quota or too fast, and those that found no ledger.
    pub(crate) turned_away: u32,
    pub(crate) unavailable: u32,
    pub(crate) settled: u32,
    pub(crate) lost_writes: u32,
    /// Deaths of governance.
    pub(crate) crashes: u32,
    /// Words about attempts that came late, and ends told again.
    pub(crate) late: u32,
    pub(crate) repeated: u32,
    pub(crate) budgets: u32,
    pub(crate) resolved: u32,
    pub(crate) rolls: u32,
    /// Clients that left before they had a hold.
    pub(crate) left_early: u32,
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
        self.turned_away += other.turned_away;
        self.unavailable += other.unavailable;
        self.settled += other.settled;
        self.lost_writes += other.lost_writes;
        self.crashes += other.crashes;
        self.late += other.late;
        self.repeated += other.repeated;
        self.budgets += other.budgets;
        self.resolved += other.resolved;
        self.rolls += other.rolls;
        self.left_early += other.left_early;
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
    /// Nothing it says of its load is heard.
    pub(crate) is_mute: bool,
    /// Something has just made it look at all that waits. (After other news it looks a little later.)
    pub(crate) has_looked: bool,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) chance: Chance,
    /// Which words between schedulers are lost: of its own, since there are many of them.
    pub(crate) air: Chance,
    pub(crate) schedulers: Vec<Scheduler>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) clients: Vec<Client>,
    /// Clients without an end, in order.
    pub(crate) open: Vec<usize>,
    pub(crate) tally: Tally,
    pub(crate) l1: Governor,
    pub(crate) books: Books,
    pub(crate) book: Book,
    /// Attempts so far, and whose they are.
    pub(crate) attempts: u64,
    pub(crate) owners: BTreeMap<AttemptId, usize>,
    /// Who waits for a hold until when, in order.
    pub(crate) asking: VecDeque<(u64, usize)>,
    /// Tenants whose accounts may have changed.
    pub(crate) touched: BTreeSet<u64>,
    pub(crate) steps: u32,
    /// Governance and the schedulers can ask each other.
    pub(crate) is_one_process: bool,
    pub(crate) theme: Theme,
    pub(crate) disk_heals: u64,
    digest: u64,
    next_trouble: u64,
    pub(crate) is_healing: bool,
}

impl World {
    pub(crate) fn new(seed: u64, theme: Theme) -> Self {
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
            l1: Governor::new(Chance(chance.next())),
            books: Books::default(),
            book: tenants::book(),
            attempts: 0,
            owners: BTreeMap::new(),
            asking: VecDeque::new(),
            touched: BTreeSet::new(),
            steps: 0,
            is_one_process: seed.is_multiple_of(2),
            theme,
            disk_heals: 0,
            digest: 0,
            next_trouble: 1_000_000_000,
            is_healing: false,
            air: Chance(!seed),
            chance: Chance(chance.next()),
        };
        world.open_accounts();
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
        config.peers.every = Some(Duration::from_millis(100));
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
            is_mute: self.air.one_in(2),
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

    pub(crate) fn note(&mut self, what: u64) {
        self.digest = Chance(self.digest ^ what).next();
    }

    /// The next event, whatever it is, and everything that follows at once.
    pub(crate) fn step(&mut self) {
        let step = (0..self.seats.len())
            .filter(|at| self.seats[*at].mood != Mood::Hangs)
            .filter_map(|at| Some((self.seats[at].ends?, 1, at)))
            .min();
        let timeout = (0..self.schedulers.len())
            .filter_map(|at| Some((self.schedulers[at].pool.poll_timeout()?.0, 0, at)))
            .min();
        let scrape = (0..self.schedulers.len())
            .map(|at| (self.schedulers[at].next_scrape, 2, at))
            .min();
        let trouble = (!self.is_healing).then_some((self.next_trouble, 3, 0));
        let governance = self.l1.poll_timeout().map(|at| (at, 4, 0));
        let patience = self.asking.front().map(|(until, _)| (*until, 5, 0));
        let next = [step, timeout, scrape, trouble, governance, patience]
            .into_iter()
            .flatten()
            .min();
        let (at, kind, whose) = next.expect("a scheduler has a next scrape");
        self.now = self.now.max(at);
        match kind {
            // Whoever expires at this moment does so before anything else.
            0 => self.schedulers[whose]
                .pool
                .handle_timeout(Timestamp(self.now)),
            1 => self.step_ends(whose),
            2 => self.scrape(whose),
            4 => self.l1_moves(),
            5 => self.patience_ends(),
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
        self.l1.thaw(self.now);
        for scheduler in &mut self.schedulers {
            scheduler.pool.handle_timeout(Timestamp(self.now));
        }
        for seat in 0..self.seats.len() {
            self.seats[seat].mood = Mood::Well;
            self.list(seat as u32, Listed::Up);
        }
        self.settle();
        let end = self.now + 1_200_000_000_000;
        while !(self.open.is_empty() && self.l1.is_at_rest()) {
            assert!(self.now < end, "{} requests never end", self.open.len());
            self.step();
        }
        self.check_rest();
        self.check_money_at_rest();
        self.tally.resolved = self.resolved();
        self.tally.rolls = self.l1.kept.rolls();
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
                let end = self.chance.of(&[End::TimedOut, End::Cut]);
                self.hang_up(index, end);
            }
        }
    }

    /// Does what the schedulers ask for until they ask for nothing, and looks whether all is true.
    fn settle(&mut self) {
        self.act_all();
        self.check();
        self.check_money();
        self.write_money();
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
}

pub(crate) fn engine() -> Engine {
    Engine::new(Config::new(Profile::LLAMA_8B_A100).with_block_size(BLOCK_TOKENS))
}
