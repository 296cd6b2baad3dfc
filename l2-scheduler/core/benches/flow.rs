//! Prints what flow control costs: joining and leaving a long line, and one turn of the plan in a large pool.
//!
//! `cargo bench -p scheduler-core --bench flow`. Beside the lines stands the same machine's time for a look-up in a `BTreeMap`
//! of as many entries, and beside the turns that of plain arithmetic, so that machines can be compared.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use governance_context::{Band, FairnessId};
use scheduler_core::flow::{BandConfig, FlowConfig, Limits, Refuse};
use scheduler_core::{
    AttemptEnd, BookingId, EndpointId, EndpointLoad, EndpointSpec, Extent, Input, LoadVector,
    Observation, Output, PeerId, Pool, PoolConfig, Request, RequestKey, Targets, Timestamp,
};

fn main() {
    line(100_000, 10_000);
    turn(1000, 64, 16);
    turn(32, 64, 16);
    turn(8, 64, 16);
    hear(1000, 15);
    hear(8, 15);
}

/// A pool whose limits are no limits.
fn pool() -> Pool {
    let limits = Limits {
        requests: usize::MAX,
        bytes: u64::MAX,
    };
    let mut config = PoolConfig::default();
    config.flow = FlowConfig {
        pool_limits: limits,
        flow_limits: limits,
        other_bands: BandConfig {
            limits,
            refuse: Refuse::Never,
            ttl: std::time::Duration::from_hours(10),
            ..BandConfig::default()
        },
        ..config.flow
    };
    config.engine.room = 1 << 20;
    config.engine.depth = 1;
    config.health.hang_floor = std::time::Duration::from_hours(1);
    Pool::new(config, 1)
}

fn line(waiting: u64, flows: u64) {
    let mut pool = pool();
    let mut now = Timestamp(1);
    for id in 0..8 {
        let spec = EndpointSpec::new(EndpointId(id), &format!("engine-{id}"));
        pool.handle(now, Input::EndpointUp(spec));
    }
    let names: Vec<_> = (0..flows)
        .map(|flow| FairnessId::new(format!("flow-{flow}")).expect("a short name"))
        .collect();
    let mut sent = Vec::new();
    let mut join = Vec::new();
    for key in 0..waiting + 8 {
        let flow = &names[(key.wrapping_mul(0x9e37_79b9) % flows) as usize];
        let request = Box::new(request(key, flow.clone(), 4000));
        now.0 += 10_000;
        let clock = Instant::now();
        pool.handle(now, Input::Arrive(request));
        while let Some(output) = pool.poll_output() {
            note(&output, &mut sent);
        }
        join.push(clock.elapsed().as_secs_f64());
    }
    let join = join.split_off(join.len() - 10_000);
    let reference = reference(waiting);
    println!("{waiting} waiting in {flows} flows; a look-up in a map of as many: {reference}");
    println!("join the line                     {}", Times::of(join));
    let mut leave = Vec::new();
    for _ in 0..5_000 {
        let Some(booking) = sent.pop() else { break };
        now.0 += 10_000;
        pool.handle(now, Input::FirstToken(booking));
        let end = AttemptEnd::Completed {
            cached_tokens: None,
            output_tokens: 100,
        };
        let clock = Instant::now();
        pool.handle(now, Input::Finished { booking, end });
        let output = pool.poll_output();
        leave.push(clock.elapsed().as_secs_f64());
        for output in output
            .into_iter()
            .chain(std::iter::from_fn(|| pool.poll_output()))
        {
            note(&output, &mut sent);
        }
    }
    println!("an end lets the next one go       {}", Times::of(leave));
}

fn note(output: &Output, sent: &mut Vec<BookingId>) {
    if let Output::Dispatch { booking, .. } = output {
        sent.push(*booking);
    }
}

/// One turn with `waiting` requests that all have to wait, before `endpoints` with `streams` decoding each, and the same of
/// one event: the engine that had news is looked at again, and the plan made anew.
fn turn(endpoints: u32, streams: u32, waiting: u64) {
    let mut pool = pool();
    let mut now = Timestamp(1);
    for id in 0..endpoints {
        let spec = EndpointSpec::new(EndpointId(id), &format!("engine-{id}"));
        pool.handle(now, Input::EndpointUp(spec));
    }
    let flow = FairnessId::new("flow").expect("a short name");
    let mut key = 0;
    let mut running = Vec::new();
    while running.len() < (endpoints * streams) as usize {
        key += 1;
        now.0 += 1_000_000;
        pool.handle(
            now,
            Input::Arrive(Box::new(request(key, flow.clone(), 100))),
        );
        while let Some(output) = pool.poll_output() {
            if let Output::Dispatch { booking, .. } = output {
                pool.handle(now, Input::FirstToken(booking));
                running.push((booking, now));
            }
        }
    }
    // A prompt that never ends its prefill closes an endpoint; when all are closed the rest waits.
    let mut fill = |pool: &mut Pool, now: Timestamp| {
        while (pool.snapshot(now).queue_length as u64) < waiting {
            key += 1;
            let request = request(key, flow.clone(), 9000);
            pool.handle(now, Input::Arrive(Box::new(request)));
            while pool.poll_output().is_some() {}
        }
    };
    let mut plain = Vec::new();
    let mut turns = Vec::new();
    let mut events = Vec::new();
    for round in 0..2_000 {
        plain.push(arithmetic());
        fill(&mut pool, now);
        now.0 += 50_000_000;
        // Every stream is told of once a second, and has kept 80 to 120 ms a token.
        for at in (round % 20..running.len()).step_by(20) {
            let (booking, since) = running[at];
            let pace_s = 0.08 + 0.04 * (at % 16) as f64 / 16.0;
            let output_tokens = 1 + (now.seconds_since(since) / pace_s) as u64;
            let news = Input::Progress {
                booking,
                output_tokens,
            };
            pool.handle(now, news);
            while pool.poll_output().is_some() {}
        }
        let clock = Instant::now();
        pool.handle_timeout(now);
        while pool.poll_output().is_some() {}
        turns.push(clock.elapsed().as_secs_f64());
        now.0 += 1_000;
        let end = AttemptEnd::Completed {
            cached_tokens: None,
            output_tokens: 100,
        };
        if running.is_empty() {
            break;
        }
        let (booking, _) = running.swap_remove(round * 7919 % running.len());
        let clock = Instant::now();
        pool.handle(now, Input::Finished { booking, end });
        while pool.poll_output().is_some() {}
        events.push(clock.elapsed().as_secs_f64());
    }
    println!("{waiting} waiting, {endpoints} endpoints of {streams} streams");
    println!("  arithmetic between them         {}", Times::of(plain));
    println!("  a turn after 50 ms of news      {}", Times::of(turns));
    println!("  a turn after one event          {}", Times::of(events));
}

/// What load vectors of `peers` other schedulers cost who hears them, before `endpoints`: all of the load, every hundred
/// milliseconds, and between two of those news of one endpoint. A request waits meanwhile.
fn hear(endpoints: u32, peers: u64) {
    let mut pool = pool();
    let mut now = Timestamp(1);
    for id in 0..endpoints {
        let mut spec = EndpointSpec::new(EndpointId(id), &format!("engine-{id}"));
        spec.room = Some(1);
        pool.handle(now, Input::EndpointUp(spec));
    }
    let flow = FairnessId::new("flow").expect("a short name");
    for key in 0..=u64::from(endpoints) {
        let request = request(key, flow.clone(), 100);
        pool.handle(now, Input::Arrive(Box::new(request)));
        while pool.poll_output().is_some() {}
    }
    assert_eq!(pool.snapshot(now).queue_length, 1);
    let load = |id: u32| EndpointLoad {
        endpoint: format!("engine-{id}").into(),
        prefilling: 1,
        pending_tokens: 1000,
        pending_double_area: 1_000_000,
        pending_context: 1000,
        decoding: 4,
        decoding_context: 8000,
        slack: [0, 0, 1, 1, 1, 1, 0, 0],
    };
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..2_000 * peers {
        let (turn, peer) = (round / peers, PeerId(round % peers));
        now.0 += 20_000_000 / peers;
        if round % (50 * peers) == 0 {
            scrape(&mut pool, now, endpoints);
        }
        let news = load((round * 7919 % u64::from(endpoints)) as u32);
        let (extent, loads) = if turn % 5 == 0 {
            (Extent::Whole, (0..endpoints).map(load).collect())
        } else {
            (Extent::Changed, vec![news])
        };
        let vector = LoadVector {
            extent,
            endpoints: loads,
            ..LoadVector::default()
        };
        let kind = usize::from(extent == Extent::Changed);
        let clock = Instant::now();
        pool.handle(now, Input::PeerLoad { peer, vector });
        while pool.poll_output().is_some() {}
        times[kind].push(clock.elapsed().as_secs_f64());
        if pool.poll_timeout().is_some_and(|at| at <= now) {
            let clock = Instant::now();
            pool.handle_timeout(now);
            while pool.poll_output().is_some() {}
            times[2 + kind].push(clock.elapsed().as_secs_f64());
        }
    }
    let [whole, news, after_whole, after_news] = times.map(Times::of);
    println!("vectors of {peers} other schedulers, {endpoints} endpoints, one waiting");
    println!("  hear all of a load              {whole}");
    println!("  hear news of one endpoint       {news}");
    println!("  a turn among wholes             {after_whole}");
    println!("  a turn among news               {after_news}");
}

/// Every engine says that it is there.
fn scrape(pool: &mut Pool, now: Timestamp, endpoints: u32) {
    for id in 0..endpoints {
        let endpoint = EndpointId(id);
        let observation = Observation {
            waiting: Some(0),
            running: Some(5),
            kv_use: Some(0.1),
            ..Observation::default()
        };
        let news = Input::Observed {
            endpoint,
            observation,
        };
        pool.handle(now, news);
        while pool.poll_output().is_some() {}
    }
}

fn request(key: u64, fairness: FairnessId, prompt_tokens: u64) -> Request {
    Request {
        key: RequestKey(key),
        model: "model".into(),
        fairness,
        band: Band(0),
        weight: 1,
        prompt_tokens,
        output_bound: 500,
        blocks: Vec::new(),
        streaming: true,
        bytes: 4 * prompt_tokens,
        expires_at: None,
        targets: Targets::default(),
        first_arrived: None,
        tried: Vec::new(),
    }
}

/// Takes about as long as a turn of a large pool, always does the same, and needs no memory: its tail is the machine's.
fn arithmetic() -> f64 {
    let clock = Instant::now();
    let sum = (0..black_box(60_000_u64)).fold(0_u64, |sum, at| {
        (sum ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    black_box(sum);
    clock.elapsed().as_secs_f64()
}

fn reference(entries: u64) -> Times {
    let spread = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let map: BTreeMap<u64, u64> = (0..entries).map(|at| (spread(at), at)).collect();
    let times = (0..10_000).map(|at| {
        let clock = Instant::now();
        black_box(map.get(&spread(at * 7 % entries)));
        clock.elapsed().as_secs_f64()
    });
    Times::of(times.collect())
}

struct Times(f64, f64);

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |share: usize| {
            times
                .get(times.len() * share / 100)
                .copied()
                .unwrap_or(f64::NAN)
        };
        Self(at(50) * 1e6, at(99) * 1e6)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:.2} µs, p99 {:.2} µs", self.0, self.1)
    }
}
