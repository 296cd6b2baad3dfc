//! Rows into checked values. A row that cannot be one of ours is an error, never a default.

use governance_context::{AttemptId, Band, MicroWtu, RequestId, TenantId};
use governance_core::account::{
    AccountId, Boost, Carry, Kind, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window,
};
use governance_core::ledger::{
    AccountNo, AccountRow, Amounts, AttemptRow, Basis, Entry, EntryKind, Hash, LegRow, PolicyNo,
    PolicyRow, Reason, Snapshot, State, Status, WindowRow,
};
use governance_core::price::{GroupName, PriceVersion, Stamp, Tokens};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row};

type Result<T> = rusqlite::Result<T>;

/// What a ledger needs to go on.
pub(crate) fn load(connection: &Connection, remember: usize) -> Result<Snapshot> {
    let mut attempts = collect(
        connection,
        &format!("{ATTEMPT} WHERE state IN ('sent', 'unknown') ORDER BY due_at"),
        attempt_row,
    )?;
    let (ended, horizon) = newest_ended(connection, remember)?;
    attempts.extend(ended);
    let (head, at) = head(connection)?;
    Ok(Snapshot {
        accounts: collect(
            connection,
            "SELECT id, name, kind, status, version FROM account ORDER BY id",
            account_row,
        )?,
        policies: policies(connection)?,
        windows: collect(connection, &format!("{WINDOW} {LIVE_WINDOWS}"), window_row)?,
        attempts,
        horizon,
        legs: collect(connection, OPEN_LEGS, leg_row)?,
        head,
        at,
    })
}

/// The newest ended attempts, oldest first, and the id of the newest one left out.
fn newest_ended(
    connection: &Connection,
    remember: usize,
) -> Result<(Vec<AttemptRow>, Option<AttemptId>)> {
    let most = i64::try_from(remember).unwrap_or(i64::MAX - 1) + 1;
    let sql =
        format!("{ATTEMPT} WHERE state NOT IN ('sent', 'unknown') ORDER BY id DESC LIMIT {most}");
    let mut ended = collect(connection, &sql, attempt_row)?;
    let horizon = if ended.len() > remember {
        ended.pop().map(|row| row.id)
    } else {
        None
    };
    ended.reverse();
    Ok((ended, horizon))
}

fn head(connection: &Connection) -> Result<((u64, Hash), UnixMs)> {
    let last = connection
        .query_row(
            "SELECT seq, hash, at FROM entry ORDER BY seq DESC LIMIT 1",
            [],
            |row| Ok(((count(row, 0)?, Hash(row.get(1)?)), at(row, 2)?)),
        )
        .optional()?;
    Ok(last.unwrap_or_default())
}

/// All policies, replaced ones too, by number.
pub(crate) fn policies(connection: &Connection) -> Result<Vec<PolicyRow>> {
    collect(
        connection,
        "SELECT id, account_id, name, tier, unit, mode, tz, anchor_at, period, limit_amount, boost_extra, boost_until,
            debt_max, overage_carry, overflow, from_ts, to_ts FROM policy ORDER BY id",
        policy_row,
    )
}

/// One attempt, however old.
pub(crate) fn attempt(connection: &Connection, id: AttemptId) -> Result<Option<AttemptRow>> {
    let mut statement = connection.prepare_cached(&format!("{ATTEMPT} WHERE id = ?"))?;
    statement
        .query_row([id.as_uuid().as_bytes()], attempt_row)
        .optional()
}

/// Every entry in order.
pub(crate) fn entries(connection: &Connection, mut each: impl FnMut(Entry) -> bool) -> Result<()> {
    let mut statement = connection.prepare(
        "SELECT seq, attempt_id, kind, account_id, policy_id, win_start, win_end, d_granted, d_held, d_used, d_debt, at,
            prev_hash, hash FROM entry ORDER BY seq",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if !each(entry_row(row)?) {
            break;
        }
    }
    Ok(())
}

/// Every attempt: id, state, and when it is due.
pub(crate) fn for_each_attempt(
    connection: &Connection,
    mut each: impl FnMut(AttemptId, State, UnixMs),
) -> Result<()> {
    let mut statement = connection.prepare("SELECT id, state, due_at FROM attempt")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(
            attempt_id(row, 0)?,
            parsed(row, 1, State::parse)?,
            at(row, 2)?,
        );
    }
    Ok(())
}

/// Every leg.
pub(crate) fn for_each_leg(connection: &Connection, mut each: impl FnMut(&LegRow)) -> Result<()> {
    let mut statement = connection.prepare(LEG)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(&leg_row(row)?);
    }
    Ok(())
}

/// Every window.
pub(crate) fn for_each_window(
    connection: &Connection,
    mut each: impl FnMut(&WindowRow),
) -> Result<()> {
    let mut statement = connection.prepare(WINDOW)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(&window_row(row)?);
    }
    Ok(())
}

const ATTEMPT: &str = "SELECT id, request_id, tenant_id, account, model, rate_group, band, price_ver, ratio_ver,
    rounding_ver, state, estimate_uwtu, estimate_tokens, largest_uwtu, largest_tokens, charged_uwtu, charged_tokens,
    uncached, cached, decode, basis, reason, owner, created_at, due_at, ended_at FROM attempt";

const WINDOW: &str =
    "SELECT account_id, policy_id, start_at, end_at, granted, held, used, debt, version FROM win";

/// The latest window of each policy, and those that something is held or owed in or that an open leg came from.
const LIVE_WINDOWS: &str = "WHERE held > 0 OR debt > 0
    OR start_at = (SELECT max(start_at) FROM win AS later WHERE later.policy_id = win.policy_id)
    OR EXISTS (SELECT 1 FROM attempt JOIN leg ON leg.attempt_id = attempt.id
        WHERE attempt.state IN ('sent', 'unknown') AND leg.policy_id = win.policy_id AND leg.win_start = win.start_at)
    ORDER BY policy_id, start_at";

const LEG: &str = "SELECT attempt_id, account_id, policy_id, head_id, win_start, held FROM leg";

const OPEN_LEGS: &str = "SELECT attempt_id, account_id, policy_id, head_id, win_start, held
    FROM attempt JOIN leg ON leg.attempt_id = attempt.id
    WHERE attempt.state IN ('sent', 'unknown') ORDER BY attempt_id, rank";

pub(super) fn collect<T>(
    connection: &Connection,
    sql: &str,
    read: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    connection
        .prepare(sql)?
        .query_map([], |row| read(row))?
        .collect()
}

fn account_row(row: &Row<'_>) -> Result<AccountRow> {
    Ok(AccountRow {
        no: account_no(row, 0)?,
        id: parsed(row, 1, |text| AccountId::parse(text).ok())?,
        kind: parsed(row, 2, Kind::parse)?,
        status: parsed(row, 3, |text| match text {
            "active" => Some(Status::Active),
            "ended" => Some(Status::Ended),
            _ => None,
        })?,
        version: count(row, 4)?,
    })
}

fn policy_row(row: &Row<'_>) -> Result<PolicyRow> {
    let (mode, zone, period): (String, String, String) = (row.get(5)?, row.get(6)?, row.get(8)?);
    let window = Window::parse(&mode, &period, &zone, optional(row, 7)?.map(UnixMs));
    let boost = optional(row, 10)?.zip(optional(row, 11)?);
    Ok(PolicyRow {
        no: policy_no(row, 0)?,
        account: account_no(row, 1)?,
        spec: PolicySpec {
            name: parsed(row, 2, |text| PolicyName::parse(text).ok())?,
            tier: parsed(row, 3, Tier::parse)?,
            unit: parsed(row, 4, Unit::parse)?,
            window: window.map_err(|error| foreign(5, error))?,
            limit: optional(row, 9)?.map_or(Limit::Metered, Limit::Of),
            boost: boost.map(|(extra, until)| Boost {
                extra,
                until: UnixMs(until),
            }),
            debt_max: optional(row, 12)?,
            carry: if row.get(13)? {
                Carry::Debt
            } else {
                Carry::Forget
            },
            overflow: optional_parsed(row, 14, |text| PolicyName::parse(text).ok())?,
        },
        from: at(row, 15)?,
        to: optional(row, 16)?.map(UnixMs),
    })
}

fn window_row(row: &Row<'_>) -> Result<WindowRow> {
    Ok(WindowRow {
        account: account_no(row, 0)?,
        policy: policy_no(row, 1)?,
        start: at(row, 2)?,
        end: at(row, 3)?,
        granted: count(row, 4)?,
        held: count(row, 5)?,
        used: count(row, 6)?,
        debt: count(row, 7)?,
        version: count(row, 8)?,
    })
}

fn leg_row(row: &Row<'_>) -> Result<LegRow> {
    Ok(LegRow {
        attempt: attempt_id(row, 0)?,
        account: account_no(row, 1)?,
        policy: policy_no(row, 2)?,
        head: policy_no(row, 3)?,
        window: at(row, 4)?,
        held: count(row, 5)?,
    })
}

fn attempt_row(row: &Row<'_>) -> Result<AttemptRow> {
    let amounts = |wtu, tokens| {
        Ok::<_, rusqlite::Error>(Amounts {
            wtu: MicroWtu(count(row, wtu)?),
            tokens: count(row, tokens)?,
        })
    };
    Ok(AttemptRow {
        id: attempt_id(row, 0)?,
        request: request_id(row, 1)?,
        tenant: tenant(row, 2)?,
        account: parsed(row, 3, |text| AccountId::parse(text).ok())?,
        stamp: Stamp {
            model: row.get::<_, String>(4)?.into(),
            group: GroupName(row.get::<_, String>(5)?.into()),
            band: Band(row.get(6)?),
            price: PriceVersion(row.get(7)?),
            ratios: PriceVersion(row.get(8)?),
            rounding: row.get(9)?,
        },
        state: parsed(row, 10, State::parse)?,
        estimate: amounts(11, 12)?,
        largest: amounts(13, 14)?,
        charged: amounts(15, 16)?,
        usage: usage(row)?,
        reason: optional_parsed(row, 21, Reason::parse)?,
        owner: row.get::<_, String>(22)?.into(),
        created: at(row, 23)?,
        due: at(row, 24)?,
        ended: optional(row, 25)?.map(UnixMs),
    })
}

fn usage(row: &Row<'_>) -> Result<Option<(Tokens, Basis)>> {
    let basis = optional_parsed(row, 20, |text| match text {
        "measured" => Some(Basis::Measured),
        "estimated" => Some(Basis::Estimated),
        _ => None,
    })?;
    let Some(basis) = basis else { return Ok(None) };
    let tokens = Tokens {
        uncached: count(row, 17)?,
        cached: count(row, 18)?,
        decode: count(row, 19)?,
    };
    Ok(Some((tokens, basis)))
}

fn entry_row(row: &Row<'_>) -> Result<Entry> {
    let attempt: Option<[u8; 16]> = row.get(1)?;
    Ok(Entry {
        seq: count(row, 0)?,
        attempt: attempt.map(attempt_from),
        kind: parsed(row, 2, EntryKind::parse)?,
        account: account_no(row, 3)?,
        policy: policy_no(row, 4)?,
        window: at(row, 5)?,
        window_end: at(row, 6)?,
        d_granted: row.get(7)?,
        d_held: row.get(8)?,
        d_used: row.get(9)?,
        d_debt: row.get(10)?,
        at: at(row, 11)?,
        prev_hash: Hash(row.get(12)?),
        hash: Hash(row.get(13)?),
    })
}

fn attempt_id(row: &Row<'_>, index: usize) -> Result<AttemptId> {
    row.get(index).map(attempt_from)
}

fn attempt_from(bytes: [u8; 16]) -> AttemptId {
    let (ms, random) = uuid_parts(bytes);
    AttemptId::new(ms, random)
}

fn request_id(row: &Row<'_>, index: usize) -> Result<RequestId> {
    let (ms, random) = uuid_parts(row.get(index)?);
    Ok(RequestId::new(ms, random))
}

/// The parts a `UUIDv7` was made from; making it again gives the same one.
fn uuid_parts(bytes: [u8; 16]) -> (u64, [u8; 10]) {
    let (mut ms, mut random) = ([0; 8], [0; 10]);
    ms[2..].copy_from_slice(&bytes[..6]);
    random.copy_from_slice(&bytes[6..]);
    (u64::from_be_bytes(ms), random)
}

pub(super) fn tenant(row: &Row<'_>, index: usize) -> Result<TenantId> {
    parsed(row, index, |text| TenantId::new(text).ok())
}

fn account_no(row: &Row<'_>, index: usize) -> Result<AccountNo> {
    number(row, index).map(AccountNo)
}

fn policy_no(row: &Row<'_>, index: usize) -> Result<PolicyNo> {
    number(row, index).map(PolicyNo)
}

/// Numbers count from 1.
fn number(row: &Row<'_>, index: usize) -> Result<u32> {
    match row.get(index)? {
        0 => Err(rusqlite::Error::IntegralValueOutOfRange(index, 0)),
        number => Ok(number),
    }
}

pub(super) fn at(row: &Row<'_>, index: usize) -> Result<UnixMs> {
    count(row, index).map(UnixMs)
}

pub(super) fn count(row: &Row<'_>, index: usize) -> Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
}

pub(super) fn optional(row: &Row<'_>, index: usize) -> Result<Option<u64>> {
    let value: Option<i64> = row.get(index)?;
    value
        .map(|value| {
            u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
        })
        .transpose()
}

pub(super) fn parsed<T>(
    row: &Row<'_>,
    index: usize,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T> {
    let text = row
        .get_ref(index)?
        .as_str()
        .map_err(|error| foreign(index, error))?;
    parse(text).ok_or_else(|| foreign(index, NotOurs(text.to_owned())))
}

pub(super) fn optional_parsed<T>(
    row: &Row<'_>,
    index: usize,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    if row.get_ref(index)? == rusqlite::types::ValueRef::Null {
        return Ok(None);
    }
    parsed(row, index, parse).map(Some)
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a value this column can have")]
struct NotOurs(String);

pub(super) fn foreign(
    index: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
}
