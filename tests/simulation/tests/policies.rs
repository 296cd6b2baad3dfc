//! The policies against each other, on a recorded trace, with the production scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine_model::Profile;
use headpond_simulation::{Figures, Setting, replay};
use scheduler_core::Policy;
use workload::trace::Embedded;
use workload::{Arrivals, Factor, Limits, Planned, Requests, Schedule};

const REQUESTS: u64 = 1_500;

fn requests(trace: Embedded, factor: f64, seed: u64) -> Vec<Planned> {
    let arrivals = Arrivals::Recorded {
        factor: Factor::new(factor).expect("a factor"),
        jitter: trace.jitter(),
    };
    let limits = Limits {
        requests: Some(REQUESTS),
        duration: None,
    };
    let requests = Requests::Trace(Arc::new(trace.load()));
    Schedule::new(arrivals, requests, limits, seed)
        .expect("a schedule")
        .collect()
}

fn run(policy: Policy, requests: &[Planned]) -> Figures {
    replay(
        Setting {
            policy,
            profile: Profile::LLAMA_70B_8XH100,
            engines: 8,
            seed: 7,
        },
        requests,
    )
}

#[test]
fn predicted_cost_beats_round_robin_and_least_request() {
    for (trace, factor) in [
        (Embedded::MooncakeConversation, 2.4),
        (Embedded::MooncakeSynthetic, 2.0),
    ] {
        for seed in [1, 2] {
            let requests = requests(trace, factor, seed);
            let policies = ["round-robin", "least-request", "weighted", "predicted-cost"];
            let table: BTreeMap<_, _> = policies
                .into_iter()
                .map(|name| (name, run(name.parse().expect("a policy"), &requests)))
                .collect();
            println!("{trace} × {factor}, seed {seed}");
            for (name, figures) in &table {
                println!("  {name:<16} {figures}");
                assert_eq!(figures.ended(), REQUESTS, "every request has one outcome");
                assert_eq!(figures.abandoned, 0, "no busy engine is called hung");
            }
            let ours = &table["predicted-cost"];
            for other in ["round-robin", "least-request"] {
                let theirs = &table[other];
                assert!(
                    ours.goodput() > theirs.goodput(),
                    "goodput of {other}: {theirs} against {ours}"
                );
                assert!(
                    ours.ttft(0.9) < theirs.ttft(0.9),
                    "TTFT p90 of {other}: {theirs} against {ours}"
                );
            }
        }
    }
}

#[test]
fn same_arguments_same_result() {
    let requests = requests(Embedded::MooncakeSynthetic, 2.0, 3);
    let run = || run(Policy::PredictedCost, &requests[..300]);
    assert_eq!(run(), run());
}
