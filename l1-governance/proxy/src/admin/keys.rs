//! Keys: every write goes through the one ceiling, and shows what was stored.

use bytes::Bytes;
use governance_context::ObjectiveName;
use governance_core::account::{AccountId, Kind};
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::keys::{KeyText, Models, PublicPart, Role, Scope};
use http::{Response, StatusCode};
use ledger_store::{By, Declaration, KeyRecord, NewKey, ScopeChange};
use serde::Serialize;

use super::{Caller, refusal, visible};
use crate::body::Body;
use crate::models::json;
use crate::respond::{Refused, rfc3339};
use crate::shared::{Shared, unix_ms};

mod asked;

use asked::{Create, Rotate, Update, budget, expiry, invalid, models, objective, parse, role};

const MOST_NAME_BYTES: usize = 64;

/// A key as it is shown: everything but the secret, which only its maker sees, once.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    public: String,
    name: &'a str,
    account: &'a AccountId,
    owner: &'a AccountId,
    role: &'static str,
    models: &'a Models,
    /// The one it names.
    objective: Option<&'a ObjectiveName>,
    /// The one in force for it.
    objective_in_force: Option<ObjectiveName>,
    budget_wtu: Option<String>,
    created_at: String,
    expires_at: Option<String>,
    revoked_at: Option<String>,
    retires_at: Option<String>,
    replaced_by: Option<String>,
    valid: bool,
    version: u64,
}

impl<'a> Shown<'a> {
    fn of(shared: &Shared, record: &'a KeyRecord, text: Option<&'a KeyText>) -> Self {
        Self {
            key: text.map(KeyText::reveal),
            public: record.public.to_string(),
            name: &record.name,
            account: &record.account,
            owner: &record.owner,
            role: record.scope.role.as_str(),
            models: &record.scope.models,
            objective: record.scope.objective.as_ref(),
            objective_in_force: shared.owners.objective(record),
            budget_wtu: record.scope.budget.map(|budget| budget.to_string()),
            created_at: rfc3339(record.created),
            expires_at: record.scope.expires.map(rfc3339),
            revoked_at: record.revoked.map(rfc3339),
            retires_at: record.retires.map(rfc3339),
            replaced_by: record.replaced_by.map(|public| public.to_string()),
            valid: record.is_valid(unix_ms()),
            version: record.version,
        }
    }
}

pub(super) fn list(shared: &Shared, caller: &Caller) -> Response<Body> {
    #[derive(Serialize)]
    struct List<'a> {
        keys: Vec<Shown<'a>>,
    }
    let ring = shared.ledger.keys();
    let seen = ring.list().filter(|record| caller.may_see(&record.account));
    json(&List {
        keys: seen.map(|record| Shown::of(shared, record, None)).collect(),
    })
}

pub(super) fn show(
    shared: &Shared,
    caller: &Caller,
    public: PublicPart,
) -> Result<Response<Body>, Refused> {
    let record = visible(shared, caller, public)?;
    Ok(json(&Shown::of(shared, &record, None)))
}

pub(super) async fn create(
    shared: &Shared,
    caller: &Caller,
    body: &Bytes,
) -> Result<Response<Body>, Refused> {
    let asked: Create = parse(body)?;
    let owner = owner(shared, caller, &asked).await?;
    let name = asked.name.trim();
    let fine = (1..=MOST_NAME_BYTES).contains(&name.len()) && !name.contains('/');
    if !fine || name.chars().any(char::is_control) {
        return Err(invalid("name", "`name` must be 1 to 64 bytes without `/`"));
    }
    let scope = Scope {
        objective: match &asked.objective {
            Some(name) => Some(objective(shared, name)?),
            None => own_objective(shared, caller),
        },
        models: models(shared, asked.models)?,
        budget: asked.budget_wtu.as_ref().map(budget).transpose()?.flatten(),
        expires: asked.expires_in.map(expiry).transpose()?,
        role: asked.role.as_deref().map_or(Ok(Role::Member), role)?,
    };
    let new = NewKey {
        owner,
        name: name.to_owned(),
        scope,
    };
    let (text, record) = shared
        .ledger
        .create_key(caller.by, new)
        .await
        .map_err(|error| refusal(&error))?;
    audit(caller, "create", record.public);
    let mut response = json(&Shown::of(shared, &record, Some(&text)));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

pub(super) async fn update(
    shared: &Shared,
    caller: &Caller,
    public: PublicPart,
    body: &Bytes,
) -> Result<Response<Body>, Refused> {
    let record = visible(shared, caller, public)?;
    let asked: Update = parse(body)?;
    let mut scope = record.scope.clone();
    if let Some(value) = asked.models {
        let names: Option<Vec<String>> = serde_json::from_value(value)
            .map_err(|_| invalid("models", "`models` must be a list of names or null"))?;
        scope.models = models(shared, names)?;
    }
    if let Some(value) = &asked.budget_wtu {
        scope.budget = budget(value)?;
    }
    if let Some(value) = asked.expires_in {
        let seconds: Option<u64> = serde_json::from_value(value)
            .map_err(|_| invalid("expires_in", "`expires_in` must be seconds or null"))?;
        scope.expires = seconds.map(expiry).transpose()?;
    }
    if let Some(word) = &asked.role {
        scope.role = role(word)?;
    }
    if let Some(value) = asked.objective {
        let name: Option<String> = serde_json::from_value(value)
            .map_err(|_| invalid("objective", "`objective` must be a name or null"))?;
        scope.objective = name.map(|name| objective(shared, &name)).transpose()?;
    }
    let change = ScopeChange {
        public,
        version: asked.version,
        scope,
    };
    let changed = shared.ledger.update_keys(caller.by, vec![change]).await;
    changed.map_err(|error| refusal(&error))?;
    audit(caller, "update", public);
    show(shared, caller, public)
}

pub(super) async fn revoke(
    shared: &Shared,
    caller: &Caller,
    public: PublicPart,
) -> Result<Response<Body>, Refused> {
    visible(shared, caller, public)?;
    let revoked = shared.ledger.revoke_key(caller.by, public).await;
    let record = revoked.map_err(|error| refusal(&error))?;
    audit(caller, "revoke", public);
    Ok(json(&Shown::of(shared, &record, None)))
}

pub(super) async fn rotate(
    shared: &Shared,
    caller: &Caller,
    public: PublicPart,
    body: &Bytes,
) -> Result<Response<Body>, Refused> {
    const MOST_OVERLAP_S: u64 = 90 * 86_400;
    visible(shared, caller, public)?;
    let asked: Rotate = if body.is_empty() {
        Rotate { overlap_seconds: 0 }
    } else {
        parse(body)?
    };
    if asked.overlap_seconds > MOST_OVERLAP_S {
        return Err(invalid(
            "overlap_seconds",
            "`overlap_seconds` must be at most 7776000 (90 days)",
        ));
    }
    let overlap_ms = asked.overlap_seconds * 1000;
    let rotated = shared
        .ledger
        .rotate_key(caller.by, public, overlap_ms)
        .await;
    let (text, record) = rotated.map_err(|error| refusal(&error))?;
    audit(caller, "rotate", public);
    let mut response = json(&Shown::of(shared, &record, Some(&text)));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// The account a new key belongs to. A user nobody has heard of is declared, below a known project.
async fn owner(shared: &Shared, caller: &Caller, asked: &Create) -> Result<AccountId, Refused> {
    let id = |text: &str| AccountId::parse(text).ok();
    let unknown = || {
        let (tenant, project) = (&asked.tenant, &asked.project);
        let what = format!("The configuration has no project {project:?} of a tenant {tenant:?}");
        Refused::from(
            Fault::new(Code::InvalidValue)
                .param("project")
                .what(what)
                .how("Name a tenant of `governance.tenants` and one of its projects."),
        )
    };
    let project = id(&format!("{}/{}", asked.tenant, asked.project)).ok_or_else(unknown)?;
    if project.as_str().matches('/').count() != 1 || !shared.owners.knows(&project) {
        return Err(unknown());
    }
    let Some(user) = &asked.user else {
        return Ok(project);
    };
    let named = !user.contains('/') && user.len() <= MOST_NAME_BYTES && !user.starts_with("hp-");
    let account = project.child(user).ok().filter(|_| named);
    let account = account.ok_or_else(|| {
        invalid("user", "`user` must be 1 to 64 letters, digits, '.', '_', '-' or ':', and not start with `hp-`")
    })?;
    if !caller.may_see(&account) {
        return Err(Refused::what(
            Code::Forbidden,
            "The project is not yours to manage",
        ));
    }
    let known = shared.ledger.balances(&account);
    let known = known.map_err(|error| Refused::what(Code::QuotaUnavailable, error.to_string()))?;
    if known.is_empty() {
        let declaration = Declaration {
            account: account.clone(),
            kind: Kind::User,
            policies: Vec::new(),
        };
        let declared = shared.ledger.declare(vec![declaration]).await;
        declared.map_err(|error| refusal(&error))?;
    }
    Ok(account)
}

/// A key passes its objective on to those that are made with it, so that nobody leaves theirs that way.
fn own_objective(shared: &Shared, caller: &Caller) -> Option<ObjectiveName> {
    let By::Key(public) = caller.by else {
        return None;
    };
    let ring = shared.ledger.keys();
    ring.get(&public)
        .and_then(|record| record.scope.objective.clone())
}

fn audit(caller: &Caller, action: &'static str, public: PublicPart) {
    let by = match caller.by {
        By::Operator => "operator".to_owned(),
        By::Key(key) => key.to_string(),
    };
    tracing::info!(target: "audit", action, key = %public, by, "keys");
}
