//! What users of a shared pool feel near its limit, with the production scheduler: shares between tenants, noisy
//! neighbours, bands, steps of load, several schedulers. Every test prints its figures (`--nocapture`); the bounds leave
//! room for seeds that were not tried. `docs/measurements.md` has the figures themselves.

mod bands;
mod caches;
mod crowd;
mod fairness;
mod neighbour;
mod schedulers;
mod steps;

use pool_simulator::{End, Load, Outcome, Record, Scenario, replay};
use scheduler_core::Policy;
use scheduler_core::flow::Refuse;

/// The pool of all scenarios: eight large engines; what is doomed is refused.
pub(crate) fn refusing() -> Scenario {
    Scenario {
        refuse: Refuse::Doomed,
        seed: 7,
        ..Scenario::new(Policy::Planned)
    }
}

/// Runs a scenario; every request of it has had exactly one outcome.
pub(crate) fn run(scenario: &Scenario, load: &Load) -> Outcome {
    let outcome = replay(scenario, load);
    assert_eq!(outcome.records.len(), load.len());
    let open = outcome.records.iter().filter(|r| r.end == End::Open);
    assert_eq!(open.count(), 0, "every request has one outcome");
    assert_eq!(outcome.abandoned, 0, "no busy engine is called hung");
    assert_eq!(outcome.left, 0, "all counters are zero at rest");
    outcome
}

/// Share of the chosen requests that were refused.
pub(crate) fn refused(outcome: &Outcome, chosen: impl Fn(&Record) -> bool) -> f64 {
    let (mut all, mut refused) = (0_u32, 0_u32);
    for record in outcome.records.iter().filter(|record| chosen(record)) {
        all += 1;
        refused += u32::from(matches!(record.end, End::Refused(_)));
    }
    f64::from(refused) / f64::from(all.max(1))
}

/// A quantile of what the chosen requests had, as far as they had it.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share) as usize;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}
