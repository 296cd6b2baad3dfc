//! From a configuration to a running L1: declares accounts, takes over the keys of the file, builds
//! the price book. Either all of it works or nothing starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use governance_core::account::{AccountId, Kind, PolicySpec, UnixMs};
use governance_core::keys::{KeyText, PublicPart, Scope};
use governance_core::price::{
    Book, BookBuilder, BookError, ContextBand, GroupName, PicoPerToken, PriceVersion, Priced,
    Ratios, Sanity,
};
use governance_core::sanitize::CacheKey;
use ledger_store::{
    By, Declaration, KeyError, KeyRecord, NewKey, ScopeChange, SqliteLedger, Unavailable,
};

use crate::config::{Config, KeyConfig, Limit, SecretError};
use crate::identity::{FROM_CONFIG, Owners};
use crate::shared::unix_ms;

/// Why L1 did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A secret is not where the configuration says.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A key file does not hold a key.
    #[error(
        "{0}.secret: not a virtual key; it must read hp-<12 of abcdefghijkmnpqrstuvwxyz23456789>-<16 to 128 letters and digits>, as `headpond key create` makes them"
    )]
    NotAKey(String),
    /// Two keys of the file are one.
    #[error("{1}.secret: the same key as that of {0}; give each its own")]
    SameKey(String, String),
    /// The ledger knows the key as somebody else's.
    #[error(
        "{key}.secret: the ledger knows this key as one of account {owner}; make a new key in place of moving it"
    )]
    Moved {
        /// Which key.
        key: String,
        /// Whose it is.
        owner: AccountId,
    },
    /// The prices do not make a book.
    #[error("the price book is not valid")]
    Prices(#[from] BookError),
    /// The ledger refused an account or a key.
    #[error("{what}: the ledger refused it")]
    Ledger {
        /// Which account or key.
        what: String,
        /// Why.
        #[source]
        source: KeyError,
    },
    /// The ledger does not answer.
    #[error("the ledger does not answer")]
    Unavailable(#[from] Unavailable),
}

/// Prices and ratios of the configuration, in force from the beginning of time.
pub(crate) fn book(config: &Config) -> Result<Book, BookError> {
    // The configuration bounds rates at one WTU per token.
    let sanity = Sanity {
        max_rate: PicoPerToken(1_000_000_000_000),
        ..Sanity::default()
    };
    let mut builder = BookBuilder::new(sanity).unpriced(config.no_price);
    let (version, effective) = (PriceVersion(1), UnixMs(0));
    for model in config.models.iter() {
        if let Some(rates) = model.price {
            let bands = Arc::from([ContextBand { up_to: None, rates }]);
            builder = builder.price(
                &model.name,
                Priced {
                    version,
                    effective,
                    bands,
                },
            )?;
        }
    }
    let groups = config.tenants.iter();
    let groups = groups.map(|tenant| (GroupName(tenant.name.as_str().into()), tenant.ratio));
    let ratios = Ratios {
        version,
        effective,
        groups: groups.collect(),
        bands: BTreeMap::new(),
    };
    Ok(builder.ratios(ratios)?.build())
}

pub(crate) fn cache_key(config: &Config) -> Result<CacheKey, StartError> {
    if let Some(source) = &config.installation_secret {
        let secret = source.read("governance.installation_secret")?;
        return Ok(CacheKey::new(secret.as_bytes()));
    }
    let random: [u8; 32] = rand::random();
    Ok(CacheKey::new(&random))
}

/// Declares every account of the configuration with its limits.
pub(crate) async fn declare(config: &Config, ledger: &SqliteLedger) -> Result<(), StartError> {
    let mut accounts = Vec::new();
    let mut add = |account: AccountId, kind, limits: &[Limit]| {
        let policies = policies(limits);
        accounts.push(Declaration {
            account,
            kind,
            policies,
        });
    };
    for tenant in &config.tenants {
        add(tenant.account(), Kind::Tenant, &tenant.limits);
        for project in &tenant.projects {
            add(project.account(tenant), Kind::Project, &project.limits);
            for user in &project.users {
                add(user.account(tenant, project), Kind::User, &user.limits);
            }
        }
    }
    let declared = ledger.declare(accounts).await;
    declared.map_err(|source| StartError::Ledger {
        what: "the accounts of the configuration".to_owned(),
        source,
    })
}

fn policies(limits: &[Limit]) -> Vec<PolicySpec> {
    limits.iter().filter_map(Limit::policy).cloned().collect()
}

/// Takes over the keys of the file, as the file says now.
pub(crate) async fn import_keys(
    config: &Config,
    ledger: &SqliteLedger,
    owners: &mut Owners,
) -> Result<(), StartError> {
    let mut seen: BTreeMap<PublicPart, String> = BTreeMap::new();
    for tenant in &config.tenants {
        for project in &tenant.projects {
            for key in &project.keys {
                let what = key.at.clone();
                let text = key.read()?;
                let text =
                    KeyText::parse(&text).ok_or_else(|| StartError::NotAKey(what.clone()))?;
                if let Some(other) = seen.insert(text.public(), what.clone()) {
                    return Err(StartError::SameKey(other, what));
                }
                let owner = key.owner(tenant, project);
                let record = import_key(ledger, text, owner, key, &what).await?;
                if !key.limits.is_empty() {
                    limit_key(ledger, &record, key, &what).await?;
                    owners.key_limits(record.account.clone(), &key.limits);
                }
            }
        }
    }
    end_replaced(ledger, &seen).await?;
    pass_on_objectives(ledger, owners).await
}

/// Keys that were made in place of those of the file have the objective the file names now.
async fn pass_on_objectives(ledger: &SqliteLedger, owners: &Owners) -> Result<(), StartError> {
    let ring = ledger.keys();
    for record in ring.list().filter(|record| record.is_valid(unix_ms())) {
        let Some(choice) = owners.of_file(record) else {
            continue;
        };
        if record.scope.objective == choice.objective {
            continue;
        }
        let change = ScopeChange {
            public: record.public,
            version: record.version,
            scope: Scope {
                objective: choice.objective.clone(),
                ..record.scope.clone()
            },
        };
        match ledger.update_keys(By::Operator, vec![change]).await {
            // It may end at this very moment.
            Ok(()) | Err(KeyError::Over) => {}
            Err(source) => {
                let what = record.public.to_string();
                return Err(StartError::Ledger { what, source });
            }
        }
    }
    Ok(())
}

/// Ends keys whose secret was replaced in the file. One that was made by rotating a key of the file stays.
async fn end_replaced(
    ledger: &SqliteLedger,
    of_file: &BTreeMap<PublicPart, String>,
) -> Result<(), StartError> {
    let ring = ledger.keys();
    let mut good: BTreeSet<PublicPart> = of_file.keys().copied().collect();
    loop {
        let heirs: Vec<PublicPart> = ring
            .list()
            .filter(|record| good.contains(&record.public))
            .filter_map(|record| record.replaced_by)
            .filter(|heir| !good.contains(heir))
            .collect();
        if heirs.is_empty() {
            break;
        }
        good.extend(heirs);
    }
    let places: BTreeSet<_> = ring
        .list()
        .filter(|record| of_file.contains_key(&record.public))
        .map(|record| (&record.owner, &record.name))
        .collect();
    for record in ring.list() {
        let replaced = places.contains(&(&record.owner, &record.name))
            && !good.contains(&record.public)
            && record.revoked.is_none();
        if replaced {
            let ended = ledger.revoke_key(By::Operator, record.public).await;
            ended.map_err(|source| StartError::Ledger {
                what: record.public.to_string(),
                source,
            })?;
            tracing::warn!(key = %record.public, name = %record.name, "its secret was replaced in the configuration: ended");
        }
    }
    Ok(())
}

/// Says which keys name an objective that is gone. They have that of their project or tenant.
pub(crate) fn warn_of_lost_objectives(config: &Config, ledger: &SqliteLedger) {
    for record in ledger.keys().list() {
        let lost = record.scope.objective.as_ref();
        let lost = lost.filter(|name| !config.objectives.named.contains_key(*name));
        if let Some(objective) = lost.filter(|_| record.is_valid(unix_ms())) {
            tracing::warn!(
                key = %record.public, name = %record.name, owner = %record.owner, %objective,
                "governance.objectives does not define the objective this key names: it has that of its project or tenant"
            );
        }
    }
}

async fn import_key(
    ledger: &SqliteLedger,
    text: KeyText,
    owner: AccountId,
    key: &KeyConfig,
    what: &str,
) -> Result<Arc<KeyRecord>, StartError> {
    let refused = |source| StartError::Ledger {
        what: what.to_owned(),
        source,
    };
    let scope = Scope {
        models: key.models.clone(),
        budget: None,
        expires: key
            .expires_unix_s
            .map(|seconds| UnixMs(seconds.saturating_mul(1000))),
        role: key.role,
        objective: key.choice.objective.clone(),
    };
    let name = format!("{FROM_CONFIG}{}", key.name);
    let new = NewKey {
        owner: owner.clone(),
        name,
        scope: scope.clone(),
    };
    let record = ledger.import_key(text, new).await.map_err(refused)?;
    if record.owner != owner {
        return Err(StartError::Moved {
            key: what.to_owned(),
            owner: record.owner.clone(),
        });
    }
    if record.revoked.is_none() && record.scope != scope {
        let change = ScopeChange {
            public: record.public,
            version: record.version,
            scope,
        };
        match ledger.update_keys(By::Operator, vec![change]).await {
            Ok(()) => {}
            Err(KeyError::Over) => tracing::warn!(key = what, "the key has expired"),
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(record)
}

async fn limit_key(
    ledger: &SqliteLedger,
    record: &KeyRecord,
    key: &KeyConfig,
    what: &str,
) -> Result<(), StartError> {
    let account = record.account.clone();
    let declaration = Declaration {
        account,
        kind: Kind::Key,
        policies: policies(&key.limits),
    };
    let declared = ledger.declare(vec![declaration]).await;
    declared.map_err(|source| StartError::Ledger {
        what: what.to_owned(),
        source,
    })
}
