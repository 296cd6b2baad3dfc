//! Who is asking: a key's record, resolved to everything the policy says about its owner. Nothing
//! here leaves memory, so an unauthenticated request costs no look-up anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use governance_context::{Band, CacheDomain, FairnessId, PathHash, TenantId};
use governance_core::account::{AccountId, AccountPath};
use governance_core::keys::{Models, PublicPart, Role, Scope};
use governance_core::limits;
use governance_core::price::GroupName;
use ledger_store::KeyRecord;

use crate::config::{Config, Limit};

#[cfg(test)]
mod tests;

/// Keys of the configuration file carry this before their name, so that a key that is taken out of
/// the file ends, and one made through the API does not.
pub(crate) const FROM_CONFIG: &str = "config/";

/// Everything the policy says about the owner of a key.
#[derive(Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: TenantId,
    pub(crate) project: String,
    pub(crate) user: Option<String>,
    pub(crate) key: PublicPart,
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
    pub(crate) band: Band,
    pub(crate) weight: u32,
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
    /// Keys of the file, by the name they have in the ledger and the account they belong to.
    from_config: BTreeSet<(AccountId, String)>,
    resolved: ArcSwap<BTreeMap<PublicPart, (u64, Arc<Principal>)>>,
}

/// What the policy says about one account.
#[derive(Debug, Default)]
struct Owner {
    models: Option<Models>,
    limits: Vec<limits::Limit>,
    has_ledger_limits: bool,
    tenant: Option<TenantFacts>,
}

#[derive(Debug, Clone)]
struct TenantFacts {
    name: TenantId,
    band: Band,
    weight: u32,
    cache_domain: CacheDomain,
}

impl Owners {
    pub(crate) fn of(config: &Config) -> Self {
        let mut accounts = BTreeMap::new();
        let mut from_config = BTreeSet::new();
        for tenant in &config.tenants {
            let id = tenant.account();
            let domain = tenant
                .cache_group
                .as_deref()
                .map(|group| format!("group:{group}"));
            let domain = domain.unwrap_or_else(|| format!("tenant:{}", tenant.name));
            let facts = TenantFacts {
                name: tenant.name.clone(),
                band: tenant.band,
                weight: tenant.weight,
                cache_domain: CacheDomain::new(domain).expect("a checked name is visible ASCII"),
            };
            let mut owner = Owner::new(&id, &tenant.limits, Some(&tenant.models));
            owner.tenant = Some(facts);
            for project in &tenant.projects {
                let id = project.account(tenant);
                for user in &project.users {
                    let id = user.account(tenant, project);
                    let owner = Owner::new(&id, &user.limits, None);
                    accounts.insert(id, owner);
                }
                for key in &project.keys {
                    let name = format!("{FROM_CONFIG}{}", key.name);
                    from_config.insert((key.owner(tenant, project), name));
                }
                let owner = Owner::new(&id, &project.limits, Some(&project.models));
                accounts.insert(id, owner);
            }
            accounts.insert(id, owner);
        }
        Self {
            accounts,
            from_config,
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

    fn principal(&self, record: &KeyRecord) -> Option<Principal> {
        let name = record.name.as_str();
        if name.starts_with(FROM_CONFIG)
            && !self
                .from_config
                .contains(&(record.owner.clone(), name.to_owned()))
        {
            return None;
        }
        let mut levels = record.owner.as_str().split('/');
        let (_tenant, project, user) = (levels.next()?, levels.next()?, levels.next());
        let [tenant_account, project_account, ..] = record.path.accounts() else {
            return None;
        };
        let tenant = self.accounts.get(tenant_account)?.tenant.clone()?;
        self.accounts.get(project_account)?;
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
        Some(Principal {
            path_hash: PathHash::of(record.path.accounts().iter().map(AccountId::as_str)),
            path: record.path.clone(),
            project: project.to_owned(),
            user: user.map(str::to_owned),
            key: record.public,
            scope,
            limits,
            limited,
            group: GroupName(tenant.name.as_str().into()),
            fairness: FairnessId::new(tenant.name.as_str())
                .expect("a tenant's name is visible ASCII"),
            band: tenant.band,
            weight: tenant.weight,
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
