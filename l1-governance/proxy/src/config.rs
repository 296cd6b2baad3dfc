//! The checked configuration of L1. Holding a [`Config`] means that it is valid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use governance_context::{PolicyVersion, PoolName, TenantId};
use governance_core::account::{AccountId, PolicySpec};
use governance_core::keys::{Models, Role};
use governance_core::limits::{Rate, Rule};
use governance_core::objective::{Choice, Objectives};
use governance_core::price::{Rates, Ratio, Unpriced};
use governance_core::sanitize::{Engine, UnknownFields};

mod check;
mod file;
mod limits;
mod models;
mod objectives;
mod parse;
mod secret;
mod tenants;
#[cfg(test)]
mod tests;

pub use file::File;
pub use secret::{SecretError, SecretSource};

/// Everything L1 does, decided before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The models, by every name a caller may use.
    pub models: Catalogue,
    /// What requests can be promised, by name.
    pub objectives: Objectives,
    /// The tenants, with everything below them.
    pub tenants: Vec<Tenant>,
    /// Who may use the admin API besides keys of role `lead`.
    pub admin_token: Option<SecretSource>,
    /// Binds cache salts and key hashes to this installation.
    pub installation_secret: Option<SecretSource>,
    /// What a request or an answer may weigh.
    pub sizes: Sizes,
    /// What may take how long.
    pub timeouts: Timeouts,
    /// Origins that browsers may call from; empty switches CORS off.
    pub allowed_origins: Vec<String>,
    /// What happens to a request for a model without a price.
    pub no_price: Unpriced,
    /// How many decision records are kept.
    pub decision_records: usize,
    /// Whether one line per request is logged.
    pub access_log: bool,
    /// A hash of everything above, stamped on decisions.
    pub version: PolicyVersion,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The largest request body.
    pub body: usize,
    /// The largest answer that is not streamed.
    pub answer: usize,
}

/// Durations of everything that waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// A request head, from its first byte to its last.
    pub header_read: Duration,
    /// A request body.
    pub body_read: Duration,
    /// A connection without a request.
    pub idle: Duration,
    /// Silence of L2, before and between the pieces of an answer.
    pub answer: Duration,
    /// How long the status line of a stream is held back for an early failure to keep its status.
    pub keep_alive_grace: Duration,
    /// The longest silence towards a client of a stream that has not begun.
    pub keep_alive_every: Duration,
    /// How long a request may wait for an engine, where no objective says.
    pub queue: Duration,
}

/// The models and the names they are called by.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    models: Vec<Arc<Model>>,
    by_name: BTreeMap<String, usize>,
}

impl Catalogue {
    /// The model with this name or alias.
    pub fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name).map(|index| &self.models[*index])
    }

    /// All models, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.models.iter()
    }
}

/// One model callers can ask for.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name callers and policies use.
    pub name: String,
    /// Other names callers may use.
    pub aliases: Vec<String>,
    /// The name engines know it by.
    pub served_as: String,
    /// Where it runs.
    pub pool: PoolName,
    /// What runs it.
    pub engine: Engine,
    /// Whether engines run priority scheduling.
    pub engine_priority: bool,
    /// Prompt and output together.
    pub context_tokens: u64,
    /// The most one choice may generate.
    pub max_output_tokens: u64,
    /// The bound of a caller that gives none.
    pub default_max_tokens: u64,
    /// A label: T1 small, T2 main, T3 flagship.
    pub tier: String,
    /// What tokens cost.
    pub price: Option<Rates>,
    /// What happens to body fields nobody knows.
    pub unknown_fields: UnknownFields,
    /// No token is shorter than this many thousandths of a byte.
    pub milli_bytes_per_token_floor: u64,
    /// No token is longer than this many thousandths of a byte.
    pub milli_bytes_per_token_ceiling: u64,
}

/// A customer.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name.
    pub name: TenantId,
    /// What its requests are promised.
    pub choice: Choice,
    /// Every charge is multiplied by it.
    pub ratio: Ratio,
    /// What it may use.
    pub models: Models,
    /// Its own limits.
    pub limits: Vec<Limit>,
    /// Whose prefix caches it shares; itself when absent.
    pub cache_group: Option<String>,
    /// Its projects.
    pub projects: Vec<Project>,
}

/// A project of a tenant.
#[derive(Clone, Debug)]
pub struct Project {
    /// Its name, unique in the tenant.
    pub name: String,
    /// Its own limits.
    pub limits: Vec<Limit>,
    /// What it may use.
    pub models: Models,
    /// What its requests are promised.
    pub choice: Choice,
    /// Its users.
    pub users: Vec<User>,
    /// Its keys.
    pub keys: Vec<KeyConfig>,
}

/// A user of a project.
#[derive(Clone, Debug)]
pub struct User {
    /// The name, unique in the project.
    pub name: String,
    /// The user's own limits.
    pub limits: Vec<Limit>,
}

/// A key of the configuration file.
#[derive(Clone, Debug)]
pub struct KeyConfig {
    /// What people call it, unique in the project.
    pub name: String,
    /// Who uses it.
    pub user: Option<String>,
    /// What it may do besides asking models.
    pub role: Role,
    /// What its requests are promised.
    pub choice: Choice,
    /// When it ends, in seconds since 1970.
    pub expires_unix_s: Option<u64>,
    /// What it may use.
    pub models: Models,
    /// Its own limits.
    pub limits: Vec<Limit>,
    /// Where the key itself is read from.
    pub secret: SecretSource,
    /// Where it stands in the file, as messages name it.
    pub at: String,
}

/// One limit of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Tier A: requests per time, with a burst.
    Rate(Rate),
    /// Tier A: requests at the same time.
    Concurrency(u32),
    /// Tiers B and D: WTU or tokens per window, kept in the ledger.
    Ledger(PolicySpec),
}

impl Limit {
    /// The rule of tier A, if it is one.
    pub fn rule(&self) -> Option<Rule> {
        match self {
            Self::Rate(rate) => Some(Rule::Rate(*rate)),
            Self::Concurrency(most) => Some(Rule::Concurrency(*most)),
            Self::Ledger(_) => None,
        }
    }

    /// The policy of the ledger, if it is one.
    pub fn policy(&self) -> Option<&PolicySpec> {
        match self {
            Self::Ledger(policy) => Some(policy),
            Self::Rate(_) | Self::Concurrency(_) => None,
        }
    }
}

impl Tenant {
    /// Its account.
    pub fn account(&self) -> AccountId {
        account(self.name.as_str())
    }
}

impl Project {
    /// Its account.
    pub fn account(&self, tenant: &Tenant) -> AccountId {
        below(&tenant.account(), &self.name)
    }
}

impl User {
    /// Their account.
    pub fn account(&self, tenant: &Tenant, project: &Project) -> AccountId {
        below(&project.account(tenant), &self.name)
    }
}

impl KeyConfig {
    /// The account it belongs to: the user's, or the project's.
    pub fn owner(&self, tenant: &Tenant, project: &Project) -> AccountId {
        let project = project.account(tenant);
        self.user
            .as_ref()
            .map_or_else(|| project.clone(), |user| below(&project, user))
    }
}

fn account(name: &str) -> AccountId {
    AccountId::parse(name).expect("checked names make account ids")
}

fn below(parent: &AccountId, name: &str) -> AccountId {
    parent
        .child(name)
        .expect("three checked names make an account id")
}

/// A value that cannot be accepted, and what could.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value} is not allowed; use {allowed}")]
pub struct ConfigError {
    /// Where it stands in the file.
    pub field: String,
    /// What stands there; texts in quotes.
    pub value: String,
    /// What may stand there, and what to do: it follows "use".
    pub allowed: String,
}
