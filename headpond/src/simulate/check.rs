//! From options to a plan that can be carried out.

use anyhow::{Context as _, bail};
use engine_model::Profile;
use pool_simulator::Scenario;
use scheduler_core::Policy;
use scheduler_core::flow::Refuse;
use workload::Factor;

use super::options::{RefuseWhom, Simulate};
use super::source::Source;
use crate::usage::Usage;

/// Beyond this, generated workloads have more users than anybody has memory.
pub(super) const MOST_LOAD: f64 = 50.0;

/// What is to be simulated: every source with every variant and every seed.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) sources: Vec<Source>,
    pub(super) variants: Vec<Variant>,
    pub(super) seeds: Vec<u64>,
    /// At which load factor; without one, the largest that is sustained is looked for.
    pub(super) load: Option<Factor>,
    /// Its policy, refusal and seed are those of a variant and a run.
    pub(super) scenario: Scenario,
    pub(super) requests: Option<u64>,
    pub(super) tenants: Option<u32>,
}

/// How requests are scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Variant {
    pub(super) policy: Policy,
    pub(super) refuse: Refuse,
}

impl Variant {
    pub(super) fn name(self) -> String {
        match self.refuse {
            Refuse::Doomed => format!("{}, refusing", self.policy),
            Refuse::Never | Refuse::BySign => self.policy.to_string(),
        }
    }

    pub(super) fn refuse_name(self) -> &'static str {
        match self.refuse {
            Refuse::Doomed => "doomed",
            Refuse::Never | Refuse::BySign => "never",
        }
    }
}

impl Plan {
    pub(super) fn check(options: &Simulate) -> anyhow::Result<Self> {
        let policies = policies(&options.policy)?;
        let profile: Profile = options.profile.parse().context(Usage::new("--profile"))?;
        Ok(Self {
            load: options.load.as_deref().map(load).transpose()?,
            variants: variants(&policies, options.refuse)?,
            sources: Source::all(&options.trace)?,
            seeds: (options.first_seed..)
                .take(options.seeds as usize)
                .collect(),
            scenario: Scenario {
                profile,
                engines: options.engines,
                schedulers: options.schedulers,
                ..Scenario::new(policies[0])
            },
            requests: options.requests,
            tenants: options.tenants,
        })
    }
}

fn load(text: &str) -> anyhow::Result<Factor> {
    match text.parse() {
        Ok(factor) if Factor::get(factor) <= MOST_LOAD => Ok(factor),
        _ => bail!(Usage::new(format!(
            "--load: {text:?} is out of range; give a number above 0 and up to {MOST_LOAD}"
        ))),
    }
}

/// At least one, none twice.
fn policies(names: &[String]) -> anyhow::Result<Vec<Policy>> {
    if names.is_empty() {
        return Ok(Policy::ALL.to_vec());
    }
    let mut policies = Vec::new();
    for name in names {
        let policy: Policy = name.trim().parse().context(Usage::new("--policy"))?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    Ok(policies)
}

/// Only a policy that plans knows what is doomed.
fn variants(policies: &[Policy], refuse: Option<RefuseWhom>) -> anyhow::Result<Vec<Variant>> {
    let plans = |policy: Policy| policy == Policy::Planned;
    if refuse == Some(RefuseWhom::Doomed) && !policies.iter().any(|policy| plans(*policy)) {
        bail!(Usage::new(
            "--refuse doomed: only planned knows what is doomed; name it in --policy"
        ));
    }
    let mut variants = Vec::new();
    for &policy in policies {
        let refuses = plans(policy) && refuse != Some(RefuseWhom::Never);
        let accepts = !plans(policy) || refuse != Some(RefuseWhom::Doomed);
        let ways = [(refuses, Refuse::Doomed), (accepts, Refuse::Never)];
        for (_, refuse) in ways.into_iter().filter(|(is_wanted, _)| *is_wanted) {
            variants.push(Variant { policy, refuse });
        }
    }
    Ok(variants)
}
