//! The production scheduler in front of simulated engines, on virtual time: the same [`Pool`] that runs in the
//! process, the same step model that answers over HTTP, one queue of events between them. Same arguments, same result.

mod figures;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use engine_model::{Config, ContentSeed, Engine, Event, Profile, RequestId, hash_trace_blocks};
use governance_context::{Band, FairnessId};
use scheduler_core::residency::Block;
use scheduler_core::{
    AttemptEnd, BookingId, EndpointId, EndpointSpec, Input, Observation, Output, Policy, Pool,
    PoolConfig, Request, RequestKey, Timestamp,
};
use workload::{BLOCK_TOKENS, Planned};

pub use figures::Figures;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub policy: Policy,
    pub profile: Profile,
    pub engines: u32,
    /// Decides ties.
    pub seed: u64,
}

/// How often the scheduler looks at the engines' gauges.
const SCRAPE: Duration = Duration::from_millis(100);

/// What happens next. At one instant an engine goes on before the scheduler reacts, as in life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    StepEnds(usize),
    Scrape,
    Arrival(usize),
}

/// One request on its way.
struct Journey {
    arrived: Duration,
    prompt_tokens: u32,
    booking: BookingId,
    first: Option<Duration>,
}

struct Simulation<'a> {
    requests: &'a [Planned],
    profile: Profile,
    pool: Pool,
    engines: Vec<Engine>,
    stepping: Vec<bool>,
    agenda: BinaryHeap<Reverse<(Duration, Happening)>>,
    under_way: BTreeMap<RequestId, Journey>,
    figures: Figures,
    now: Duration,
}

/// Replays requests through a pool of equal engines until the last has ended.
pub fn replay(setting: Setting, requests: &[Planned]) -> Figures {
    let mut simulation = Simulation::new(setting, requests);
    simulation.run();
    simulation.figures
}

impl<'a> Simulation<'a> {
    fn new(setting: Setting, requests: &'a [Planned]) -> Self {
        let profile = setting.profile;
        let mut config = PoolConfig {
            policy: setting.policy,
            ..PoolConfig::default()
        };
        config.engine.prefill_rate = profile.peak_prefill_tokens_per_second();
        config.engine.batch_tokens = profile.max_batched_tokens;
        config.engine.room = u32::MAX;
        config.residency.default_capacity_tokens = profile.kv_tokens;
        let mut pool = Pool::new(config, setting.seed);
        for number in 0..setting.engines {
            let spec = EndpointSpec::new(EndpointId(number), &format!("engine-{number}"));
            pool.handle(Timestamp::ZERO, Input::EndpointUp(spec));
        }
        let mut agenda: BinaryHeap<_> = requests
            .iter()
            .enumerate()
            .map(|(index, request)| Reverse((request.at, Happening::Arrival(index))))
            .collect();
        agenda.push(Reverse((Duration::ZERO, Happening::Scrape)));
        let model = Config::new(profile).with_block_size(BLOCK_TOKENS);
        Self {
            requests,
            profile,
            pool,
            engines: (0..setting.engines)
                .map(|_| Engine::new(model.clone()))
                .collect(),
            stepping: vec![false; setting.engines as usize],
            agenda,
            under_way: BTreeMap::new(),
            figures: Figures::default(),
            now: Duration::ZERO,
        }
    }

    fn run(&mut self) {
        while self.figures.ended() < self.requests.len() as u64 {
            let next = self
                .agenda
                .peek()
                .map_or(Duration::MAX, |Reverse((at, _))| *at);
            if let Some(timeout) = self
                .pool
                .poll_timeout()
                .filter(|timeout| timeout.0 < nanoseconds(next))
            {
                self.now = self.now.max(Duration::from_nanos(timeout.0));
                self.pool.handle_timeout(self.stamp());
            } else {
                let Reverse((at, happening)) = self
                    .agenda
                    .pop()
                    .expect("whatever has not ended is on the agenda");
                self.now = self.now.max(at);
                self.happen(happening);
            }
            self.act();
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival(index) => self.arrive(index),
            Happening::StepEnds(engine) => self.step_ends(engine),
            Happening::Scrape => {
                for engine in 0..self.engines.len() {
                    self.scrape(engine);
                }
                self.agenda
                    .push(Reverse((self.now + SCRAPE, Happening::Scrape)));
            }
        }
    }

    fn arrive(&mut self, index: usize) {
        let planned = &self.requests[index];
        let mut end_tokens = 0;
        let blocks = planned
            .prompt
            .blocks()
            .filter(|(_, tokens)| *tokens == BLOCK_TOKENS)
            .map(|(id, tokens)| {
                end_tokens += tokens;
                // A trace's id names the whole prefix up to its block.
                Block {
                    hash: spread(id.0),
                    end_tokens,
                }
            });
        let request = Request {
            key: RequestKey(planned.index),
            model: Arc::from("model"),
            fairness: FairnessId::new("everyone").expect("a valid id"),
            band: Band(0),
            weight: 1,
            prompt_tokens: u64::from(planned.prompt.tokens()),
            output_bound: 0,
            blocks: blocks.collect(),
            streaming: true,
            bytes: 0,
            expires_at: None,
            targets: scheduler_core::Targets::default(),
            first_arrived: None,
            tried: Vec::new(),
        };
        self.pool
            .handle(self.stamp(), Input::Arrive(Box::new(request)));
    }

    fn act(&mut self) {
        while let Some(output) = self.pool.poll_output() {
            match output {
                Output::Dispatch {
                    request,
                    booking,
                    endpoint,
                    ..
                } => self.send(request, booking, endpoint),
                Output::Refuse { .. } => self.figures.refused(),
                // Simulated engines never hang: whoever is called hung proves the opposite.
                Output::Probe { endpoint } => {
                    self.pool
                        .handle(self.stamp(), Input::Probed { endpoint, ok: true });
                }
                Output::Abandon { .. } => self.figures.abandoned += 1,
            }
        }
    }

    fn send(&mut self, request: RequestKey, booking: BookingId, endpoint: EndpointId) {
        let planned = &self.requests[request.0 as usize];
        let ids: Vec<u64> = planned.prompt.blocks().map(|(id, _)| id.0).collect();
        let prompt_tokens = planned.prompt.tokens();
        let blocks = hash_trace_blocks(
            ContentSeed::default(),
            BLOCK_TOKENS,
            &ids,
            BLOCK_TOKENS,
            prompt_tokens,
        );
        let id = RequestId(request.0);
        let journey = Journey {
            arrived: planned.at,
            prompt_tokens,
            booking,
            first: None,
        };
        self.under_way.insert(id, journey);
        let engine = endpoint.0 as usize;
        let submitted = engine_model::Request {
            id,
            prompt_tokens,
            output_tokens: planned.output_tokens,
            blocks,
            priority: 0,
        };
        self.engines[engine]
            .submit(submitted)
            .expect("the requests of the traces fit the memory");
        self.begin(engine);
    }

    fn begin(&mut self, engine: usize) {
        if self.stepping[engine] {
            return;
        }
        if let Some(run) = self.engines[engine].begin(1) {
            self.stepping[engine] = true;
            self.agenda.push(Reverse((
                self.now + run.duration,
                Happening::StepEnds(engine),
            )));
        }
    }

    fn step_ends(&mut self, engine: usize) {
        let events = self.engines[engine].finish().to_vec();
        self.stepping[engine] = false;
        self.begin(engine);
        let now = self.stamp();
        for event in events {
            match event {
                Event::Tokens {
                    request,
                    new,
                    total,
                } => {
                    let journey = self.under_way.get_mut(&request).expect("it was sent");
                    let booking = journey.booking;
                    if new == total {
                        journey.first = Some(self.now);
                        self.pool.handle(now, Input::FirstToken(booking));
                    }
                    let output_tokens = u64::from(total);
                    self.pool.handle(
                        now,
                        Input::Progress {
                            booking,
                            output_tokens,
                        },
                    );
                }
                Event::Finished { request } => self.finished(request),
                Event::Admitted { cached_tokens, .. } => {
                    self.figures.cached_tokens += u64::from(cached_tokens);
                }
                Event::Preempted { .. } => {}
            }
        }
    }

    fn finished(&mut self, request: RequestId) {
        let journey = self
            .under_way
            .remove(&request)
            .expect("it was sent and ends once");
        let output_tokens = self.requests[request.0 as usize].output_tokens;
        let end = AttemptEnd::Completed {
            cached_tokens: None,
            output_tokens: u64::from(output_tokens),
        };
        self.pool.handle(
            self.stamp(),
            Input::Finished {
                booking: journey.booking,
                end,
            },
        );
        let first = journey.first.unwrap_or(self.now);
        let ttft = first.saturating_sub(journey.arrived).as_secs_f64();
        let tpot =
            self.now.saturating_sub(first).as_secs_f64() / f64::from(output_tokens.max(2) - 1);
        let target = 1.0 + 3.0 * self.profile.prefill_seconds(journey.prompt_tokens, 0);
        self.figures.prompt_tokens += u64::from(journey.prompt_tokens);
        self.figures.completed(
            ttft,
            tpot,
            ttft <= target && (output_tokens < 16 || tpot <= 0.1),
        );
    }

    fn scrape(&mut self, engine: usize) {
        let gauges = self.engines[engine].gauges();
        let observation = Observation {
            waiting: Some(gauges.waiting),
            running: Some(gauges.running),
            kv_use: Some(gauges.kv_use),
            kv_tokens: Some(self.profile.kv_tokens),
            ..Observation::default()
        };
        let endpoint = EndpointId(u32::try_from(engine).expect("few engines"));
        self.pool.handle(
            self.stamp(),
            Input::Observed {
                endpoint,
                observation,
            },
        );
    }

    fn stamp(&self) -> Timestamp {
        Timestamp(nanoseconds(self.now))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Small ids spread over the hash's range, as real hashes are (the finaliser of `splitmix64`).
fn spread(id: u64) -> u64 {
    let mut hash = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
