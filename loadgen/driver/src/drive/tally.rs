//! Adds up outcomes in bounded memory. Times in the tally are those at speed 1. Pure.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use pool_simulator::{jain, work};

use super::outcome::{Answer, End, Outcome};
use super::report::{Figures, PartFigures, Quantiles, Report, SCHEMA, Second, Verdict};
use super::slo::Slo;
use super::{Bounds, Plan};

mod part;

use part::Part;

/// More codes or tenants than a load has; further ones are counted together.
const MOST_NAMES: usize = 256;
const OTHER: &str = "other";
/// Seconds a report tells apart: a day. What comes later counts in the last.
const MOST_SECONDS: usize = 86_400;

#[derive(Debug)]
pub(super) struct Tally {
    load: Load,
    offered: u64,
    ended: u64,
    completed: u64,
    left: u64,
    good: u64,
    refused: BTreeMap<String, u64>,
    failed: BTreeMap<String, u64>,
    ttft: Times,
    tpot: Times,
    e2e: Times,
    lag: Times,
    tokens: Tokens,
    tenants: BTreeMap<String, Part>,
    bands: BTreeMap<i32, Part>,
    timeline: Vec<Second>,
    /// Intended time of the last request and end of the last one, since the start.
    last_end: Duration,
}

/// What the report repeats of the plan.
#[derive(Debug)]
struct Load {
    name: String,
    target: String,
    speed: f64,
    seed: u64,
    slo: Slo,
    bounds: Bounds,
}

#[derive(Debug, Default)]
struct Tokens {
    prompt: u64,
    /// Of answers that say how much was cached: all prompt tokens, and the cached ones.
    told: u64,
    cached: u64,
    output: u64,
}

/// Whether requests still arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arriving {
    Still,
    Over,
}

/// A histogram of durations, three digits, up to a day.
#[derive(Debug)]
pub(super) struct Times(Histogram<u32>);

impl Default for Times {
    fn default() -> Self {
        const DAY_US: u64 = 86_400_000_000;
        Self(Histogram::new_with_bounds(1, DAY_US, 3).expect("the bounds are in order"))
    }
}

impl Times {
    fn record(&mut self, time: Duration) {
        self.0
            .saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(quantile))
    }

    fn quantiles(&self) -> Option<Quantiles> {
        let seconds = |quantile: f64| self.quantile(quantile).as_secs_f64();
        (!self.0.is_empty()).then(|| Quantiles {
            count: self.0.len(),
            p50: seconds(0.5),
            p90: seconds(0.9),
            p95: seconds(0.95),
            p99: seconds(0.99),
            mean: self.0.mean() / 1e6,
            max: self.0.max() as f64 / 1e6,
        })
    }
}

impl Tally {
    pub(super) fn new(plan: &Plan, target: String) -> Self {
        let load = Load {
            name: plan.name.clone(),
            target,
            speed: plan.speed,
            seed: plan.seed,
            slo: plan.slo,
            bounds: plan.bounds,
        };
        Self {
            load,
            offered: 0,
            ended: 0,
            completed: 0,
            left: 0,
            good: 0,
            refused: BTreeMap::new(),
            failed: BTreeMap::new(),
            ttft: Times::default(),
            tpot: Times::default(),
            e2e: Times::default(),
            lag: Times::default(),
            tokens: Tokens::default(),
            tenants: BTreeMap::new(),
            bands: BTreeMap::new(),
            timeline: Vec::new(),
            last_end: Duration::ZERO,
        }
    }

    pub(super) fn sent(&mut self) {
        self.offered += 1;
    }

    /// Takes in an outcome; `at` is its end, in real time since the start of the load.
    pub(super) fn record(&mut self, outcome: &Outcome, at: Duration, arriving: Arriving) {
        self.ended += 1;
        self.last_end = self.last_end.max(at);
        self.lag.record(outcome.lag);
        let judged = Judged::of(outcome, &self.load, arriving);
        entry(&mut self.tenants, &outcome.tenant).add(outcome, &judged);
        if let Some(band) = outcome.band
            && (self.bands.len() < MOST_NAMES || self.bands.contains_key(&band))
        {
            self.bands.entry(band).or_default().add(outcome, &judged);
        }
        self.tell_times(outcome, &judged, at);
        match &outcome.end {
            End::Completed(_) => self.complete(&judged),
            End::Left => self.left += 1,
            End::Refused { status, code } => {
                *entry(&mut self.refused, &format!("{status} {code}")) += 1;
            }
            End::Failed(failure) => *entry(&mut self.failed, failure.name()) += 1,
        }
    }

    fn complete(&mut self, judged: &Judged) {
        self.completed += 1;
        self.good += u64::from(judged.is_good);
        self.e2e.record(judged.ended);
        self.tokens.add(&judged.answer);
        if let Some(first) = judged.answer.first {
            self.ttft.record(first);
        }
        if let Some(tpot) = judged.answer.tpot() {
            self.tpot.record(tpot);
        }
    }

    fn tell_times(&mut self, outcome: &Outcome, judged: &Judged, ended: Duration) {
        self.second(outcome.at).offered += 1;
        match outcome.end {
            End::Completed(_) => self.second(ended).completed += 1,
            End::Refused { .. } => self.second(outcome.at).refused += 1,
            End::Failed(_) | End::Left => {}
        }
        if let (Some(waited), Some(band), End::Completed(_)) =
            (outcome.waited, outcome.band, &outcome.end)
        {
            let begun = self.second(outcome.at + outcome.lag + waited);
            let known = begun.work.contains_key(&band) || begun.work.len() < MOST_NAMES;
            if known {
                *begun.work.entry(band).or_default() += judged.asked_work;
            }
        }
    }

    /// The second of the load, as its clients see it, in which something happens at a moment of real time.
    fn second(&mut self, at: Duration) -> &mut Second {
        let second = at.mul_f64(self.load.speed).as_secs();
        let place =
            usize::try_from(second).map_or(MOST_SECONDS - 1, |second| second.min(MOST_SECONDS - 1));
        if place >= self.timeline.len() {
            self.timeline.resize(place + 1, Second::default());
        }
        &mut self.timeline[place]
    }

    /// One line for someone who waits.
    pub(super) fn line(&self, expected: Option<u64>) -> String {
        let of = expected.map_or_else(String::new, |expected| format!("/{expected}"));
        format!(
            "sent {}{of} | in flight {} | done {} | good {} | refused {} | failed {} | TTFT p50 {:.3} s p90 {:.3} s | lag p99 {:.1} ms",
            self.offered,
            self.offered - self.ended,
            self.completed,
            self.good,
            self.refused.values().sum::<u64>(),
            self.failed.values().sum::<u64>(),
            self.ttft.quantile(0.5).as_secs_f64(),
            self.ttft.quantile(0.9).as_secs_f64(),
            self.lag.quantile(0.99).as_secs_f64() * 1e3,
        )
    }

    pub(super) fn report(&self) -> Report {
        let (lag, bound) = (self.lag.quantile(0.99), self.load.bounds.lag);
        let verdict = match self.offered {
            0 => Verdict::Empty,
            _ if lag > bound => Verdict::Lagged {
                p99_s: lag.as_secs_f64(),
                bound_s: bound.as_secs_f64(),
            },
            _ if self.completed + self.left == 0 => Verdict::Unanswered,
            _ => Verdict::Valid,
        };
        Report {
            schema: SCHEMA,
            load: self.load.name.clone(),
            target: self.load.target.clone(),
            speed: self.load.speed,
            seed: self.load.seed,
            slo: self.load.slo.to_string(),
            offered: self.offered,
            completed: self.completed,
            left: self.left,
            refused: self.refused.clone(),
            failed: self.failed.clone(),
            deepest_engine_queue: None,
            lag_s: self.lag.quantiles(),
            figures: (verdict == Verdict::Valid).then(|| self.figures()),
            verdict,
        }
    }

    fn figures(&self) -> Figures {
        let seconds = self.last_end.as_secs_f64() * self.load.speed;
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Figures {
            duration_s: seconds,
            offered_per_s: per_second(self.offered),
            goodput: share(self.good, self.offered - self.left),
            ttft_s: self.ttft.quantiles(),
            tpot_s: self.tpot.quantiles(),
            e2e_s: self.e2e.quantiles(),
            prompt_tokens: self.tokens.prompt,
            cached_tokens: self.tokens.cached,
            hit_ratio: share(self.tokens.cached, self.tokens.told),
            output_tokens: self.tokens.output,
            output_tokens_per_s: per_second(self.tokens.output),
            jain: self.jain(),
            tenants: Self::shares(&self.tenants),
            bands: Self::shares(&self.bands),
            timeline: self.timeline.clone(),
        }
    }
}

impl Tally {
    fn jain(&self) -> Option<f64> {
        let tenants: Vec<(f64, f64)> = self.tenants.values().map(Part::served_and_wanted).collect();
        (tenants.len() > 1).then(|| jain(&tenants))
    }

    /// Figures of each part; their shares are of the work served to all of these.
    fn shares<K: Clone + Ord>(parts: &BTreeMap<K, Part>) -> BTreeMap<K, PartFigures> {
        let served: f64 = parts.values().map(|part| part.served_and_wanted().0).sum();
        let figures = |(key, part): (&K, &Part)| (key.clone(), part.figures(served));
        parts.iter().map(figures).collect()
    }
}

impl Tokens {
    fn add(&mut self, answer: &Answer) {
        self.output += answer.output_tokens();
        let Some(usage) = answer.usage else { return };
        self.prompt += usage.prompt_tokens;
        if let Some(cached) = usage.cached_tokens {
            self.told += usage.prompt_tokens;
            self.cached += cached;
        }
    }
}

/// An outcome against its targets, times at speed 1.
pub(super) struct Judged {
    answer: Answer,
    ended: Duration,
    waited: Option<Duration>,
    is_good: bool,
    /// Whether its work counts as served: it completed while requests still arrived, or began within its target. What
    /// is worked off at the end of a load says nothing about shares.
    is_served: bool,
    /// WTU, with nothing cached.
    asked_work: f64,
    /// WTU, as far as it was computed.
    work: f64,
}

impl Judged {
    fn of(outcome: &Outcome, load: &Load, arriving: Arriving) -> Self {
        let (prompt, output) = (outcome.prompt_tokens, outcome.output_tokens);
        let ended = outcome.ended.mul_f64(load.speed);
        let asked_work = work(prompt, 0, output);
        let nothing = Self {
            answer: Answer::default(),
            ended,
            waited: outcome.waited.map(|waited| waited.mul_f64(load.speed)),
            is_good: false,
            is_served: false,
            asked_work,
            work: asked_work,
        };
        let End::Completed(answer) = &outcome.end else {
            return nothing;
        };
        let answer = at_speed_one(answer, load.speed);
        let cached = answer.usage.and_then(|usage| usage.cached_tokens);
        Self {
            answer,
            is_good: load.slo.met(prompt, &answer, ended),
            is_served: arriving == Arriving::Still || load.slo.in_time(prompt, &answer, ended),
            work: work(prompt, cached.unwrap_or(0), output),
            ..nothing
        }
    }
}

/// The entry of a name, or the one that all names beyond the bound share.
fn entry<'a, T: Default>(map: &'a mut BTreeMap<String, T>, name: &str) -> &'a mut T {
    let known = map.contains_key(name) || map.len() < MOST_NAMES;
    map.entry(if known { name } else { OTHER }.to_owned())
        .or_default()
}

fn at_speed_one(answer: &Answer, speed: f64) -> Answer {
    let slowed = |time: Option<Duration>| time.map(|time| time.mul_f64(speed));
    Answer {
        first: slowed(answer.first),
        last: slowed(answer.last),
        ..*answer
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
