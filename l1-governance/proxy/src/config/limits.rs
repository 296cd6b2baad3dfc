//! The `limits:` of an account.

use std::time::Duration;

use governance_core::account::{
    AmountError, Limit as LedgerLimit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window,
    WindowError, parse_tokens, parse_wtu,
};
use governance_core::limits::Rate;

use super::file::{LimitFile, Number};
use super::parse::{self, Checked, Path, Word};
use super::{ConfigError, Limit};

const PER: &str = "the time in which so many may come, for example 1m";
const RATE: &str = "a time in which the rate is one request per year to one per nanosecond";
const WTU: &str = "a decimal number of at least 0 with at most 6 digits after the point";
const TOKENS: &str = "a whole number of at least 0";

pub(super) fn limits(files: &[LimitFile], path: &Path) -> Checked<Vec<Limit>> {
    let mut limits = Vec::with_capacity(files.len());
    let mut policies: Vec<PolicySpec> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let path = path.index("limits", index);
        let limit = limit(file, &path)?;
        if let Limit::Ledger(policy) = &limit {
            policies.push(policy.clone());
            policy.check(&policies).map_err(|error| {
                path.refuse(
                    policy.name.as_str(),
                    format!("a limit of its own ({error})"),
                )
            })?;
        }
        limits.push(limit);
    }
    Ok(limits)
}

fn limit(file: &LimitFile, path: &Path) -> Checked<Limit> {
    let positive = |value: u64, field: &str| match value {
        0 => Err(path.field(field).refuse(0, "at least 1")),
        value => Ok(value),
    };
    match (file.requests, file.concurrency, &file.wtu, &file.tokens) {
        (Some(requests), None, None, None) => {
            tier_among(file, &["A"], path)?;
            let count = positive(requests, "requests")?;
            let burst = positive(file.burst.unwrap_or(count), "burst")?;
            let Some(text) = file.per.as_deref() else {
                return Err(path.field("per").refuse(Word("nothing"), PER));
            };
            let per = parse::duration(text, &path.field("per"))?;
            let rate = Rate::new(small(count), nanoseconds(per), small(burst)).map_err(|_| {
                path.field("per").refuse(text, RATE)
            })?;
            Ok(Limit::Rate(rate))
        }
        (None, Some(concurrency), None, None) if file.per.is_none() && file.burst.is_none() => {
            tier_among(file, &["A"], path)?;
            Ok(Limit::Concurrency(small(positive(concurrency, "concurrency")?)))
        }
        (None, None, Some(amount), None) if file.burst.is_none() => {
            let amount = parse_wtu(&amount.to_string())
                .map_err(|error| refuse_amount(amount, &error, WTU, &path.field("wtu")))?;
            ledger_limit(file, Unit::MicroWtu, amount.0, path)
        }
        (None, None, None, Some(amount)) if file.burst.is_none() => {
            let amount = parse_tokens(&amount.to_string())
                .map_err(|error| refuse_amount(amount, &error, TOKENS, &path.field("tokens")))?;
            ledger_limit(file, Unit::Tokens, amount, path)
        }
        _ => Err(path.refuse(
            Word("this combination"),
            "exactly one of {requests, per, burst?}, {concurrency}, {wtu, per, tier: B|D}, {tokens, per, tier: B|D}",
        )),
    }
}

fn refuse_amount(amount: &Number, error: &AmountError, form: &str, path: &Path) -> ConfigError {
    let allowed = match error {
        AmountError::TooLarge(_) => "a smaller number, or no limit",
        AmountError::Empty
        | AmountError::Negative(_)
        | AmountError::NotANumber(_)
        | AmountError::TooFine { .. } => form,
    };
    path.refuse(amount, allowed)
}

/// The field that makes the window impossible, and what it may say.
fn refuse_window(file: &LimitFile, error: &WindowError, path: &Path) -> ConfigError {
    let per = file.per.as_deref().unwrap_or_default();
    match error {
        WindowError::Mode(mode) => path
            .field("window")
            .refuse(mode, "rolling, calendar, anchor or balance"),
        WindowError::Period(_) => path
            .field("per")
            .refuse(per, "a whole number and one unit of s, m, h, d, w, mo"),
        WindowError::Inexact { instead, .. } => path.field("per").refuse(per, *instead),
        WindowError::Zone(zone) => path
            .field("zone")
            .refuse(zone, "UTC or a fixed offset such as +02:00"),
        WindowError::NoAnchor(_) => path.field("anchor").refuse(
            Word("nothing"),
            "the instant to count from, in seconds since 1970",
        ),
    }
}

/// More than four billion of anything is as good as four billion.
fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn tier_among<'a>(file: &'a LimitFile, allowed: &[&'a str], path: &Path) -> Checked<&'a str> {
    match file.tier.as_deref() {
        None => Ok(allowed[0]),
        Some(tier) if allowed.contains(&tier) => Ok(tier),
        Some(tier) => Err(path
            .field("tier")
            .refuse(tier, format!("one of {}", allowed.join(", ")))),
    }
}

fn ledger_limit(file: &LimitFile, unit: Unit, amount: u64, path: &Path) -> Checked<Limit> {
    let tier = match tier_among(file, &["B", "D"], path)? {
        "D" => Tier::D,
        _ => Tier::B,
    };
    let mode = file.window.as_deref().unwrap_or("rolling");
    let per = file.per.as_deref().unwrap_or_default();
    let anchor = match (file.anchor, mode) {
        (None, "rolling") => Some(UnixMs(0)),
        (anchor, _) => anchor.map(|seconds| UnixMs(seconds.saturating_mul(1000))),
    };
    let window = Window::parse(mode, per, file.zone.as_deref().unwrap_or_default(), anchor)
        .map_err(|error| refuse_window(file, &error, path))?;
    let name = file.name.clone().unwrap_or_else(|| {
        let what = if unit == Unit::Tokens {
            "tokens"
        } else {
            "wtu"
        };
        format!("{what}-{}", if per.is_empty() { mode } else { per })
    });
    let name = PolicyName::parse(&name).map_err(|_| {
        path.field("name")
            .refuse(&name, "1 to 64 letters, digits, '.', '_' or '-'")
    })?;
    Ok(Limit::Ledger(PolicySpec::new(
        name,
        tier,
        unit,
        window,
        LedgerLimit::Of(amount),
    )))
}
