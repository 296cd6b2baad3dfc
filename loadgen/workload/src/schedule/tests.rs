use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{Generated, Limits, Planned, Requests, Schedule, ScheduleError};
use crate::arrivals::{Arrivals, Factor, Rate};
use crate::trace::{Embedded, Trace};

const GENERATED: Generated = Generated {
    input: crate::Lengths::Uniform {
        least: 100,
        most: 2_000,
    },
    output: crate::Lengths::Fixed(16),
    shared_tokens: 700,
    groups: 3,
};

fn rate(per_second: f64) -> Rate {
    Rate::new(per_second).expect("in range")
}

fn requests(limit: u64) -> Limits {
    Limits {
        requests: Some(limit),
        duration: None,
    }
}

fn replay(factor: f64, jitter_s: u64, limit: u64, seed: u64) -> Vec<Planned> {
    let trace = Arc::new(Embedded::MooncakeConversation.load());
    let factor = Factor::new(factor).expect("in range");
    let arrivals = Arrivals::Recorded {
        factor,
        jitter: Duration::from_secs(jitter_s),
    };
    Schedule::new(arrivals, Requests::Trace(trace), requests(limit), seed)
        .expect("a trace")
        .collect()
}

#[test]
fn a_replay_without_jitter_is_the_trace_divided_by_the_factor() {
    let trace = Embedded::MooncakeConversation.load();
    let planned = replay(2.0, 0, 500, 1);
    assert_eq!(planned.len(), 500);
    for (planned, recorded) in planned.iter().zip(trace.requests()) {
        assert_eq!(planned.at, recorded.at / 2);
        assert_eq!(
            (&planned.prompt, planned.output_tokens),
            (&recorded.prompt, recorded.output_tokens)
        );
    }
}

#[test]
fn jitter_spreads_the_bursts_of_the_trace_and_comes_from_the_seed() {
    let planned = replay(1.0, 3, 500, 1);
    let distinct: BTreeSet<Duration> = planned.iter().map(|request| request.at).collect();
    assert!(distinct.len() > 490);
    assert!(planned.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(planned, replay(1.0, 3, 500, 1));
    assert_ne!(planned, replay(1.0, 3, 500, 2));
}

#[test]
fn a_load_ends_at_whichever_limit_comes_first() {
    let count = |requests, millis: Option<u64>| {
        let limits = Limits {
            requests,
            duration: millis.map(Duration::from_millis),
        };
        let schedule = Schedule::new(
            Arrivals::Constant(rate(10.0)),
            Requests::Generated(GENERATED),
            limits,
            1,
        );
        schedule.expect("limited").count()
    };
    assert_eq!(count(Some(7), None), 7);
    assert_eq!(count(Some(7), Some(350)), 3);
    assert_eq!(count(Some(2), Some(350)), 2);
    assert_eq!(count(None, Some(1_050)), 10);
}

#[test]
fn a_trace_may_be_sent_at_another_law_of_arrivals() {
    let trace = Arc::new(Trace::parse("0\t512\t9\t0\n5\t512\t8\t0\n").expect("valid"));
    let schedule = Schedule::new(
        Arrivals::Constant(rate(1.0)),
        Requests::Trace(trace),
        Limits::default(),
        1,
    )
    .expect("valid");
    assert_eq!(schedule.expected(), Some(2));
    let outputs: Vec<(u64, u32)> = schedule
        .map(|planned| (planned.at.as_secs(), planned.output_tokens))
        .collect();
    assert_eq!(outputs, [(1, 9), (2, 8)]);
}

#[test]
fn generated_prompts_share_the_prefix_of_their_group_only() {
    let schedule = Schedule::new(
        Arrivals::Poisson(rate(5.0)),
        Requests::Generated(GENERATED),
        requests(200),
        1,
    );
    let planned: Vec<Planned> = schedule.expect("limited").collect();
    let long = planned
        .iter()
        .filter(|request| request.prompt.tokens() > 700);
    let (mut groups, mut own) = (BTreeSet::new(), BTreeSet::new());
    let mut count = 0;
    for request in long {
        let runs = request.prompt.runs();
        assert_eq!((runs.len(), runs[0].tokens), (2, 700));
        groups.insert(runs[0].first);
        own.insert(runs[1].first);
        count += 1;
    }
    assert_eq!((groups.len(), own.len()), (3, count));
}

#[test]
fn loads_that_cannot_be_are_refused() {
    let check = |arrivals, requests, expected| {
        assert_eq!(
            Schedule::new(arrivals, requests, Limits::default(), 1).map(|_| ()),
            Err(expected)
        );
    };
    let recorded = Arrivals::Recorded {
        factor: Factor::ONE,
        jitter: Duration::ZERO,
    };
    let empty = || Requests::Trace(Arc::new(Trace::parse("").expect("valid")));
    check(
        recorded,
        Requests::Generated(GENERATED),
        ScheduleError::NothingRecorded,
    );
    check(
        Arrivals::Constant(rate(1.0)),
        Requests::Generated(GENERATED),
        ScheduleError::Endless,
    );
    check(recorded, empty(), ScheduleError::Empty);
}

proptest! {
    #[test]
    fn schedules_are_sorted_limited_and_repeatable(seed: u64, per_second in 0.1..1_000.0_f64, limit in 0_u64..60) {
        let make = || Schedule::new(Arrivals::Poisson(rate(per_second)), Requests::Generated(GENERATED), requests(limit), seed)
            .expect("limited");
        let planned: Vec<Planned> = make().collect();
        prop_assert_eq!(planned.len() as u64, limit);
        prop_assert!(planned.windows(2).all(|pair| pair[0].at <= pair[1].at));
        prop_assert_eq!(planned, make().collect::<Vec<_>>());
    }
}
