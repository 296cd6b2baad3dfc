//! Virtual keys as rows.

use std::collections::BTreeSet;

use governance_context::{MicroWtu, ObjectiveName};
use governance_core::account::{AccountId, AccountPath, UnixMs};
use governance_core::keys::{KeyHash, Models, PublicPart, Role, Scope};
use rusqlite::{Connection, Result, Row, params};

use super::read::{at, collect, count, foreign, optional, optional_parsed, parsed, tenant};
use super::write::int;
use crate::keys::{KeyRecord, KeyRing};

/// All keys.
pub(crate) fn load_keys(connection: &Connection) -> Result<KeyRing> {
    let mut ring = KeyRing::default();
    let sql = "SELECT public, hash, account, owner, tenant_id, name, role, models, budget_uwtu, expires_at, created_at,
            revoked_at, retires_at, replaced_by, version, objective FROM virtual_key";
    for record in collect(connection, sql, key_record)? {
        ring.insert(record);
    }
    Ok(ring)
}

pub(crate) fn write_key(connection: &Connection, key: &KeyRecord) -> Result<()> {
    let models = match &key.scope.models {
        Models::All => None,
        Models::Only(names) => {
            Some(serde_json::to_string(names).expect("a set of strings has a JSON form"))
        }
    };
    connection
        .prepare_cached(
            "INSERT INTO virtual_key (public, hash, account, owner, tenant_id, name, role, models, budget_uwtu,
                expires_at, created_at, revoked_at, retires_at, replaced_by, version, objective)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (public) DO UPDATE SET name = excluded.name, role = excluded.role, models = excluded.models,
                budget_uwtu = excluded.budget_uwtu, expires_at = excluded.expires_at,
                revoked_at = excluded.revoked_at, retires_at = excluded.retires_at,
                replaced_by = excluded.replaced_by, version = excluded.version, objective = excluded.objective
             WHERE excluded.version >= virtual_key.version",
        )?
        .execute(params![
            key.public.as_str(),
            key.hash.as_bytes(),
            key.account.as_str(),
            key.owner.as_str(),
            key.tenant.as_str(),
            key.name,
            key.scope.role.as_str(),
            models,
            key.scope.budget.map(|budget| int(budget.0)),
            key.scope.expires.map(|at| int(at.0)),
            int(key.created.0),
            key.revoked.map(|at| int(at.0)),
            key.retires.map(|at| int(at.0)),
            key.replaced_by.as_ref().map(PublicPart::as_str),
            int(key.version),
            key.scope.objective.as_ref().map(ObjectiveName::as_str),
        ])?;
    Ok(())
}

fn key_record(row: &Row<'_>) -> Result<KeyRecord> {
    let models: Option<String> = row.get(7)?;
    let models = match models {
        None => Models::All,
        Some(json) => {
            let names: BTreeSet<String> =
                serde_json::from_str(&json).map_err(|error| foreign(7, error))?;
            Models::Only(names)
        }
    };
    let account: AccountId = parsed(row, 2, |text| AccountId::parse(text).ok())?;
    Ok(KeyRecord {
        public: parsed(row, 0, PublicPart::parse)?,
        hash: KeyHash::from_bytes(row.get(1)?),
        path: AccountPath::of(&account),
        account,
        owner: parsed(row, 3, |text| AccountId::parse(text).ok())?,
        tenant: tenant(row, 4)?,
        name: row.get(5)?,
        scope: Scope {
            role: parsed(row, 6, Role::parse)?,
            models,
            budget: optional(row, 8)?.map(MicroWtu),
            expires: optional(row, 9)?.map(UnixMs),
            objective: optional_parsed(row, 15, |text| ObjectiveName::new(text).ok())?,
        },
        created: at(row, 10)?,
        revoked: optional(row, 11)?.map(UnixMs),
        retires: optional(row, 12)?.map(UnixMs),
        replaced_by: optional_parsed(row, 13, PublicPart::parse)?,
        version: count(row, 14)?,
    })
}
