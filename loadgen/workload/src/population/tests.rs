use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::Population;
use crate::arrivals::Factor;
use crate::prompt::{BlockId, Prompt};
use crate::schedule::Planned;
use crate::spread_tenants;

fn plan(population: Population, factor: f64, requests: u64, seed: u64) -> Vec<Planned> {
    let factor = Factor::new(factor).expect("in range");
    population.plan(factor, requests, None, seed)
}

fn first_of_own(prompt: &Prompt) -> BlockId {
    prompt.runs().last().expect("a run").first
}

/// Requests in each second.
fn counts(planned: &[Planned]) -> Vec<f64> {
    let seconds = planned.last().map_or(0, |last| last.at.as_secs());
    let mut counts = vec![0.0; seconds as usize];
    for request in planned {
        if let Some(count) = counts.get_mut(request.at.as_secs() as usize) {
            *count += 1.0;
        }
    }
    counts
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn names_are_read_as_they_are_written() {
    for population in Population::ALL {
        assert_eq!(population.to_string().parse(), Ok(population));
    }
    assert!("agents".parse::<Population>().is_err());
}

#[test]
fn another_factor_has_more_users_and_the_same_lengths() {
    for population in Population::ALL {
        let rate = |factor| {
            let planned = plan(population, factor, 4_000, 5);
            4_000.0 / planned[3_999].at.as_secs_f64()
        };
        let grown = rate(4.0) / rate(1.0);
        assert!((3.4..4.6).contains(&grown), "{population}: {grown}");
    }
    let (one, four) = (
        plan(Population::Tenants, 1.0, 100, 5),
        plan(Population::Tenants, 4.0, 100, 5),
    );
    for (one, four) in one.iter().zip(&four) {
        assert_eq!(
            (&one.prompt, one.output_tokens),
            (&four.prompt, four.output_tokens)
        );
    }
}

#[test]
fn a_turn_repeats_all_before_it_and_comes_after_a_pause() {
    let planned = plan(Population::Agentic, 1.0, 6_000, 3);
    let mut sessions: BTreeMap<BlockId, Vec<&Planned>> = BTreeMap::new();
    for request in &planned {
        sessions
            .entry(first_of_own(&request.prompt))
            .or_default()
            .push(request);
    }
    let mut tenants = BTreeSet::new();
    for turns in sessions.values() {
        tenants.insert(turns[0].tenant);
        for pair in turns.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            assert_eq!(before.prompt.runs()[0], after.prompt.runs()[0]);
            let grown = after.prompt.tokens() - before.prompt.tokens();
            assert!(
                grown > before.output_tokens,
                "the answer and what a tool found"
            );
            let gap = after.at.saturating_sub(before.at);
            let least = 1.5 + 0.03 * f64::from(before.output_tokens);
            assert!(gap.as_secs_f64() >= least - 1e-6, "{gap:?} of {least}");
            assert!((50..=600).contains(&before.output_tokens));
        }
    }
    assert_eq!(tenants.len(), 8);
    // Whole sessions only: neither begun before the run nor cut by its end.
    let middle = 100..300;
    let whole = sessions
        .values()
        .filter(|turns| middle.contains(&turns[0].at.as_secs()));
    let lengths: Vec<f64> = whole.map(|turns| turns.len() as f64).collect();
    assert!((15.0..25.0).contains(&mean(&lengths)), "{}", mean(&lengths));
}

#[test]
fn agents_are_in_the_middle_of_their_work_when_the_run_begins() {
    for factor in [0.5, 4.0] {
        let counts = counts(&plan(Population::Agentic, factor, 8_000, 1));
        let (early, late) = counts.split_at(counts.len() / 2);
        let drift = mean(early) / mean(late);
        assert!((0.8..1.25).contains(&drift), "factor {factor}: {drift}");
    }
}

#[test]
fn tenants_are_many_and_of_very_different_size() {
    let planned = plan(Population::Tenants, 1.0, 20_000, 2);
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for request in &planned {
        *counts.entry(request.tenant).or_default() += 1;
        let runs = request.prompt.runs();
        assert_eq!(runs.len(), 2);
        assert!((2_048..=16_384).contains(&runs[0].tokens) && runs[0].tokens.is_multiple_of(512));
        assert!((500..=2_000).contains(&runs[1].tokens));
        assert!((100..=500).contains(&request.output_tokens));
    }
    let distinct: BTreeSet<_> = planned.iter().map(|r| r.prompt.runs()[0].first).collect();
    assert_eq!((counts.len(), distinct.len()), (300, 300));
    // 1 / (1 + 1/2 + … + 1/300)
    let first = f64::from(counts[&0]) / 20_000.0;
    assert!((first - 0.159).abs() < 0.01, "{first}");
}

#[test]
fn a_number_of_tenants_can_be_asked_for() {
    let factor = Factor::ONE;
    for population in Population::ALL {
        let planned = population.plan(factor, 3_000, Some(5), 2);
        let tenants: BTreeSet<u32> = planned.iter().map(|request| request.tenant).collect();
        assert_eq!(tenants, (0..5).collect(), "{population}");
    }
}

#[test]
fn what_begins_alike_belongs_to_one_tenant() {
    let mut planned = plan(Population::Agentic, 1.0, 2_000, 2);
    let before = planned.clone();
    spread_tenants(&mut planned, 40, 9);
    let mut tenants = BTreeMap::new();
    for request in &planned {
        let second = request.prompt.blocks().nth(1).map(|(block, _)| block);
        let tenant = tenants.entry(second).or_insert(request.tenant);
        assert_eq!(*tenant, request.tenant);
    }
    assert_ne!(planned, before);
}

#[test]
fn bursts_share_nothing_and_are_far_from_even() {
    for seed in 0..3 {
        let planned = plan(Population::Bursty, 1.0, 16_000, seed);
        let blocks: BTreeSet<BlockId> = planned.iter().map(|r| first_of_own(&r.prompt)).collect();
        assert_eq!(blocks.len(), 16_000);
        assert!(
            planned
                .iter()
                .all(|r| (50..=1_500).contains(&r.prompt.tokens()))
        );
        assert!(
            planned
                .iter()
                .all(|r| (20..=400).contains(&r.output_tokens))
        );
        let counts = counts(&planned);
        let squares: Vec<f64> = counts.iter().map(|c| (c - mean(&counts)).powi(2)).collect();
        let dispersion = mean(&squares) / mean(&counts);
        assert!(dispersion > 20.0, "Poisson would have 1: {dispersion}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn plans_are_sorted_counted_and_repeatable(seed: u64, factor in 0.1..8.0_f64, requests in 0_u64..300) {
        for population in Population::ALL {
            let planned = plan(population, factor, requests, seed);
            prop_assert_eq!(planned.len() as u64, requests);
            prop_assert!(planned.windows(2).all(|pair| pair[0].at <= pair[1].at));
            prop_assert!(planned.iter().zip(0..).all(|(request, index)| request.index == index));
            prop_assert_eq!(planned, plan(population, factor, requests, seed));
        }
    }
}
