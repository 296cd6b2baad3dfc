//! How much faster than the clock eight engines run on virtual time, and how a simulation drives them:
//! long decoding runs that an arrival interrupts.
//!
//! Arguments: tokens per KV block (512), virtual seconds (3600), requests per second (8.5).

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use engine_model::{
    Config, ContentSeed, Engine, Event, Profile, Request, RequestId, hash_trace_blocks, words,
};

const ENGINES: usize = 8;
const TOKENS_PER_ID: u32 = 512;

/// What happens next: an arrival, or the end of a run of one engine unless it was interrupted since.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    RunEnds { engine: usize, generation: u64 },
    Arrival,
}

struct Seat {
    engine: Engine,
    begun: Duration,
    generation: u64,
}

struct Simulation {
    seats: Vec<Seat>,
    agenda: BinaryHeap<Reverse<(Duration, Happening)>>,
    now: Duration,
}

impl Simulation {
    fn begin(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        let Some(run) = seat.engine.begin(u32::MAX) else {
            return;
        };
        seat.begun = self.now;
        seat.generation += 1;
        let ends = Happening::RunEnds {
            engine: at,
            generation: seat.generation,
        };
        self.agenda.push(Reverse((self.now + run.duration, ends)));
    }

    fn arrive(&mut self, at: usize, request: Request) {
        let seat = &mut self.seats[at];
        seat.engine
            .submit(request)
            .expect("requests are shorter than the memory");
        let Some(end) = seat.engine.interrupt(self.now.saturating_sub(seat.begun)) else {
            return self.begin(at);
        };
        seat.generation += 1;
        let ends = Happening::RunEnds {
            engine: at,
            generation: seat.generation,
        };
        self.agenda.push(Reverse((seat.begun + end, ends)));
    }
}

fn unit(state: &mut u64) -> f64 {
    ((words::next(state) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// Lengths and sharing like those of chat traffic: 12,000 input tokens on average, a third of it seen
/// before.
fn request(id: u64, block_size: u32, state: &mut u64) -> Request {
    let prompt_tokens = (6_900.0 * (1.05 * normal(state)).exp()).clamp(600.0, 120_000.0) as u32;
    let output_tokens = (350.0 * (0.45 * normal(state)).exp()).clamp(1.0, 2_000.0) as u32;
    let ids = u64::from(prompt_tokens.div_ceil(TOKENS_PER_ID));
    let shared = ids * 2 / 5;
    let topic = words::next(state) % 60;
    let ids: Vec<u64> = (0..ids)
        .map(|i| {
            if i < shared {
                topic << 32 | i
            } else {
                id << 20 | i
            }
        })
        .collect();
    let blocks = hash_trace_blocks(
        ContentSeed::default(),
        block_size,
        &ids,
        TOKENS_PER_ID,
        prompt_tokens,
    );
    Request {
        id: RequestId(id),
        prompt_tokens,
        output_tokens,
        blocks,
        priority: 0,
    }
}

fn normal(state: &mut u64) -> f64 {
    (-2.0 * unit(state).ln()).sqrt() * (std::f64::consts::TAU * unit(state)).cos()
}

#[allow(
    clippy::disallowed_methods,
    reason = "this measures the real time that virtual time takes"
)]
fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|a| a.parse::<f64>().expect("a number"));
    let mut argument = |default: f64| arguments.next().unwrap_or(default);
    let (block_size, seconds, rate) = (argument(512.0) as u32, argument(3_600.0), argument(8.5));

    let config = Config::new(Profile::LLAMA_70B_8XH100).with_block_size(block_size);
    let seat = || Seat {
        engine: Engine::new(config.clone()),
        begun: Duration::ZERO,
        generation: 0,
    };
    let mut simulation = Simulation {
        seats: (0..ENGINES).map(|_| seat()).collect(),
        agenda: BinaryHeap::from([Reverse((Duration::ZERO, Happening::Arrival))]),
        now: Duration::ZERO,
    };
    let (mut state, mut requests, mut tokens) = (1, 0_u64, 0_u64);
    let begin = Instant::now();
    while let Some(Reverse((at, happening))) = simulation.agenda.pop() {
        simulation.now = at;
        match happening {
            Happening::Arrival => {
                let gap = -unit(&mut state).ln() / rate;
                let next = at + Duration::from_secs_f64(gap);
                if next.as_secs_f64() < seconds {
                    simulation.agenda.push(Reverse((next, Happening::Arrival)));
                }
                requests += 1;
                let request = request(requests, block_size, &mut state);
                simulation.arrive(requests as usize % ENGINES, request);
            }
            Happening::RunEnds { engine, generation } => {
                if simulation.seats[engine].generation != generation {
                    continue;
                }
                for event in simulation.seats[engine].engine.finish() {
                    if let Event::Tokens { new, .. } = event {
                        tokens += u64::from(*new);
                    }
                }
                simulation.begin(engine);
            }
        }
    }
    let real = begin.elapsed().as_secs_f64();
    let steps: u64 = simulation
        .seats
        .iter()
        .map(|s| s.engine.counters().steps)
        .sum();
    let cached: u64 = simulation
        .seats
        .iter()
        .map(|s| s.engine.counters().cached_tokens)
        .sum();
    let prompt: u64 = simulation
        .seats
        .iter()
        .map(|s| s.engine.counters().prompt_tokens)
        .sum();
    println!(
        "{requests} requests, {steps} steps, {tokens} tokens, {:.1} % of prompts cached, {:.0} virtual seconds in \
         {real:.3} s: {:.0} times real time",
        100.0 * cached as f64 / prompt as f64,
        simulation.now.as_secs_f64(),
        simulation.now.as_secs_f64() / real
    );
}
