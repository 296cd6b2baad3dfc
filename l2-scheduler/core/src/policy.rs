//! The selectable ways to choose an endpoint. Each gives every candidate a score; the least wins, and what breaks ties is
//! the same for all that rank by what they know.

mod choice;

pub(crate) use choice::{RECORDED, Ties, choose};

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::cost::{Offer, cost};
use crate::rng::Rng;

/// How a pool chooses among eligible endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every request waits for the endpoint that suits it best, as long as its target allows, and goes when it harms nobody:
    /// predicted cost, the targets others would miss, and a plan of all that waits.
    #[default]
    Planned,
    /// Least predicted cost in seconds, bound at arrival: own time to first token, harm to others, duplicate work.
    PredictedCost,
    /// One after the other.
    RoundRobin,
    /// Fewest requests in flight per unit of weight.
    LeastRequest,
    /// Queue 2, KV use 2, cached prefix 3, each scaled between the extremes of the candidates.
    Weighted,
    /// Seeded chance, in proportion to weight.
    Random,
    /// Two by chance, and of these the one with fewer requests in flight per unit of weight.
    P2c,
    /// Whoever holds most of the prompt, unless that one is far behind; then fewest uncached tokens in flight.
    TokenAware,
    /// Least product of prompt tokens to compute and requests in flight.
    Lmetric,
}

impl Policy {
    /// Every policy, in the order of documentation.
    pub const ALL: [Self; 9] = [
        Self::Planned,
        Self::PredictedCost,
        Self::TokenAware,
        Self::Lmetric,
        Self::Weighted,
        Self::LeastRequest,
        Self::P2c,
        Self::RoundRobin,
        Self::Random,
    ];

    /// The name used in configuration and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::PredictedCost => "predicted-cost",
            Self::P2c => "p2c",
            Self::TokenAware => "token-aware",
            Self::Lmetric => "lmetric",
            Self::RoundRobin => "round-robin",
            Self::LeastRequest => "least-request",
            Self::Weighted => "weighted",
            Self::Random => "random",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy name nobody knows.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown policy `{0}`: use one of {names}", names = Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Costs within the larger of these are equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slight {
    pub(crate) absolute: f64,
    pub(crate) relative: f64,
}

/// Two milliseconds, or a hundredth.
pub(crate) const SLIGHT: Slight = Slight {
    absolute: 0.002,
    relative: 0.01,
};

impl Slight {
    /// The most that still equals `least`.
    pub(crate) fn limit(self, least: f64) -> f64 {
        least + self.absolute.max(self.relative * least.abs())
    }
}

/// One eligible endpoint, as policies see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    /// Index of the endpoint.
    pub(crate) index: u32,
    pub(crate) cached: u32,
    pub(crate) uncached: u32,
    pub(crate) offer: Offer,
    /// Requests in flight, those of others included.
    pub(crate) in_flight: u32,
    /// Prompt tokens to compute there before those of the request.
    pub(crate) pending: f64,
    pub(crate) kv_use: f64,
    pub(crate) weight: u32,
    pub(crate) name_hash: u64,
}

/// What scores depend on besides the candidates.
pub(crate) struct Setting<'a> {
    pub(crate) kappa: f64,
    /// Index of the endpoint after the one chosen last, for taking turns.
    pub(crate) turn: u32,
    /// Peak prefill rate in tokens per second.
    pub(crate) prefill_rate: f64,
    pub(crate) rng: &'a mut Rng,
}

impl Policy {
    /// Scores of `rows`, in their order.
    pub(crate) fn score(self, rows: &[Row], setting: &mut Setting<'_>, scores: &mut Vec<f64>) {
        scores.clear();
        match self {
            Self::Planned | Self::PredictedCost => predicted_cost(rows, setting.kappa, scores),
            Self::RoundRobin => round_robin(rows, setting.turn, scores),
            Self::LeastRequest => scores.extend(
                rows.iter()
                    .map(|row| f64::from(row.in_flight) / f64::from(row.weight)),
            ),
            Self::Weighted => weighted(rows, scores),
            Self::Random => random(rows, setting.rng, scores),
            Self::P2c => power_of_two(rows, setting.rng, scores),
            Self::TokenAware => token_aware(rows, setting.prefill_rate, scores),
            Self::Lmetric => scores.extend(rows.iter().map(lmetric)),
        }
    }

    /// How candidates of nearly the same score are told apart.
    pub(crate) fn ties(self) -> Ties {
        match self {
            Self::Planned | Self::PredictedCost => Ties::Within(SLIGHT),
            Self::Weighted | Self::TokenAware | Self::Lmetric => Ties::Within(Slight {
                absolute: 1e-9,
                relative: 0.0,
            }),
            Self::RoundRobin | Self::LeastRequest | Self::Random | Self::P2c => Ties::Chance,
        }
    }

    /// Whether requests wait for the endpoint that suits them best; otherwise they go to the best that has room.
    pub(crate) fn plans(self) -> bool {
        self == Self::Planned
    }

    /// Price of duplicate work in units of utilisation over what is left of it.
    pub(crate) fn kappa_factor(self) -> f64 {
        if self.plans() { 2.0 } else { 1.0 }
    }
}

fn predicted_cost(rows: &[Row], kappa: f64, scores: &mut Vec<f64>) {
    let least = rows
        .iter()
        .map(|row| row.offer.prefill_s)
        .fold(f64::INFINITY, f64::min);
    scores.extend(rows.iter().map(|row| cost(&row.offer, kappa, least)));
}

/// Rows are in the order of endpoints; whose turn it is comes first, and then the others around the ring.
fn round_robin(rows: &[Row], turn: u32, scores: &mut Vec<f64>) {
    let first = rows.partition_point(|row| row.index < turn);
    scores.extend((0..rows.len()).map(|at| ((at + rows.len() - first) % rows.len()) as f64));
}

fn weighted(rows: &[Row], scores: &mut Vec<f64>) {
    let queue = Extremes::of(rows.iter().map(|row| f64::from(row.in_flight)));
    let kv = Extremes::of(rows.iter().map(|row| row.kv_use));
    let prefix = Extremes::of(rows.iter().map(|row| f64::from(row.cached)));
    scores.extend(rows.iter().map(|row| {
        2.0 * queue.scale(f64::from(row.in_flight)) + 2.0 * kv.scale(row.kv_use)
            - 3.0 * prefix.scale(f64::from(row.cached))
    }));
}

/// The least of weighted exponential variates falls on each row in proportion to its weight.
fn random(rows: &[Row], rng: &mut Rng, scores: &mut Vec<f64>) {
    scores.extend(
        rows.iter()
            .map(|row| -(1.0 - rng.unit()).ln() / f64::from(row.weight)),
    );
}

fn lmetric(row: &Row) -> f64 {
    (row.pending + f64::from(row.uncached)) * f64::from(row.in_flight + 1)
}

/// Who was not drawn comes after both who were.
fn power_of_two(rows: &[Row], rng: &mut Rng, scores: &mut Vec<f64>) {
    let mut draw = || (rng.next() % rows.len() as u64) as usize;
    let drawn = [draw(), draw()];
    scores.extend(rows.iter().enumerate().map(|(at, row)| {
        let load = f64::from(row.in_flight) / f64::from(row.weight);
        if drawn.contains(&at) {
            load
        } else {
            load + NOT_DRAWN
        }
    }));
}

/// More than any load.
const NOT_DRAWN: f64 = 1e12;
/// The part of a prompt that counts as held.
const HELD: f64 = 0.8;
/// Seconds of prefill at the peak rate that the holders may be behind the rest.
const HOLDERS_BEHIND_S: f64 = 18.0;

fn token_aware(rows: &[Row], prefill_rate: f64, scores: &mut Vec<f64>) {
    let holds = |row: &Row| f64::from(row.cached) >= HELD * f64::from(row.cached + row.uncached);
    let work = |row: &Row| row.pending + f64::from(row.uncached);
    let least = |held: bool| {
        rows.iter()
            .filter(|row| holds(row) == held)
            .map(work)
            .fold(f64::INFINITY, f64::min)
    };
    let (warm, cold) = (least(true), least(false));
    let holders_only = warm.is_finite() && warm - cold <= HOLDERS_BEHIND_S * prefill_rate;
    scores.extend(rows.iter().map(|row| {
        if holders_only && !holds(row) {
            work(row) + NOT_DRAWN
        } else {
            work(row)
        }
    }));
}

struct Extremes {
    least: f64,
    most: f64,
}

impl Extremes {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values.fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(least, most), value| (least.min(value), most.max(value)),
        );
        Self { least, most }
    }

    /// 0 at the least, 1 at the most; 0 when they are equal.
    fn scale(&self, value: f64) -> f64 {
        if self.most > self.least {
            (value - self.least) / (self.most - self.least)
        } else {
            0.0
        }
    }
}
