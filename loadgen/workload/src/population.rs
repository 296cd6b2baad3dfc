//! Populations of users that no trace records: agents in long sessions, many tenants with long instructions, bursts of
//! short questions. Their times and lengths come from a seed; the load factor says how many of them there are.
//!
//! A load factor makes users more, not faster: sessions begin more often, and what happens inside one keeps its pace.
//! A run begins in the middle of the traffic: sessions that began earlier go on.

mod agentic;
mod bursty;
mod tenants;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::arrivals::Factor;
use crate::prompt::{Answer, Prompt};
use crate::schedule::Planned;
use crate::tenancy::spread_by;

/// A generated workload by name. At factor 1 eight large engines are nearly idle, at 5 most schedulers are beyond what
/// they sustain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Population {
    /// `agentic`: sessions of about 20 turns whose context grows; the next turn sends the answer back after a tool's
    /// pause of 0.5 to 20 s. Eight kinds of agent, each with a long prefix of instructions and tools.
    Agentic,
    /// `tenants`: by default 300 tenants, Zipf-distributed, each with a prefix of 2k to 16k tokens before questions of
    /// 500 to 2,000.
    Tenants,
    /// `bursty`: prompts of 50 to 1,500 tokens that share nothing, in bursts.
    Bursty,
}

/// No population of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no generated workload named {0:?}; there are agentic, tenants and bursty")]
pub struct UnknownPopulation(pub String);

impl Population {
    pub const ALL: [Self; 3] = [Self::Agentic, Self::Tenants, Self::Bursty];

    pub fn name(self) -> &'static str {
        match self {
            Self::Agentic => "agentic",
            Self::Tenants => "tenants",
            Self::Bursty => "bursty",
        }
    }

    /// How many requests say something: some minutes of traffic near what eight engines sustain.
    pub fn default_requests(self) -> u64 {
        match self {
            Self::Agentic | Self::Tenants => 8_000,
            Self::Bursty => 16_000,
        }
    }

    /// The first `requests` requests in order of time, at `factor` times the usual number of users, from its own
    /// tenants or from as many as `tenants` says.
    ///
    /// Equal arguments give equal requests. Another factor has the same users at other times.
    pub fn plan(
        self,
        factor: Factor,
        requests: u64,
        tenants: Option<u32>,
        seed: u64,
    ) -> Vec<Planned> {
        let drafts = match self {
            Self::Agentic => agentic::draw(factor, requests, seed),
            Self::Tenants => {
                tenants::draw(factor, requests, seed, tenants.unwrap_or(tenants::COUNT))
            }
            Self::Bursty => bursty::draw(factor, requests, seed),
        };
        let mut planned: Vec<Planned> = drafts
            .into_iter()
            .zip(0..)
            .map(|(draft, index)| Planned {
                index,
                at: Duration::from_secs_f64(draft.at),
                prompt: draft.prompt,
                output_tokens: draft.output_tokens,
                answer: draft.answer,
                tenant: draft.tenant,
            })
            .collect();
        if let (Self::Agentic | Self::Bursty, Some(tenants)) = (self, tenants) {
            // What is one session's or request's own comes last.
            let own = |prompt: &Prompt| prompt.runs().last().map(|run| run.first);
            spread_by(&mut planned, tenants, seed, own);
        }
        planned
    }
}

/// A request before it has its place in the order.
struct Draft {
    /// Seconds since the start.
    at: f64,
    prompt: Prompt,
    output_tokens: u32,
    answer: Answer,
    tenant: u32,
}

/// The gap to the next arrival of independent users.
fn exponential(random: &mut ChaCha8Rng, rate: f64) -> f64 {
    -(1.0 - random.random::<f64>()).ln() / rate
}

/// Log-normal, drawn again until it lies within the bounds.
fn log_normal(random: &mut ChaCha8Rng, median: f64, sigma: f64, least: f64, most: f64) -> f64 {
    /// Bounds that leave a hundredth of the distribution are missed this often once in an age.
    const TRIES: usize = 2_000;
    (0..TRIES)
        .map(|_| median * (sigma * crate::lengths::normal(random)).exp())
        .find(|value| (least..=most).contains(value))
        .unwrap_or(median)
}

impl FromStr for Population {
    type Err = UnknownPopulation;

    fn from_str(name: &str) -> Result<Self, UnknownPopulation> {
        let known = Self::ALL
            .into_iter()
            .find(|population| population.name() == name);
        known.ok_or_else(|| UnknownPopulation(name.to_owned()))
    }
}

impl fmt::Display for Population {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
