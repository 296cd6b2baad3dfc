//! Where accounts stand, and whether the ledger agrees with itself.

use std::collections::BTreeSet;

use governance_core::account::{AccountId, Unit, UnixMs};
use governance_core::catalogue::Code;
use governance_core::ledger::Balance;
use http::Response;
use ledger_store::Unavailable;
use serde::Serialize;

use super::Caller;
use crate::body::Body;
use crate::models::json;
use crate::respond::{Refused, rfc3339};
use crate::shared::Shared;

#[derive(Serialize)]
struct Account {
    account: AccountId,
    balances: Vec<Line>,
}

/// One limit of an account. Amounts are micro-WTU or tokens, as `unit` says.
#[derive(Serialize)]
struct Line {
    policy: String,
    tier: &'static str,
    unit: &'static str,
    limit: Option<u64>,
    used: u64,
    held: u64,
    debt: u64,
    /// Absent where nothing is refused; negative when overrun.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
    window_start: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_at: Option<String>,
}

impl Line {
    fn of(balance: &Balance) -> Self {
        Self {
            policy: balance.policy.to_string(),
            tier: balance.tier.as_str(),
            unit: match balance.unit {
                Unit::MicroWtu => "uwtu",
                Unit::Tokens => "tokens",
            },
            limit: balance.limit,
            used: balance.used,
            held: balance.held,
            debt: balance.debt,
            available: balance.limit.map(|_| balance.available),
            window_start: rfc3339(balance.window.start),
            resets_at: (balance.window.end < UnixMs::FOREVER).then(|| rfc3339(balance.window.end)),
        }
    }
}

fn account(shared: &Shared, id: AccountId) -> Result<Account, Refused> {
    let balances = shared
        .ledger
        .balances(&id)
        .map_err(|error| unavailable(&error))?;
    Ok(Account {
        balances: balances.iter().map(Line::of).collect(),
        account: id,
    })
}

pub(super) fn list(shared: &Shared, caller: &Caller) -> Result<Response<Body>, Refused> {
    #[derive(Serialize)]
    struct List {
        accounts: Vec<Account>,
    }
    let ring = shared.ledger.keys();
    let of_keys = ring.list().flat_map(|record| record.path.accounts());
    let all: BTreeSet<&AccountId> = shared.owners.accounts().chain(of_keys).collect();
    let mut accounts = Vec::with_capacity(all.len());
    for id in all {
        if caller.may_see(id) {
            accounts.push(account(shared, id.clone())?);
        }
    }
    Ok(json(&List { accounts }))
}

pub(super) fn show(
    shared: &Shared,
    caller: &Caller,
    name: &str,
) -> Result<Response<Body>, Refused> {
    let none = || Refused::what(Code::NotFound, "There is no such account");
    let id = AccountId::parse(name)
        .ok()
        .filter(|id| caller.may_see(id))
        .ok_or_else(none)?;
    let account = account(shared, id)?;
    if account.balances.is_empty() {
        Err(none())
    } else {
        Ok(json(&account))
    }
}

/// The invariants of the ledger, checked on what is on disk.
pub(super) async fn verify(shared: &Shared) -> Result<Response<Body>, Refused> {
    #[derive(Serialize)]
    struct Checked {
        green: bool,
        entries: u64,
        windows: u64,
        attempts: u64,
        unknown_attempts: u64,
        unknown_held: u64,
        violation_count: u64,
        violations: Vec<String>,
        alarms: u64,
    }
    let report = shared.ledger.verify().await;
    let report = report.map_err(|error| {
        tracing::error!(%error, "the ledger cannot be verified");
        Refused::what(Code::QuotaUnavailable, "The ledger cannot be read")
    })?;
    let violations = report
        .violations
        .iter()
        .map(|v| format!("{:?}: {}", v.invariant, v.detail))
        .collect();
    Ok(json(&Checked {
        green: report.is_green(),
        entries: report.entries,
        windows: report.windows,
        attempts: report.attempts,
        unknown_attempts: report.unknown.attempts,
        unknown_held: report.unknown.held,
        violation_count: report.violation_count,
        violations,
        alarms: shared.ledger.alarms(),
    }))
}

fn unavailable(error: &Unavailable) -> Refused {
    Refused::what(Code::QuotaUnavailable, error.to_string())
}
