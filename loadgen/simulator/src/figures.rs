//! What the users of a simulated pool felt, in figures. Each is defined in `docs/simulating.md`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::AddAssign;

use crate::fairness::{jain, work};
use crate::outcome::{End, Outcome, Record};

/// Figures of a run, or of those of its requests that somebody chose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub offered: u64,
    pub completed: u64,
    /// Share of all offered requests that met both targets.
    pub goodput: f64,
    pub ttft_s: Quantiles,
    /// TTFT ÷ what it would be on an idle engine with the best possible cache.
    pub slowdown: Quantiles,
    /// Of answers long enough to have a pace.
    pub tpot_s: Quantiles,
    /// Longest gap between two tokens of an answer.
    pub stall_s: Quantiles,
    pub total_s: Quantiles,
    /// Share of the prompt tokens of completed requests that were not computed.
    pub hit_ratio: f64,
    /// Drops by code and by prompt length.
    pub drops: BTreeMap<&'static str, Drops>,
    /// Share of all prompt tokens computed that were for requests which missed their TTFT target or had no answer.
    pub wasted_prefill: f64,
    /// WTU served in time by tenant, as a share of all.
    pub wtu_shares: BTreeMap<u32, f64>,
    /// Jain's index over what each tenant was served, as a multiple of its max-min fair share.
    pub jain: f64,
}

/// Of a distribution; NaN when it is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub mean: f64,
}

impl Default for Quantiles {
    fn default() -> Self {
        Self {
            p50: f64::NAN,
            p90: f64::NAN,
            p99: f64::NAN,
            mean: f64::NAN,
        }
    }
}

/// Refused requests by the length of their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Up to 4,096 prompt tokens.
    pub short: u64,
    /// Up to 27,000.
    pub medium: u64,
    pub long: u64,
}

impl Drops {
    pub fn total(self) -> u64 {
        self.short + self.medium + self.long
    }

    fn add(&mut self, prompt_tokens: u32) {
        match prompt_tokens {
            0..=4_096 => self.short += 1,
            4_097..=27_000 => self.medium += 1,
            27_001.. => self.long += 1,
        }
    }
}

impl AddAssign for Drops {
    fn add_assign(&mut self, more: Self) {
        self.short += more.short;
        self.medium += more.medium;
        self.long += more.long;
    }
}

impl Outcome {
    /// Of all requests.
    pub fn figures(&self) -> Figures {
        self.figures_where(|_| true)
    }

    /// Of the requests that `chosen` takes.
    pub fn figures_where(&self, chosen: impl Fn(&Record) -> bool) -> Figures {
        let records: Vec<&Record> = self
            .records
            .iter()
            .filter(|record| chosen(record))
            .collect();
        figures(&records)
    }

    /// Largest share of the prefill work given to one engine, as a multiple of the mean.
    pub fn imbalance(&self) -> f64 {
        let sum: f64 = self.assigned_s.iter().sum();
        let most = self.assigned_s.iter().copied().fold(0.0, f64::max);
        if sum > 0.0 {
            most * self.assigned_s.len() as f64 / sum
        } else {
            1.0
        }
    }
}

fn figures(records: &[&Record]) -> Figures {
    let of = |value: fn(&Record) -> f64| Quantiles::of(records.iter().map(|record| value(record)));
    let completed = || records.iter().filter(|r| r.end == End::Completed);
    let prompt: u64 = completed().map(|r| u64::from(r.prompt_tokens)).sum();
    let cached: u64 = completed().map(|r| u64::from(r.cached_tokens)).sum();
    let computed: u64 = records.iter().map(|r| u64::from(r.computed_tokens)).sum();
    let wasted: u64 = records
        .iter()
        .filter(|r| !r.met_ttft || r.end != End::Completed)
        .map(|r| u64::from(r.computed_tokens))
        .sum();
    let mut drops: BTreeMap<&'static str, Drops> = BTreeMap::new();
    for record in records {
        if let End::Refused(code) = record.end {
            drops.entry(code).or_default().add(record.prompt_tokens);
        }
    }
    let (wtu_shares, jain) = shares(records);
    Figures {
        offered: records.len() as u64,
        completed: completed().count() as u64,
        goodput: ratio(
            records.iter().filter(|r| r.good).count() as u64,
            records.len() as u64,
        ),
        ttft_s: of(|r| r.ttft_s),
        slowdown: of(|r| r.ttft_s / r.best_ttft_s),
        tpot_s: of(|r| if r.is_paced() { r.tpot_s } else { f64::NAN }),
        stall_s: of(|r| r.stall_s),
        total_s: of(|r| r.total_s),
        hit_ratio: ratio(cached, prompt),
        drops,
        wasted_prefill: ratio(wasted, computed),
        wtu_shares,
        jain,
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Work token units of an answered request.
fn wtu(record: &Record) -> f64 {
    work(
        record.prompt_tokens,
        u64::from(record.cached_tokens),
        record.output_tokens,
    )
}

/// What each tenant was served in time, and how fair that was.
fn shares(records: &[&Record]) -> (BTreeMap<u32, f64>, f64) {
    let mut tenants: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for record in records {
        let (served, wanted) = tenants.entry(record.tenant).or_default();
        *wanted += wtu(record);
        if record.in_time {
            *served += wtu(record);
        }
    }
    let total: f64 = tenants.values().map(|(served, _)| served).sum();
    let shares = tenants
        .iter()
        .map(|(tenant, (served, _))| (*tenant, served / total.max(f64::MIN_POSITIVE)))
        .collect();
    let served_and_wanted: Vec<_> = tenants.into_values().collect();
    (shares, jain(&served_and_wanted))
}

impl Quantiles {
    /// NaN values are left out.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
        if sorted.is_empty() {
            return Self::default();
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (sorted.len() as f64 * share) as usize;
            sorted[index.min(sorted.len() - 1)]
        };
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
        }
    }
}
