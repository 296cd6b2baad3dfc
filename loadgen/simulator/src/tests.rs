//! Whole runs: against arithmetic where one engine has one request, against properties elsewhere.

use std::sync::Arc;
use std::time::Duration;

use engine_model::{Batch, Profile};
use proptest::prelude::*;
use scheduler_core::flow::Refuse;
use scheduler_core::{Policy, Targets};
use workload::cache::{Fleet, Spread, hit_ratio};
use workload::trace::Embedded;
use workload::{
    Answer, Arrivals, Factor, Limits, Planned, Population, Prompt, Requests, Run, Schedule, Trace,
};

use crate::{End, Load, Offer, Outcome, Record, Scenario, replay};

fn planned(at_ms: u64, first: u64, tokens: u32, output_tokens: u32) -> Planned {
    Planned {
        index: 0,
        at: Duration::from_millis(at_ms),
        prompt: Prompt::new([Run {
            first: workload::BlockId(first),
            tokens,
        }]),
        output_tokens,
        answer: Answer::Nobodys,
        tenant: 0,
    }
}

fn load(requests: impl IntoIterator<Item = Planned>) -> Load {
    Load::new(requests.into_iter().map(Offer::from))
}

fn alone() -> Scenario {
    Scenario {
        engines: 1,
        ..Scenario::new(Policy::Planned)
    }
}

/// Without NaN, which equals nothing.
fn told(outcome: &Outcome) -> String {
    format!("{outcome:?}")
}

#[test]
fn one_request_alone_takes_what_the_profile_says() {
    let profile = Profile::LLAMA_70B_8XH100;
    let outcome = replay(&alone(), &load([planned(250, 7, 20_000, 40)]));
    let record = outcome.records[0];
    let prefill = profile.prefill_seconds(20_000, 0);
    let mut batch = Batch::default();
    batch.add_decode(20_001);
    let decode = profile.decode_seconds(&batch, 39);
    assert_eq!(record.end, End::Completed);
    for (found, expected) in [
        (record.ttft_s, prefill),
        (record.best_ttft_s, prefill),
        (record.tpot_s, decode / 39.0),
        (record.total_s, prefill + decode),
        (outcome.assigned_s[0], prefill),
    ] {
        assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
    }
    assert!(record.stall_s > record.tpot_s && record.stall_s < record.tpot_s * 1.01);
    assert!(record.good && record.met_ttft);
    assert_eq!((record.cached_tokens, record.computed_tokens), (0, 20_000));
}

#[test]
fn what_was_sent_before_is_found_again_but_for_the_last_token() {
    let twice = load([planned(0, 7, 5_120, 4), planned(9_000, 7, 5_120, 4)]);
    let outcome = replay(&alone(), &twice);
    assert_eq!(outcome.records[1].cached_tokens, 5_120 - 512);
    assert!((twice.infinite_cache_hit_ratio() - 0.45).abs() < 1e-9);
    let best = Profile::LLAMA_70B_8XH100.prefill_seconds(512, 5_120 - 512);
    assert!((outcome.records[1].best_ttft_s - best).abs() < 1e-9);
}

#[test]
fn an_answer_that_the_next_turn_repeats_is_found_again() {
    let turns = |answer| {
        let turn = |at, tokens| Planned {
            answer,
            ..planned(at, 7, tokens, 1_536)
        };
        let load = load([turn(0, 1_024), turn(60_000, 4_096)]);
        replay(&alone(), &load).records[1].cached_tokens
    };
    // The last token of an answer is never computed, so its block is not full.
    assert_eq!(
        (turns(Answer::Nobodys), turns(Answer::Continues)),
        (1_024, 2_048)
    );
}

#[test]
fn a_target_of_its_own_decides_what_is_good() {
    let with = |ttft_ms: u64, tpot_us: u64| {
        let offer = Offer {
            targets: Targets {
                ttft: Some(Duration::from_millis(ttft_ms)),
                tpot: Some(Duration::from_micros(tpot_us)),
            },
            ..Offer::from(planned(0, 7, 1_000, 20))
        };
        replay(&alone(), &Load::new([offer])).records[0].good
    };
    // The prefill takes 60 ms, a token 15.3 ms.
    assert!(with(70, 16_000));
    assert!(!with(50, 16_000) && !with(70, 15_000));
}

#[test]
fn a_request_that_only_reads_ends_with_its_prefill() {
    let record = replay(&alone(), &load([planned(0, 7, 1_000, 0)])).records[0];
    assert_eq!(record.end, End::Completed);
    assert!((record.ttft_s - record.total_s).abs() < 1e-9 && record.tpot_s.is_nan());
    assert!(record.good);
}

#[test]
fn a_prompt_beyond_all_memory_is_refused() {
    let outcome = replay(&alone(), &load([planned(0, 7, 1_400_000, 4)]));
    assert_eq!(outcome.records[0].end, End::Refused("no_endpoint"));
    let none = replay(&alone(), &load([]));
    assert!(none.records.is_empty() && none.figures().goodput.abs() < 1e-9);
}

#[test]
fn the_best_cache_agrees_with_the_model_of_caches() {
    for embedded in Embedded::ALL {
        let trace = embedded.load();
        let expected = hit_ratio(&trace, Fleet::new(1, usize::MAX, Spread::PrefixAndLoad));
        let load = recorded(trace, 1.0, None);
        // It counts whole blocks only, and never the last token.
        let short = expected - load.infinite_cache_hit_ratio();
        assert!((0.0..0.02).contains(&short), "{embedded}: {short}");
    }
}

fn recorded(trace: Trace, factor: f64, requests: Option<u64>) -> Load {
    let arrivals = Arrivals::Recorded {
        factor: Factor::new(factor).expect("in range"),
        jitter: Duration::ZERO,
    };
    let limits = Limits {
        requests,
        duration: None,
    };
    load(Schedule::new(arrivals, Requests::Trace(Arc::new(trace)), limits, 1).expect("a trace"))
}

#[test]
fn a_run_that_is_given_up_agrees_with_the_whole_until_then() {
    let trace = Embedded::MooncakeSynthetic.load();
    let load = recorded(trace, 6.0, Some(400));
    let whole = Scenario {
        policy: Policy::RoundRobin,
        ..alone()
    };
    let missed = |outcome: &Outcome| outcome.records.iter().filter(|r| !r.good).count() as u64;
    let all = missed(&replay(&whole, &load));
    assert!(all > 100, "{all}");
    for patience in [0, 20, 100] {
        let some = Scenario {
            give_up_after: Some(patience),
            ..whole.clone()
        };
        let outcome = replay(&some, &load);
        assert!(missed(&outcome) > patience);
        assert!(outcome.records.iter().any(|record| record.end == End::Open));
    }
    let patient = Scenario {
        give_up_after: Some(all),
        ..whole.clone()
    };
    assert_eq!(told(&replay(&patient, &load)), told(&replay(&whole, &load)));
}

#[test]
fn a_run_is_given_up_for_whichever_target_is_missed() {
    for (ttft_us, tpot_us) in [(1, 1_000_000), (1_000_000, 1)] {
        let targets = Targets {
            ttft: Some(Duration::from_micros(ttft_us)),
            tpot: Some(Duration::from_micros(tpot_us)),
        };
        // One after the other.
        let offers = (0..30).map(|at| Offer {
            targets,
            ..Offer::from(planned(at * 5_000, at << 20, 1_000, 20))
        });
        let scenario = Scenario {
            give_up_after: Some(5),
            ..alone()
        };
        let outcome = replay(&scenario, &Load::new(offers));
        let open = outcome.records.iter().filter(|r| r.end == End::Open);
        assert!(
            (24..=25).contains(&open.count()),
            "{ttft_us} µs, {tpot_us} µs"
        );
    }
}

#[test]
fn a_prefill_beside_it_stalls_a_stream() {
    let both = load([planned(0, 7, 1_000, 200), planned(1_000, 1 << 20, 8_000, 4)]);
    let outcome = replay(&alone(), &both);
    let prefill = Profile::LLAMA_70B_8XH100.prefill_seconds(8_000, 0);
    let stall = outcome.records[0].stall_s;
    assert!(
        (prefill..prefill * 1.05).contains(&stall),
        "{stall} s beside {prefill} s"
    );
}

#[test]
fn schedulers_that_share_engines_serve_everyone_between_them() {
    let planned = Population::Tenants.plan(Factor::new(2.0).expect("in range"), 300, None, 4);
    let load = load(planned);
    for schedulers in [1, 2, 5] {
        let scenario = Scenario {
            schedulers,
            ..Scenario::new(Policy::Planned)
        };
        let outcome = replay(&scenario, &load);
        assert_eq!(outcome.figures().completed, 300, "{schedulers} schedulers");
    }
}

fn any_policy() -> impl Strategy<Value = Policy> {
    (0..Policy::ALL.len()).prop_map(|at| Policy::ALL[at])
}

fn check(record: &Record) {
    match record.end {
        End::Completed => {
            assert!(record.ttft_s >= record.best_ttft_s - 1e-6, "{record:?}");
            assert!(record.total_s >= record.ttft_s, "{record:?}");
            assert!(record.cached_tokens < record.prompt_tokens, "{record:?}");
            assert!(record.computed_tokens + record.cached_tokens >= record.prompt_tokens);
            assert!(record.met_ttft || !record.good);
        }
        End::Refused(_) => assert!(!record.good && !record.in_time),
        End::Open => unreachable!("a run that is not given up ends every request"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Overload, several schedulers, few engines, and a profile with little memory.
    #[test]
    fn every_request_ends_once_and_the_same_way_again(
        policy in any_policy(),
        population in 0..3_usize,
        factor in 0.5..40.0_f64,
        engines in 1..4_u32,
        schedulers in 1..4_u32,
        is_small: bool,
        refuses: bool,
        seed in 0..1_000_u64,
    ) {
        let factor = Factor::new(factor).expect("in range");
        let load = load(Population::ALL[population].plan(factor, 60, None, seed));
        let scenario = Scenario {
            engines,
            schedulers,
            seed,
            profile: if is_small { Profile::LLAMA_8B_A100 } else { Profile::QWEN_32B_2XH100 },
            refuse: if refuses { Refuse::Doomed } else { Refuse::Never },
            ..Scenario::new(policy)
        };
        let outcome = replay(&scenario, &load);
        prop_assert_eq!(outcome.records.len(), 60);
        outcome.records.iter().for_each(check);
        prop_assert_eq!(told(&outcome), told(&replay(&scenario, &load)));
    }
}
