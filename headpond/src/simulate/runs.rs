//! Carrying a plan out: every source with every variant, at one load or at the largest that is sustained.

use std::collections::BTreeMap;

use pool_simulator::{Bracket, Drops, Figures, Load, Outcome, Scenario, capacity, replay};
use workload::Factor;

use super::check::{MOST_LOAD, Plan, Variant};
use super::parallel::{self, Progress};
use super::source::Source;

/// A load is sustained while this share of all offered requests is good.
pub(super) const GOOD: f64 = 0.95;
/// The least load that is looked at: with less, nothing is said.
pub(super) const LEAST_LOAD: f64 = 0.05;

/// One source with one variant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) source: String,
    pub(super) variant: Variant,
    /// The load factor of its runs.
    pub(super) load: f64,
    pub(super) verdict: Verdict,
    /// One per seed.
    pub(super) runs: Vec<Run>,
}

/// Whether the load was asked for or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Asked,
    /// The largest that is sustained.
    Sustained,
    /// Not even the least is sustained; its runs are those of the least.
    Nothing,
}

/// What one seed gave.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) figures: Figures,
    pub(super) imbalance: f64,
    /// Of the hits that one cache would have which never forgets; 1 where there are none.
    pub(super) hits_of_best: f64,
    pub(super) deepest_engine_queue: u32,
    pub(super) preemptions: u64,
    pub(super) abandoned: u64,
    pub(super) virtual_seconds: f64,
}

pub(super) fn rows(plan: &Plan, threads: usize, progress: Progress) -> Vec<Row> {
    let tasks: Vec<(&Source, Variant)> = plan
        .sources
        .iter()
        .flat_map(|source| plan.variants.iter().map(move |variant| (source, *variant)))
        .collect();
    match plan.load {
        None => parallel::map(&tasks, threads, progress, |(source, variant)| {
            sustained(plan, source, *variant)
        }),
        Some(factor) => at_load(plan, &tasks, factor, threads, progress),
    }
}

/// Every seed is a task of its own.
fn at_load(
    plan: &Plan,
    tasks: &[(&Source, Variant)],
    factor: Factor,
    threads: usize,
    progress: Progress,
) -> Vec<Row> {
    let single: Vec<(&Source, Variant, u64)> = tasks
        .iter()
        .flat_map(|(source, variant)| plan.seeds.iter().map(|seed| (*source, *variant, *seed)))
        .collect();
    let runs = parallel::map(&single, threads, progress, |(source, variant, seed)| {
        let load = source.load(factor, plan.requests, plan.tenants, *seed);
        Run::of(
            *seed,
            &load,
            &replay(&scenario(plan, *variant, *seed), &load),
        )
    });
    let mut runs = runs.into_iter();
    tasks
        .iter()
        .map(|(source, variant)| Row {
            source: source.to_string(),
            variant: *variant,
            load: factor.get(),
            verdict: Verdict::Asked,
            runs: runs.by_ref().take(plan.seeds.len()).collect(),
        })
        .collect()
}

fn scenario(plan: &Plan, variant: Variant, seed: u64) -> Scenario {
    Scenario {
        policy: variant.policy,
        refuse: variant.refuse,
        seed,
        ..plan.scenario.clone()
    }
}

/// Looks for the largest load whose goodput, as the mean of all seeds, is enough.
fn sustained(plan: &Plan, source: &Source, variant: Variant) -> Row {
    let bracket = Bracket {
        limits: (LEAST_LOAD, MOST_LOAD),
        ..Bracket::default()
    };
    let mut best = None;
    let found = capacity(bracket, |factor| {
        let runs = try_load(plan, source, variant, factor);
        let is_enough = runs.is_some();
        best = runs.or(best.take());
        is_enough
    });
    let (load, verdict, runs) = match (found, best) {
        (Some(load), Some(runs)) => (load, Verdict::Sustained, runs),
        _ => (
            LEAST_LOAD,
            Verdict::Nothing,
            all_runs(plan, source, variant),
        ),
    };
    Row {
        source: source.to_string(),
        variant,
        load,
        verdict,
        runs,
    }
}

/// All seeds at a load, unless it turns out to be too much before.
fn try_load(plan: &Plan, source: &Source, variant: Variant, factor: f64) -> Option<Vec<Run>> {
    let factor = Factor::new(factor).expect("the search stays between its limits");
    let mut missed = 0;
    let mut runs = Vec::new();
    for &seed in &plan.seeds {
        let load = source.load(factor, plan.requests, plan.tenants, seed);
        // Every seed offers as many requests.
        let allowed = (1.0 - GOOD) * (load.len() * plan.seeds.len()) as f64;
        let scenario = Scenario {
            give_up_after: Some((allowed as u64).saturating_sub(missed)),
            ..scenario(plan, variant, seed)
        };
        let outcome = replay(&scenario, &load);
        missed += outcome.records.iter().filter(|record| !record.good).count() as u64;
        if missed as f64 > allowed {
            return None;
        }
        runs.push(Run::of(seed, &load, &outcome));
    }
    Some(runs)
}

fn all_runs(plan: &Plan, source: &Source, variant: Variant) -> Vec<Run> {
    let factor = Factor::new(LEAST_LOAD).expect("in range");
    let run = |&seed: &u64| {
        let load = source.load(factor, plan.requests, plan.tenants, seed);
        Run::of(seed, &load, &replay(&scenario(plan, variant, seed), &load))
    };
    plan.seeds.iter().map(run).collect()
}

impl Run {
    fn of(seed: u64, load: &Load, outcome: &Outcome) -> Self {
        let figures = outcome.figures();
        let best = load.infinite_cache_hit_ratio();
        Self {
            seed,
            imbalance: outcome.imbalance(),
            hits_of_best: if best > 0.0 {
                figures.hit_ratio / best
            } else {
                1.0
            },
            deepest_engine_queue: outcome.deepest_engine_queue,
            preemptions: outcome.preemptions,
            abandoned: outcome.abandoned,
            virtual_seconds: outcome.seconds,
            figures,
        }
    }
}

impl Row {
    /// Mean over the seeds.
    pub(super) fn mean(&self, value: impl Fn(&Run) -> f64) -> f64 {
        self.runs.iter().map(value).sum::<f64>() / self.runs.len() as f64
    }

    /// Refused requests of all seeds, by code.
    pub(super) fn drops(&self) -> BTreeMap<&'static str, Drops> {
        let mut sums: BTreeMap<&'static str, Drops> = BTreeMap::new();
        for (code, drops) in self.runs.iter().flat_map(|run| &run.figures.drops) {
            *sums.entry(code).or_default() += *drops;
        }
        sums
    }
}
