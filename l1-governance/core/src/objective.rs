//! Objectives: what a request is promised, from what policy says about its key and the accounts above
//! it. What a caller wishes for has no part in it.

use std::collections::BTreeMap;

use governance_context::{Band, ObjectiveName, Targets, TtlSource};

#[cfg(test)]
mod tests;

/// The band of whoever is given none.
pub const DEFAULT_BAND: Band = Band(0);
/// The weight of whoever is given none.
pub const DEFAULT_WEIGHT: u32 = 1;

/// What an objective or an account says; what it leaves out is said elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fields {
    /// The priority level.
    pub band: Option<Band>,
    /// The share among the flows of the band.
    pub weight: Option<u32>,
    /// How long a request may wait for its turn, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// The time to the first token, in milliseconds.
    pub ttft_ms: Option<u32>,
    /// The time per output token after the first, in milliseconds.
    pub tpot_ms: Option<u32>,
}

/// What policy says about a tenant, a project or a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The objective it names.
    pub objective: Option<ObjectiveName>,
    /// Single fields, whatever the objective in force says about them.
    pub fields: Fields,
}

/// Who said something. The greatest who did is obeyed; the order is the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nobody: the defaults of the installation.
    Default,
    /// The objective in force.
    Objective,
    /// The tenant.
    Tenant,
    /// The project.
    Project,
    /// The key.
    Key,
}

impl Source {
    /// The word in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::Objective => "objective",
            Source::Tenant => "tenant",
            Source::Project => "project",
            Source::Key => "key",
        }
    }
}

impl From<Source> for TtlSource {
    fn from(source: Source) -> Self {
        match source {
            Source::Default => Self::Gateway,
            Source::Objective => Self::Objective,
            Source::Tenant => Self::Tenant,
            Source::Project => Self::Project,
            Source::Key => Self::Key,
        }
    }
}

/// A value, and who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said<T> {
    /// What was said.
    pub value: T,
    /// By whom.
    pub by: Source,
}

/// What a request is promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The objective in force, and who named it.
    pub objective: Option<Said<ObjectiveName>>,
    /// The priority level.
    pub band: Said<Band>,
    /// The share among the flows of the band.
    pub weight: Said<u32>,
    /// How long the request may wait for its turn, in milliseconds.
    pub ttl_ms: Said<u64>,
    /// The time to the first token, if it is not left to the scheduler.
    pub ttft_ms: Option<Said<u32>>,
    /// The time per output token, if it is not left to the scheduler.
    pub tpot_ms: Option<Said<u32>>,
}

impl Terms {
    /// The latency targets, as the context carries them.
    pub fn targets(&self) -> Targets {
        Targets {
            ttft_ms: self.ttft_ms.map(|said| said.value),
            tpot_ms: self.tpot_ms.map(|said| said.value),
        }
    }
}

/// The objectives of an installation, and what holds without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objectives {
    /// The objectives by name.
    pub named: BTreeMap<ObjectiveName, Fields>,
    /// The one in force where nobody names another.
    pub default: Option<ObjectiveName>,
    /// How long a request may wait where nobody says.
    pub ttl_ms: u64,
}

impl Objectives {
    /// The names there are, for messages: `batch, interactive`.
    pub fn list(&self) -> String {
        let names: Vec<&str> = self.named.keys().map(ObjectiveName::as_str).collect();
        names.join(", ")
    }

    /// What holds for a key of a project of a tenant. The objective in force is the one named closest
    /// to the key; a field is what the level closest to the key says, else what that objective says. A
    /// name that no objective has is passed over: a key can outlive the objective it was made with.
    pub fn resolve(&self, tenant: &Choice, project: &Choice, key: &Choice) -> Terms {
        let levels = [
            (Source::Key, key),
            (Source::Project, project),
            (Source::Tenant, tenant),
        ];
        let objective = self.in_force(&levels);
        let fields = objective
            .as_ref()
            .and_then(|said| self.named.get(&said.value));
        let said = levels.map(|(by, choice)| (by, &choice.fields));
        let said: Vec<(Source, &Fields)> = said
            .into_iter()
            .chain(fields.map(|fields| (Source::Objective, fields)))
            .collect();
        Terms {
            objective,
            band: first(&said, |fields| fields.band).unwrap_or_else(|| by_default(DEFAULT_BAND)),
            weight: first(&said, |fields| fields.weight)
                .unwrap_or_else(|| by_default(DEFAULT_WEIGHT)),
            ttl_ms: first(&said, |fields| fields.ttl_ms).unwrap_or_else(|| by_default(self.ttl_ms)),
            ttft_ms: first(&said, |fields| fields.ttft_ms),
            tpot_ms: first(&said, |fields| fields.tpot_ms),
        }
    }

    fn in_force(&self, levels: &[(Source, &Choice)]) -> Option<Said<ObjectiveName>> {
        let named = levels
            .iter()
            .map(|(by, choice)| (*by, choice.objective.as_ref()))
            .chain([(Source::Default, self.default.as_ref())]);
        named
            .filter_map(|(by, name)| Some((by, self.named.get_key_value(name?)?.0)))
            .map(|(by, name)| Said {
                value: name.clone(),
                by,
            })
            .next()
    }
}

fn first<T>(said: &[(Source, &Fields)], field: impl Fn(&Fields) -> Option<T>) -> Option<Said<T>> {
    let mut all = said.iter().map(|(by, fields)| (*by, field(fields)));
    all.find_map(|(by, value)| value.map(|value| Said { value, by }))
}

fn by_default<T>(value: T) -> Said<T> {
    Said {
        value,
        by: Source::Default,
    }
}
