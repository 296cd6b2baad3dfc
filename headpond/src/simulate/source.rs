//! Where requests come from: a trace that is built in, a generated workload, or a file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use pool_simulator::{Load, Offer};
use workload::trace::Embedded;
use workload::{
    Arrivals, Factor, Limits, Planned, Population, Requests, Schedule, Trace, spread_tenants,
};

use crate::usage::Usage;

/// A trace of so many bytes has tens of millions of requests.
const MOST_BYTES: u64 = 1 << 30;
/// What the table of policies is measured with.
const CONVERSATION_REQUESTS: u64 = 6_000;

#[derive(Clone, Debug)]
pub(super) struct Source {
    name: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Recorded {
        trace: Arc<Trace>,
        /// How far its time stamps are quantised.
        jitter: Duration,
        default_requests: Option<u64>,
    },
    Generated(Population),
}

impl Source {
    /// Those named, or else the traces that are built in.
    pub(super) fn all(names: &[String]) -> anyhow::Result<Vec<Self>> {
        if names.is_empty() {
            return Ok(Embedded::ALL.map(Self::embedded).to_vec());
        }
        names.iter().map(|name| Self::named(name)).collect()
    }

    fn embedded(trace: Embedded) -> Self {
        let default_requests = match trace {
            Embedded::MooncakeConversation => Some(CONVERSATION_REQUESTS),
            Embedded::MooncakeSynthetic => None,
        };
        Self {
            name: trace.name().to_owned(),
            kind: Kind::Recorded {
                trace: Arc::new(trace.load()),
                jitter: trace.jitter(),
                default_requests,
            },
        }
    }

    fn named(name: &str) -> anyhow::Result<Self> {
        if let Ok(trace) = name.parse() {
            return Ok(Self::embedded(trace));
        }
        if let Ok(population) = name.parse() {
            return Ok(Self {
                name: name.to_owned(),
                kind: Kind::Generated(population),
            });
        }
        let path = Path::new(name);
        if !path.exists() {
            bail!(Usage::new(format!(
                "--trace: {name:?} is neither a file nor one of {}",
                names()
            )));
        }
        Ok(Self {
            name: name.to_owned(),
            kind: Kind::Recorded {
                trace: Arc::new(read(path).with_context(|| format!("--trace: {name}"))?),
                jitter: Duration::ZERO,
                default_requests: None,
            },
        })
    }

    /// What a seed makes of it at a load factor.
    pub(super) fn load(
        &self,
        factor: Factor,
        requests: Option<u64>,
        tenants: Option<u32>,
        seed: u64,
    ) -> Load {
        let planned = match &self.kind {
            Kind::Generated(population) => {
                let requests = requests.unwrap_or(population.default_requests());
                population.plan(factor, requests, tenants, seed)
            }
            Kind::Recorded {
                trace,
                jitter,
                default_requests,
            } => {
                let arrivals = Arrivals::Recorded {
                    factor,
                    jitter: *jitter,
                };
                let limits = Limits {
                    requests: requests.or(*default_requests),
                    duration: None,
                };
                let requests = Requests::Trace(Arc::clone(trace));
                let mut planned: Vec<Planned> = Schedule::new(arrivals, requests, limits, seed)
                    .expect("a trace that is read has requests")
                    .collect();
                if let Some(tenants) = tenants {
                    spread_tenants(&mut planned, tenants, seed);
                }
                planned
            }
        };
        Load::new(planned.into_iter().map(Offer::from))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

fn names() -> String {
    let embedded = Embedded::ALL.iter().map(|trace| trace.name());
    let generated = Population::ALL.iter().map(|population| population.name());
    embedded.chain(generated).collect::<Vec<_>>().join(", ")
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let bytes = std::fs::metadata(path)?.len();
    ensure!(
        bytes <= MOST_BYTES,
        "{bytes} bytes are more than a trace may have ({MOST_BYTES})"
    );
    let trace = Trace::parse(&std::fs::read_to_string(path)?)?;
    ensure!(!trace.requests().is_empty(), "it has no requests");
    Ok(trace)
}
