//! The selectable ways to choose an endpoint.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

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
