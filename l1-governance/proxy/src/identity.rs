//! Who is asking: a key's record, resolved to everything the policy says about its owner. Nothing
//! here leaves memory, so an unauthenticated request costs no look-up anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use governance_context::{CacheDomain, FairnessId, ObjectiveName, PathHash, TenantId};
use governance_core::account::{AccountId, AccountPath};
use governance_core::keys::{Models, PublicPart, Role, Scope};
use governance_core::limits;
use governance_core::objective::{Choice, Fields, Objectives, Terms};
use governance_core::price::GroupName;
use http::HeaderValue;
use ledger_store::KeyRecord;

use crate::config::{Config, Limit};
use crate::record;

#[cfg(test)]
mod tests;

/// Keys of the configuration file carry this before their name, so that a key that is taken out of
/// the file ends, and one made through the API does not.
pub(crate) const FROM_CONFIG: &str = "config/";

/// Everything the policy says about the owner of a key.
#[derive(Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: TenantId,
    pub(crate) key: PublicPart,
    /// As records show it.
    pub(crate) identity: Arc<record::Identity>,
    /// What its requests are promised, as records show it.
    pub(crate) objective: Arc<record::Objective>,
    /// Who pays, the tenant first.
    pub(crate) path: AccountPath,
    pub(crate) path_hash: PathHash,
    /// What the key may do, within what its project and tenant may do.
    pub(crate) scope: Scope,
    /// Tier A limits of the whole path.
    pub(crate) limits: Vec<limits::Limit>,
    /// Accounts of the path with limits in the ledger.
    pub(crate) limited: Vec<AccountId>,
    pub(crate) group: GroupName,
    pub(crate) fairness: FairnessId,
    /// The same as a header, made once: its copies share the text.
    pub(crate) fairness_header: HeaderValue,
    /// What its requests are promised.
    pub(crate) terms: Terms,
    pub(crate) cache_domain: CacheDomain,
}

impl Principal {
    pub(crate) fn leads(&self) -> bool {
        self.scope.role == Role::Lead
    }
}

/// The owners of the configuration, and the principals resolved so far.
pub(crate) struct Owners {
    accounts: BTreeMap<AccountId, Owner>,
    /// What the file says about its keys, by the account they belong to and the name they have in the ledger.
    from_config: BTreeMap<(AccountId, String), Choice>,
    objectives: Objectives,
    resolved: ArcSwap<BTreeMap<PublicPart, (u64, Arc<Principal>)>>,
}

/// What the policy says about one account.
#[derive(Debug, Default)]
struct Owner {
    models: Option<Models>,
    limits: Vec<limits::Limit>,
    has_ledger_limits: bool,
    choice: Choice,
    tenant: Option<TenantFacts>,
}

#[derive(Debug, Clone)]
struct TenantFacts {
    name: TenantId,
    cache_domain: CacheDomain,
}

impl Owners {
    pub(crate) fn of(config: &Config) -> Self {
        let mut accounts = BTreeMap::new();
        let mut from_config = BTreeMap::new();
        for tenant in &config.tenants {
            let id = tenant.account();
            let domain = tenant
                .cache_group
                .as_deref()
                .map(|group| format!("group:{group}"));
            let domain = domain.unwrap_or_else(|| format!("tenant:{}", tenant.name));
            let facts = TenantFacts {
                name: tenant.name.clone(),
                cache_domain: CacheDomain::new(domain).expect("a checked name is visible ASCII"),
            };
            let mut owner = Owner::new(&id, &tenant.limits, Some(&tenant.models));
            owner.tenant = Some(facts);
            owner.choice.clone_from(&tenant.choice);
            for project in &tenant.projects {
                let id = project.account(tenant);
                for user in &project.users {
                    let id = user.account(tenant, project);
                    let owner = Owner::new(&id, &user.limits, None);
                    accounts.insert(id, owner);
                }
                for key in &project.keys {
                    let name = format!("{FROM_CONFIG}{}", key.name);
                    from_config.insert((key.owner(tenant, project), name), key.choice.clone());
                }
                let mut owner = Owner::new(&id, &project.limits, Some(&project.models));
                owner.choice.clone_from(&project.choice);
                accounts.insert(id, owner);
            }
            accounts.insert(id, owner);
        }
        Self {
            accounts,
            from_config,
            objectives: config.objectives.clone(),
            resolved: ArcSwap::default(),
        }
    }

    /// Adds what the file says about the account of a key.
    pub(crate) fn key_limits(&mut self, account: AccountId, limits: &[Limit]) {
        let owner = Owner::new(&account, limits, None);
        self.accounts.insert(account, owner);
    }

    /// Whether the policy knows a project, so that keys can be made below it.
    pub(crate) fn knows(&self, account: &AccountId) -> bool {
        self.accounts.contains_key(account)
    }

    /// The accounts of the file, the tenant before its projects and they before their users.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &AccountId> {
        self.accounts.keys()
    }

    /// The objective in force for a key.
    pub(crate) fn objective(&self, record: &KeyRecord) -> Option<ObjectiveName> {
        self.terms(record)?.objective.map(|said| said.value)
    }

    /// Who the owner of a key is; nobody when the policy no longer knows them.
    pub(crate) fn resolve(&self, record: &KeyRecord) -> Option<Arc<Principal>> {
        if let Some((version, principal)) = self.resolved.load().get(&record.public)
            && *version == record.version
        {
            return Some(Arc::clone(principal));
        }
        let principal = Arc::new(self.principal(record)?);
        self.resolved.rcu(|resolved| {
            let mut resolved = BTreeMap::clone(resolved);
            resolved.insert(record.public, (record.version, Arc::clone(&principal)));
            resolved
        });
        Some(principal)
    }

    /// What the file says about a key of its own, or one that was made in its place.
    pub(crate) fn of_file(&self, record: &KeyRecord) -> Option<&Choice> {
        let place = (record.owner.clone(), record.name.clone());
        self.from_config.get(&place)
    }

    /// What policy says about a key: the stored record names the objective, the file says the rest.
    /// Nothing when the file no longer has it.
    fn key_choice(&self, record: &KeyRecord) -> Option<Choice> {
        let fields = if record.name.starts_with(FROM_CONFIG) {
            self.of_file(record)?.fields
        } else {
            Fields::default()
        };
        let objective = record.scope.objective.clone();
        Some(Choice { objective, fields })
    }

    /// What the policy promises the requests of a key; nothing when it no longer knows the key, its
    /// project or its tenant.
    fn terms(&self, record: &KeyRecord) -> Option<Terms> {
        let [tenant, project, ..] = record.path.accounts() else {
            return None;
        };
        let key = self.key_choice(record)?;
        let said = |account| self.accounts.get(account).map(|owner| &owner.choice);
        Some(self.objectives.resolve(said(tenant)?, said(project)?, &key))
    }

    fn principal(&self, record: &KeyRecord) -> Option<Principal> {
        let mut levels = record.owner.as_str().split('/');
        let (_tenant, project, user) = (levels.next()?, levels.next()?, levels.next());
        let [tenant_account, ..] = record.path.accounts() else {
            return None;
        };
        let tenant = self.accounts.get(tenant_account)?.tenant.clone()?;
        let mut scope = record.scope.clone();
        let (mut limits, mut limited) = (Vec::new(), Vec::new());
        for id in record.path.accounts() {
            let Some(owner) = self.accounts.get(id) else {
                continue;
            };
            limits.extend(owner.limits.iter().cloned());
            if owner.has_ledger_limits {
                limited.push(id.clone());
            }
            if let Some(models) = &owner.models {
                scope.models = both(&scope.models, models);
            }
        }
        if scope.budget.is_some() && !limited.contains(&record.account) {
            limited.push(record.account.clone());
        }
        let terms = self.terms(record)?;
        let fairness =
            FairnessId::new(tenant.name.as_str()).expect("a tenant's name is visible ASCII");
        Some(Principal {
            path_hash: PathHash::of(record.path.accounts().iter().map(AccountId::as_str)),
            path: record.path.clone(),
            key: record.public,
            identity: Arc::new(record::Identity {
                tenant: tenant.name.to_string(),
                project: project.to_owned(),
                user: user.map(str::to_owned),
                key: record.public.to_string(),
            }),
            objective: Arc::new(record::Objective::from(&terms)),
            scope,
            limits,
            limited,
            group: GroupName(tenant.name.as_str().into()),
            fairness_header: HeaderValue::from_str(fairness.as_str())
                .expect("a flow's name is visible ASCII"),
            fairness,
            terms,
            cache_domain: tenant.cache_domain,
            tenant: tenant.name,
        })
    }
}

impl Owner {
    fn new(account: &AccountId, limits: &[Limit], models: Option<&Models>) -> Self {
        let rules = limits.iter().filter_map(Limit::rule);
        Self {
            models: models.cloned(),
            limits: rules
                .map(|rule| limits::Limit {
                    account: account.clone(),
                    rule,
                })
                .collect(),
            has_ledger_limits: limits.iter().any(|limit| limit.policy().is_some()),
            choice: Choice::default(),
            tenant: None,
        }
    }
}

/// What both lists allow.
fn both(a: &Models, b: &Models) -> Models {
    match (a, b) {
        (Models::All, other) | (other, Models::All) => other.clone(),
        (Models::Only(a), Models::Only(b)) => Models::Only(a.intersection(b).cloned().collect()),
    }
}
