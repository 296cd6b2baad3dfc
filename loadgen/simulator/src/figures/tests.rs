use governance_context::Band;

use super::{Drops, Figures};
use crate::outcome::{End, Outcome, Record};

/// A good answer of 100 tokens to a prompt of 1,000, of which nothing was cached.
fn answered() -> Record {
    Record {
        tenant: 0,
        band: Band(0),
        prompt_tokens: 1_000,
        output_tokens: 100,
        end: End::Completed,
        ttft_s: 0.2,
        tpot_s: 0.03,
        stall_s: 0.1,
        total_s: 3.2,
        best_ttft_s: 0.1,
        believed_tokens: 0,
        cached_tokens: 0,
        computed_tokens: 1_000,
        met_ttft: true,
        good: true,
        in_time: true,
        arrived_s: 0.0,
        waited_s: 0.0,
    }
}

fn refused(prompt_tokens: u32) -> Record {
    Record {
        prompt_tokens,
        end: End::Refused("queue_wait"),
        ttft_s: f64::NAN,
        tpot_s: f64::NAN,
        stall_s: f64::NAN,
        total_s: f64::NAN,
        computed_tokens: 0,
        met_ttft: false,
        good: false,
        in_time: false,
        ..answered()
    }
}

fn figures(records: &[Record]) -> Figures {
    let outcome = Outcome {
        records: records.to_vec(),
        ..Outcome::default()
    };
    outcome.figures()
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
}

#[test]
fn goodput_counts_all_that_was_offered() {
    let slow = Record {
        good: false,
        ..answered()
    };
    let found = figures(&[answered(), slow, refused(10), answered()]);
    assert_eq!((found.offered, found.completed), (4, 3));
    near(found.goodput, 0.5);
}

#[test]
fn quantiles_are_of_those_that_have_the_value() {
    let slow = |ttft_s| Record {
        ttft_s,
        ..answered()
    };
    let records: Vec<Record> = (1..=100).map(|at| slow(f64::from(at))).collect();
    let found = figures(&[&records[..], &[refused(1)]].concat());
    near(found.ttft_s.p50, 51.0);
    near(found.ttft_s.p90, 91.0);
    near(found.ttft_s.p99, 100.0);
    near(found.ttft_s.mean, 50.5);
    near(found.slowdown.p50, 510.0);
    let none = figures(&[refused(1)]);
    assert!(none.ttft_s.p50.is_nan() && none.tpot_s.mean.is_nan());
}

#[test]
fn short_answers_have_no_pace() {
    let short = Record {
        output_tokens: 15,
        tpot_s: 9.0,
        ..answered()
    };
    near(figures(&[answered(), short]).tpot_s.p99, 0.03);
}

#[test]
fn drops_are_told_apart_by_cause_and_length() {
    let other = Record {
        end: End::Refused("queue_full"),
        ..refused(7)
    };
    let found = figures(&[
        refused(4_096),
        refused(4_097),
        refused(27_000),
        refused(27_001),
        other,
        answered(),
    ]);
    let expected = Drops {
        short: 1,
        medium: 2,
        long: 1,
    };
    assert_eq!(found.drops["queue_wait"], expected);
    assert_eq!(found.drops["queue_full"].total(), 1);
}

#[test]
fn prefill_is_wasted_on_whoever_gets_no_first_token_in_time() {
    let late = Record {
        met_ttft: false,
        good: false,
        computed_tokens: 600,
        ..answered()
    };
    let given_up = Record {
        computed_tokens: 400,
        ..refused(1_000)
    };
    near(figures(&[answered(), late, given_up]).wasted_prefill, 0.5);
}

#[test]
fn hits_are_those_of_answered_requests() {
    let cached = Record {
        cached_tokens: 500,
        computed_tokens: 500,
        ..answered()
    };
    near(
        figures(&[answered(), cached, refused(9_000)]).hit_ratio,
        0.25,
    );
}

#[test]
fn a_part_of_the_requests_has_figures_of_its_own() {
    let other = Record {
        tenant: 1,
        good: false,
        ..answered()
    };
    let outcome = Outcome {
        records: vec![answered(), other],
        ..Outcome::default()
    };
    near(
        outcome.figures_where(|record| record.tenant == 0).goodput,
        1.0,
    );
    near(
        outcome.figures_where(|record| record.tenant == 1).goodput,
        0.0,
    );
}

/// WTU of tenants: served while requests arrived, and refused.
fn fairness(tenants: &[(u32, u32)]) -> Figures {
    let mut records = Vec::new();
    for (tenant, (served, left)) in (0..).zip(tenants) {
        let one = |end, in_time| Record {
            tenant,
            prompt_tokens: 800,
            end,
            in_time,
            ..answered()
        };
        records.extend((0..*served).map(|_| one(End::Completed, true)));
        records.extend((0..*left).map(|_| one(End::Refused("queue_wait"), false)));
    }
    figures(&records)
}

#[test]
fn whoever_is_served_alike_or_has_all_it_wants_is_treated_fairly() {
    near(fairness(&[(50, 200), (50, 10)]).jain, 1.0);
    near(fairness(&[(80, 200), (20, 0)]).jain, 1.0);
    near(fairness(&[(7, 0), (1, 0), (90, 0)]).jain, 1.0);
    near(fairness(&[(100, 100), (0, 100)]).jain, 0.5);
    assert!(fairness(&[(80, 200), (20, 200)]).jain < 0.8);
    near(fairness(&[(75, 0), (25, 0)]).wtu_shares[&0], 0.75);
}

#[test]
fn imbalance_is_the_busiest_engine_against_the_mean() {
    let assigned = |assigned_s: &[f64]| Outcome {
        assigned_s: assigned_s.to_vec(),
        ..Outcome::default()
    };
    near(assigned(&[3.0, 1.0, 2.0]).imbalance(), 1.5);
    near(assigned(&[0.0, 0.0]).imbalance(), 1.0);
}
