//! What one run of a whole trace takes in real time, policy by policy.
//!
//! Arguments: load factor (3), workload (`mooncake_conversation`), requests (12031), policies (all).

use std::sync::Arc;
use std::time::Instant;

use pool_simulator::{Load, Offer, Scenario, replay};
use scheduler_core::Policy;
use workload::trace::Embedded;
use workload::{Arrivals, Factor, Limits, Planned, Population, Requests, Schedule};

fn planned(name: &str, factor: Factor, requests: u64, seed: u64) -> Vec<Planned> {
    if let Ok(population) = name.parse::<Population>() {
        return population.plan(factor, requests, None, seed);
    }
    let trace: Embedded = name.parse().expect("a workload");
    let arrivals = Arrivals::Recorded {
        factor,
        jitter: trace.jitter(),
    };
    let limits = Limits {
        requests: Some(requests),
        duration: None,
    };
    Schedule::new(
        arrivals,
        Requests::Trace(Arc::new(trace.load())),
        limits,
        seed,
    )
    .expect("a trace")
    .collect()
}

#[allow(
    clippy::disallowed_methods,
    reason = "this measures the real time that virtual time takes"
)]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument =
        |at: usize, default: &str| arguments.get(at).map_or(default, String::as_str).to_owned();
    let factor: Factor = argument(0, "3").parse().expect("a factor");
    let requests = argument(2, "12031").parse().expect("a number of requests");
    let planned = planned(&argument(1, "mooncake_conversation"), factor, requests, 1);
    let chosen = argument(3, "");
    let policies = Policy::ALL
        .into_iter()
        .filter(|policy| chosen.is_empty() || chosen.split(',').any(|name| name == policy.name()));
    let begin = Instant::now();
    let load = Load::new(planned.into_iter().map(Offer::from));
    println!(
        "{} requests prepared in {:.0} ms, infinite cache {:.1} %",
        load.len(),
        begin.elapsed().as_secs_f64() * 1e3,
        100.0 * load.infinite_cache_hit_ratio()
    );
    for policy in policies {
        let begin = Instant::now();
        let outcome = replay(&Scenario::new(policy), &load);
        let real = begin.elapsed().as_secs_f64();
        let figures = outcome.figures();
        println!(
            "{:<16} {real:6.3} s  {:6} steps  {:5.0} virtual s  goodput {:5.1} %  TTFT p50 {:6.2} p99 {:6.2} s  TPOT p99 {:5.1} ms  hit {:4.1} %",
            policy.name(),
            outcome.steps,
            outcome.seconds,
            100.0 * figures.goodput,
            figures.ttft_s.p50,
            figures.ttft_s.p99,
            1e3 * figures.tpot_s.p99,
            100.0 * figures.hit_ratio,
        );
    }
}
