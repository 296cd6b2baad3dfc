//! The selectable ways to choose an endpoint. Each gives every candidate a score; the least wins, and what breaks ties is
//! the same for all that rank by what they know.

mod choice;

pub(crate) use choice::{Choice, Ties, choose};

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::cost::{Offer, cost};
use crate::rng::Rng;

/// How a pool chooses among eligible endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Least predicted cost in seconds: own time to first token, harm to others, price of duplicate work.
    #[default]
    PredictedCost,
    /// One after the other.
    RoundRobin,
    /// Fewest requests in flight per unit of weight.
    LeastRequest,
    /// Queue 2, KV use 2, cached prefix 3, each scaled between the extremes of the candidates.
    Weighted,
    /// Seeded chance, in proportion to weight.
    Random,
}

impl Policy {
    /// Every policy, in the order of documentation.
    pub const ALL: [Self; 5] = [
        Self::PredictedCost,
        Self::RoundRobin,
        Self::LeastRequest,
        Self::Weighted,
        Self::Random,
    ];

    /// The name used in configuration and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::PredictedCost => "predicted-cost",
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
#[error(
    "unknown policy `{0}`: use one of predicted-cost, round-robin, least-request, weighted, random"
)]
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
    pub(crate) context: u64,
    pub(crate) kv_use: f64,
    pub(crate) weight: u32,
    pub(crate) name_hash: u64,
}

/// What scores depend on besides the candidates.
pub(crate) struct Setting<'a> {
    pub(crate) kappa: f64,
    /// Index of the endpoint after the one chosen last, for taking turns.
    pub(crate) turn: u32,
    pub(crate) rng: &'a mut Rng,
}

impl Policy {
    /// Scores of `rows`, in their order.
    pub(crate) fn score(self, rows: &[Row], setting: &mut Setting<'_>, scores: &mut Vec<f64>) {
        scores.clear();
        match self {
            Self::PredictedCost => predicted_cost(rows, setting.kappa, scores),
            Self::RoundRobin => round_robin(rows, setting.turn, scores),
            Self::LeastRequest => scores.extend(
                rows.iter()
                    .map(|row| f64::from(row.in_flight) / f64::from(row.weight)),
            ),
            Self::Weighted => weighted(rows, scores),
            Self::Random => random(rows, setting.rng, scores),
        }
    }

    /// How candidates of nearly the same score are told apart.
    pub(crate) fn ties(self) -> Ties {
        match self {
            Self::PredictedCost => Ties::Within {
                absolute: 0.002,
                relative: 0.01,
            },
            Self::Weighted => Ties::Within {
                absolute: 1e-9,
                relative: 0.0,
            },
            Self::RoundRobin | Self::LeastRequest | Self::Random => Ties::Chance,
        }
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
