//! Effects into rows. Called inside one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use governance_context::AttemptId;
use governance_core::account::{AccountId, Carry, Limit, PolicyName, UnixMs};
use governance_core::ledger::{
    AccountRow, AttemptRow, Basis, Effect, Entry, LegRow, PolicyNo, PolicyRow, Reason, Status,
    WindowRow,
};
use rusqlite::{Connection, Statement, params};

/// Writes a batch. Of a window and of an attempt only the last state is written.
pub(crate) fn write(connection: &Connection, effects: &[Effect]) -> rusqlite::Result<()> {
    let mut windows: BTreeMap<(PolicyNo, UnixMs), &WindowRow> = BTreeMap::new();
    let mut attempts: BTreeMap<AttemptId, &Arc<AttemptRow>> = BTreeMap::new();
    let mut ranks: BTreeMap<AttemptId, i64> = BTreeMap::new();
    // Most rows are of these two kinds: looking their statements up for each would cost as much as binding one.
    let mut legs = connection.prepare_cached(INSERT_LEG)?;
    let mut entries = connection.prepare_cached(INSERT_ENTRY)?;
    for effect in effects {
        match effect {
            Effect::Account(row) => write_account(connection, row)?,
            Effect::Policy(row) => write_policy(connection, row)?,
            Effect::Window(row) => drop(windows.insert((row.policy, row.start), row)),
            Effect::Attempt(row) => drop(attempts.insert(row.id, row)),
            Effect::Leg(row) => {
                let rank = ranks.entry(row.attempt).or_default();
                write_leg(&mut legs, row, *rank)?;
                *rank += 1;
            }
            Effect::Entry(row) => write_entry(&mut entries, row)?,
            Effect::Alarm(_) => {}
        }
    }
    attempts
        .values()
        .try_for_each(|row| write_attempt(connection, row))?;
    windows
        .values()
        .try_for_each(|row| write_window(connection, row))
}

/// A write that changes nothing that matters, to see whether writing works.
pub(crate) fn write_probe(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO meta (key, value) VALUES ('recoveries', '1')
         ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
        [],
    )?;
    Ok(())
}

/// Amounts and instants stay below 2⁶³; see `governance_core::ledger`.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn write_account(connection: &Connection, row: &AccountRow) -> rusqlite::Result<()> {
    let status = match row.status {
        Status::Active => "active",
        Status::Ended => "ended",
    };
    let parent = row.id.parent();
    connection
        .prepare_cached(
            "INSERT INTO account (id, name, tenant_id, parent, kind, status, version) VALUES (?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET status = excluded.status, version = excluded.version",
        )?
        .execute(params![
            row.no.0,
            row.id.as_str(),
            row.id.tenant().as_str(),
            parent.as_ref().map(AccountId::as_str),
            row.kind.as_str(),
            status,
            int(row.version),
        ])?;
    Ok(())
}

fn write_policy(connection: &Connection, row: &PolicyRow) -> rusqlite::Result<()> {
    let spec = &row.spec;
    let limit = match spec.limit {
        Limit::Metered => None,
        Limit::Of(limit) => Some(int(limit)),
    };
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO policy (id, account_id, name, tier, unit, mode, tz, anchor_at, period, limit_amount,
                boost_extra, boost_until, debt_max, overage_carry, overflow, from_ts, to_ts)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            row.no.0,
            row.account.0,
            spec.name.as_str(),
            spec.tier.as_str(),
            spec.unit.as_str(),
            spec.window.mode(),
            spec.window.zone(),
            spec.window.anchor().map(|at| int(at.0)),
            spec.window.period(),
            limit,
            spec.boost.map(|boost| int(boost.extra)),
            spec.boost.map(|boost| int(boost.until.0)),
            spec.debt_max.map(int),
            i64::from(spec.carry == Carry::Debt),
            spec.overflow.as_ref().map(PolicyName::as_str),
            int(row.from.0),
            row.to.map(|to| int(to.0)),
        ])?;
    Ok(())
}

fn write_window(connection: &Connection, row: &WindowRow) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO win (policy_id, start_at, account_id, end_at, granted, held, used, debt, version)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (policy_id, start_at) DO UPDATE SET granted = excluded.granted, held = excluded.held,
                used = excluded.used, debt = excluded.debt, version = excluded.version",
        )?
        .execute(params![
            row.policy.0,
            int(row.start.0),
            row.account.0,
            int(row.end.0),
            int(row.granted),
            int(row.held),
            int(row.used),
            int(row.debt),
            int(row.version),
        ])?;
    Ok(())
}

fn write_attempt(connection: &Connection, row: &AttemptRow) -> rusqlite::Result<()> {
    let basis = row.usage.map(|(_, basis)| match basis {
        Basis::Measured => "measured",
        Basis::Estimated => "estimated",
    });
    connection
        .prepare_cached(
            "INSERT INTO attempt (id, request_id, tenant_id, account, model, rate_group, band, price_ver, ratio_ver,
                rounding_ver, state, estimate_uwtu, estimate_tokens, largest_uwtu, largest_tokens, charged_uwtu,
                charged_tokens, uncached, cached, decode, basis, reason, owner, created_at, due_at, ended_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET state = excluded.state, charged_uwtu = excluded.charged_uwtu,
                charged_tokens = excluded.charged_tokens, uncached = excluded.uncached, cached = excluded.cached,
                decode = excluded.decode, basis = excluded.basis, reason = excluded.reason, due_at = excluded.due_at,
                ended_at = excluded.ended_at",
        )?
        .execute(params![
            row.id.as_uuid().as_bytes(),
            row.request.as_uuid().as_bytes(),
            row.tenant.as_str(),
            row.account.as_str(),
            &*row.stamp.model,
            &*row.stamp.group.0,
            row.stamp.band.0,
            row.stamp.price.0,
            row.stamp.ratios.0,
            row.stamp.rounding,
            row.state.as_str(),
            int(row.estimate.wtu.0),
            int(row.estimate.tokens),
            int(row.largest.wtu.0),
            int(row.largest.tokens),
            int(row.charged.wtu.0),
            int(row.charged.tokens),
            row.usage.map(|(tokens, _)| int(tokens.uncached)),
            row.usage.map(|(tokens, _)| int(tokens.cached)),
            row.usage.map(|(tokens, _)| int(tokens.decode)),
            basis,
            row.reason.map(Reason::as_str),
            &*row.owner,
            int(row.created.0),
            int(row.due.0),
            row.ended.map(|at| int(at.0)),
        ])?;
    Ok(())
}

const INSERT_LEG: &str =
    "INSERT INTO leg (attempt_id, rank, account_id, policy_id, head_id, win_start, held)
     VALUES (?, ?, ?, ?, ?, ?, ?)";

fn write_leg(statement: &mut Statement<'_>, row: &LegRow, rank: i64) -> rusqlite::Result<()> {
    statement.execute(params![
        row.attempt.as_uuid().as_bytes(),
        rank,
        row.account.0,
        row.policy.0,
        row.head.0,
        int(row.window.0),
        int(row.held),
    ])?;
    Ok(())
}

const INSERT_ENTRY: &str =
    "INSERT INTO entry (seq, attempt_id, kind, account_id, policy_id, win_start, win_end,
        d_granted, d_held, d_used, d_debt, at, prev_hash, hash)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

fn write_entry(statement: &mut Statement<'_>, row: &Entry) -> rusqlite::Result<()> {
    statement.execute(params![
        int(row.seq),
        row.attempt.as_ref().map(|id| id.as_uuid().as_bytes()),
        row.kind.as_str(),
        row.account.0,
        row.policy.0,
        int(row.window.0),
        int(row.window_end.0),
        row.d_granted,
        row.d_held,
        row.d_used,
        row.d_debt,
        int(row.at.0),
        row.prev_hash.0,
        row.hash.0,
    ])?;
    Ok(())
}
