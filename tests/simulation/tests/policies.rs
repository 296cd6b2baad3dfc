//! The policies against each other, on a recorded trace, with the production scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use pool_simulator::{End, Load, Offer, Outcome, Scenario, replay};
use scheduler_core::Policy;
use scheduler_core::flow::Refuse;
use workload::trace::Embedded;
use workload::{Arrivals, Factor, Limits, Population, Requests, Schedule};

const REQUESTS: u64 = 1_500;

fn load(trace: Embedded, factor: f64, seed: u64, count: u64) -> Load {
    let arrivals = Arrivals::Recorded {
        factor: Factor::new(factor).expect("a factor"),
        jitter: trace.jitter(),
    };
    let limits = Limits {
        requests: Some(count),
        duration: None,
    };
    let requests = Requests::Trace(Arc::new(trace.load()));
    let schedule = Schedule::new(arrivals, requests, limits, seed).expect("a schedule");
    Load::new(schedule.map(Offer::from))
}

fn run(policy: Policy, load: &Load) -> Outcome {
    let scenario = Scenario {
        seed: 7,
        ..Scenario::new(policy)
    };
    replay(&scenario, load)
}

#[test]
fn predicted_cost_beats_round_robin_and_least_request() {
    for (trace, factor) in [
        (Embedded::MooncakeConversation, 2.4),
        (Embedded::MooncakeSynthetic, 2.0),
    ] {
        for seed in [1, 2] {
            let load = load(trace, factor, seed, REQUESTS);
            let policies = ["round-robin", "least-request", "weighted", "predicted-cost"];
            let table: BTreeMap<_, _> = policies
                .into_iter()
                .map(|name| (name, run(name.parse().expect("a policy"), &load)))
                .collect();
            println!("{trace} × {factor}, seed {seed}");
            for (name, outcome) in &table {
                let figures = outcome.figures();
                println!(
                    "  {name:<16} goodput {:5.1} %  TTFT p90 {:6.2} s  TPOT p99 {:6.1} ms",
                    figures.goodput * 100.0,
                    figures.ttft_s.p90,
                    figures.tpot_s.p99 * 1e3
                );
                let open = outcome
                    .records
                    .iter()
                    .filter(|record| record.end == End::Open);
                assert_eq!(open.count(), 0, "every request has one outcome");
                assert_eq!(outcome.abandoned, 0, "no busy engine is called hung");
            }
            let ours = table["predicted-cost"].figures();
            for other in ["round-robin", "least-request"] {
                let theirs = table[other].figures();
                assert!(ours.goodput > theirs.goodput, "goodput of {other}");
                assert!(ours.ttft_s.p90 < theirs.ttft_s.p90, "TTFT p90 of {other}");
            }
        }
    }
}

fn population(population: Population, factor: f64, seed: u64) -> Load {
    let factor = Factor::new(factor).expect("a factor");
    let requests = population.plan(factor, 2_500, None, seed);
    Load::new(requests.into_iter().map(Offer::from))
}

#[test]
fn in_overload_each_better_policy_serves_more_in_time() {
    let recorded =
        |trace: Embedded, factor: f64| (trace.to_string(), load(trace, factor, 1, 2_500));
    let generated = |kind: Population, factor: f64| (kind.to_string(), population(kind, factor, 1));
    for (name, load) in [
        recorded(Embedded::MooncakeConversation, 3.5),
        recorded(Embedded::MooncakeSynthetic, 3.5),
        generated(Population::Agentic, 5.0),
        generated(Population::Tenants, 5.0),
        generated(Population::Bursty, 8.0),
    ] {
        let names = [
            "round-robin",
            "weighted",
            "token-aware",
            "predicted-cost",
            "planned",
        ];
        let goodput = names.map(|policy| {
            let outcome = run(policy.parse().expect("a policy"), &load);
            100.0 * outcome.figures().goodput
        });
        let refusing = Scenario {
            refuse: Refuse::Doomed,
            seed: 7,
            ..Scenario::new(Policy::Planned)
        };
        let refusing = 100.0 * replay(&refusing, &load).figures().goodput;
        println!(
            "{name:<22} {names:?} {goodput:.1?}, planned and refusing the doomed {refusing:.1}"
        );
        let [others @ .., planned] = goodput;
        let best = others.into_iter().fold(0.0, f64::max);
        assert!(planned > best + 5.0, "{name}: {planned} beside {best}");
        assert!(
            refusing > planned + 0.5,
            "{name}: {refusing} beside {planned}"
        );
        // On prefixes that many share, and where none are shared, the lesser ones are close to each other.
        if name.starts_with("mooncake") {
            assert!(goodput.is_sorted(), "{name}: {goodput:?}");
        }
    }
}

#[test]
fn same_arguments_same_result() {
    let load = load(Embedded::MooncakeSynthetic, 2.0, 3, 300);
    for policy in Policy::ALL {
        // What has no value is NaN, which equals nothing but prints alike.
        let run = || format!("{:?}", run(policy, &load));
        assert_eq!(run(), run(), "{policy}");
    }
}
