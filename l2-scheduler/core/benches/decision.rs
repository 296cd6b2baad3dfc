//! Prints what a decision costs in a large pool, and what the prefix index costs in time and memory.
//!
//! `cargo bench -p scheduler-core [-- PAIRS]`: 1,000 endpoints and ten million (block, endpoint) pairs by default.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock"
)]

use std::hint::black_box;
use std::time::Instant;

use governance_context::{Band, FairnessId};
use scheduler_core::residency::{Block, BlockHasher, Chunking, Holder, Residency, Seed};
use scheduler_core::{
    AttemptEnd, EndpointId, EndpointSpec, Input, Observation, Output, Policy, Pool, PoolConfig,
    Request, RequestKey, ResidencyConfig, Targets, Timestamp,
};

const ENDPOINTS: u32 = 1000;
const BLOCK: u16 = 16;
const SYSTEM_PROMPTS: u32 = 8;
const SYSTEM_TOKENS: u32 = 2048;

fn main() {
    let pairs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(10_000_000usize);
    println!("{ENDPOINTS} endpoints, {pairs} pairs, blocks of {BLOCK} tokens");
    hashing();
    index(pairs);
    for policy in [Policy::Planned, Policy::PredictedCost] {
        decisions(policy, pairs);
    }
}

/// A prompt of `length` tokens: one of a few system prompts, then what belongs to `session` alone.
fn prompt(session: u32, length: u32) -> Vec<Block> {
    let mut hasher = BlockHasher::new(
        Seed::new("model", None, "domain"),
        Chunking::Tokens { size: BLOCK },
    );
    for at in 0..length {
        let family = if at < SYSTEM_TOKENS {
            session % SYSTEM_PROMPTS
        } else {
            SYSTEM_PROMPTS + session
        };
        hasher.tokens(&[family.wrapping_mul(2_654_435_761) ^ at]);
    }
    hasher.finish()
}

fn hashing() {
    let text = vec![b'x'; 520_000];
    let run = || {
        let mut hasher = BlockHasher::new(Seed::new("model", None, "domain"), Chunking::default());
        hasher.text(black_box(&text));
        hasher.finish().len()
    };
    let times = measure(200, |_| run());
    println!(
        "hash 520 KB of text                     {}",
        Percentiles::of(times)
    );
}

fn index(pairs: usize) {
    let mut index = Residency::new(2 << 30, 7);
    let per_endpoint = pairs as u64 / u64::from(ENDPOINTS) * u64::from(BLOCK);
    let holders: Vec<Holder> = (0..ENDPOINTS)
        .map(|_| index.add_holder(per_endpoint))
        .collect();
    let (mut stored, mut session, mut storing) = (0, 0u32, 0.0);
    while index.pairs() < pairs * 98 / 100 {
        let blocks = prompt(session, 8192);
        let started = cpu_seconds();
        index.insert(holders[(session % ENDPOINTS) as usize], &blocks);
        storing += cpu_seconds() - started;
        stored += blocks.len();
        session += 1;
    }
    let ns = storing * 1e9 / stored as f64;
    println!(
        "store                                   {ns:.0} ns per stored pair ({} pairs)",
        index.pairs()
    );
    println!(
        "memory                                  {:.1} bytes per pair",
        index.bytes() as f64 / index.pairs() as f64
    );
    for (name, length) in [("8k", 8192), ("128k", 131_072)] {
        let known: Vec<Vec<Block>> = (0..512)
            .map(|at| prompt(session - 1 - at * 7, length))
            .collect();
        let times = measure(512, |at| {
            let mut sum = 0;
            index.lookup(&known[at], |holder, depth| sum += holder.index() + depth);
            sum
        });
        println!(
            "look up {name:<4} tokens                     {}",
            Percentiles::of(times)
        );
    }
    let mut storing = 0.0;
    for at in 0..2000u32 {
        let blocks = prompt(session + at, 8192);
        let started = cpu_seconds();
        index.insert(holders[(at % ENDPOINTS) as usize], &blocks);
        storing += cpu_seconds() - started;
    }
    let ns = storing * 1e9 / (2000.0 * 512.0);
    println!("store with eviction                     {ns:.0} ns per stored pair");
}

fn decisions(policy: Policy, pairs: usize) {
    let residency = ResidencyConfig {
        max_bytes: 2 << 30,
        ..ResidencyConfig::default()
    };
    let mut pool = Pool::new(
        PoolConfig {
            residency,
            policy,
            ..PoolConfig::default()
        },
        1,
    );
    let mut now = Timestamp(0);
    for id in 0..ENDPOINTS {
        pool.handle(
            now,
            Input::EndpointUp(EndpointSpec::new(EndpointId(id), &format!("engine-{id}"))),
        );
        let observation = Observation {
            waiting: Some(0),
            running: Some(0),
            kv_use: Some(0.1),
            block_size: Some(u32::from(BLOCK)),
            num_blocks: Some((pairs / ENDPOINTS as usize) as u64),
            ..Observation::default()
        };
        pool.handle(
            now,
            Input::Observed {
                endpoint: EndpointId(id),
                observation,
            },
        );
    }
    let sessions = (pairs / 512) as u32;
    let mut prefilling = std::collections::BTreeSet::new();
    let mut flight = std::collections::VecDeque::new();
    let mut turn = 0usize;
    let mut step = |pool: &mut Pool, session: u32, length: u32| {
        let request = Box::new(request(session, length));
        let clock = Instant::now();
        pool.handle(now, Input::Arrive(request));
        let mut output = pool.poll_output();
        let chosen = clock.elapsed().as_secs_f64();
        let mut sent = Vec::new();
        while let Some(Output::Dispatch {
            booking, decision, ..
        }) = output
        {
            sent.push((now.after_seconds(decision.predicted.ttft_s), booking));
            black_box(decision);
            output = pool.poll_output();
        }
        // Whatever comes next stores what was sent.
        let clock = Instant::now();
        pool.handle_timeout(now);
        let stored = clock.elapsed().as_secs_f64();
        // Engines do as predicted. Streams run at 50 ms a token, are told of about once a second, and end after 20 seconds.
        prefilling.extend(sent);
        while let Some((at, booking)) = prefilling.first().copied().filter(|(at, _)| *at <= now) {
            prefilling.pop_first();
            pool.handle(now, Input::FirstToken(booking));
            flight.push_back((booking, at));
        }
        for _ in 0..40.min(flight.len()) {
            turn += 4_001;
            let (booking, since) = flight[turn % flight.len()];
            let output_tokens = 1 + (now.seconds_since(since) / 0.05) as u64;
            let news = Input::Progress {
                booking,
                output_tokens,
            };
            pool.handle(now, news);
            while pool.poll_output().is_some() {}
        }
        while let Some((booking, since)) = flight.front().copied()
            && now.seconds_since(since) > 20.0
        {
            flight.pop_front();
            let end = AttemptEnd::Completed {
                cached_tokens: None,
                output_tokens: 400,
            };
            pool.handle(now, Input::Finished { booking, end });
        }
        while pool.poll_output().is_some() {}
        // As much work a second, however long the prompts.
        now = Timestamp(now.0 + 5_000_000 * u64::from(length.div_ceil(8192)));
        (chosen, stored)
    };
    for session in 0..sessions {
        step(&mut pool, session, 8192);
    }
    let snapshot = pool.snapshot(Timestamp(0));
    println!(
        "{policy}: {} pairs, {} bookings, index {} MB",
        snapshot.index_pairs,
        snapshot.bookings,
        snapshot.index_bytes >> 20
    );
    for (name, length, rounds) in [
        ("short", 200, 5000),
        ("8k", 8192, 5000),
        ("128k", 131_072, 300),
    ] {
        let (chosen, stored): (Vec<_>, Vec<_>) = (0..rounds)
            .map(|at| step(&mut pool, sessions - 1 - at % sessions, length))
            .unzip();
        println!(
            "arrive, choose, book {name:<5} tokens         {}",
            Percentiles::of(chosen)
        );
        println!(
            "  the next event stores its blocks      {}",
            Percentiles::of(stored)
        );
    }
}

fn request(session: u32, length: u32) -> Request {
    Request {
        key: RequestKey(u64::from(session)),
        model: "model".into(),
        fairness: FairnessId::new("tenant").expect("a valid name"),
        band: Band(0),
        weight: 1,
        prompt_tokens: u64::from(length),
        output_bound: 500,
        blocks: prompt(session, length),
        streaming: true,
        bytes: u64::from(length) * 4,
        expires_at: None,
        targets: Targets::default(),
        first_arrived: None,
        tried: Vec::new(),
    }
}

fn measure<T>(rounds: usize, mut run: impl FnMut(usize) -> T) -> Vec<f64> {
    (0..rounds)
        .map(|at| {
            let clock = Instant::now();
            black_box(run(at));
            clock.elapsed().as_secs_f64()
        })
        .collect()
}

/// Seconds this thread has had a processor, so that a busy machine does not count.
fn cpu_seconds() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat
        .split(' ')
        .next()
        .and_then(|nanos| nanos.parse::<f64>().ok())
        .unwrap_or(0.0)
        * 1e-9
}

struct Percentiles(f64, f64);

impl Percentiles {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(
            times[times.len() / 2] * 1e6,
            times[times.len() * 99 / 100] * 1e6,
        )
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:.1} µs, p99 {:.1} µs", self.0, self.1)
    }
}
