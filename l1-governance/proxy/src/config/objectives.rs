//! The `objectives:` of the section, and what accounts and keys say about theirs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use governance_context::{Band, ObjectiveName};
use governance_core::objective::{Choice, Fields, Objectives};

use super::file::{Number, ObjectiveFile};
use super::parse::{self, Checked, Path};

const MOST_WEIGHT: u32 = 1_000_000;
const DAY_MS: u32 = 86_400_000;
/// A minute per token is slower than anything worth a promise.
const MOST_TPOT_MS: u32 = 60_000;

/// What is written about an objective, a tenant, a project or a key.
#[derive(Clone, Copy, Default)]
pub(super) struct Stated<'a> {
    pub(super) objective: Option<&'a str>,
    pub(super) band: Option<&'a Number>,
    pub(super) weight: Option<&'a Number>,
    pub(super) ttl_ms: Option<&'a Number>,
    pub(super) ttft_ms: Option<&'a Number>,
    pub(super) tpot_ms: Option<&'a Number>,
}

pub(super) fn objectives(
    files: &BTreeMap<String, ObjectiveFile>,
    default: Option<&str>,
    queue: Duration,
    root: &Path,
) -> Checked<Objectives> {
    let section = root.field("objectives");
    let mut named = BTreeMap::new();
    for (name, file) in files {
        let path = section.field(name);
        let objective = objective_name(&parse::name(name, &path)?);
        named.insert(objective, fields(&file.stated(), &path)?);
    }
    let mut objectives = Objectives {
        named,
        default: None,
        ttl_ms: u64::try_from(queue.as_millis()).unwrap_or(u64::MAX),
    };
    objectives.default = default
        .map(|name| known(name, &objectives, &root.field("default_objective")))
        .transpose()?;
    Ok(objectives)
}

/// What a tenant, a project or a key says.
pub(super) fn choice(stated: &Stated<'_>, all: &Objectives, path: &Path) -> Checked<Choice> {
    let objective = stated
        .objective
        .map(|name| known(name, all, &path.field("objective")))
        .transpose()?;
    Ok(Choice {
        objective,
        fields: fields(stated, path)?,
    })
}

fn fields(stated: &Stated<'_>, path: &Path) -> Checked<Fields> {
    let bands = i32::MIN..=i32::MAX;
    let ttl = 1..=u64::from(DAY_MS);
    Ok(Fields {
        band: whole(stated.band, bands, "a whole number", &path.field("band"))?.map(Band),
        weight: whole(
            stated.weight,
            1..=MOST_WEIGHT,
            "a whole number",
            &path.field("weight"),
        )?,
        ttl_ms: whole(stated.ttl_ms, ttl, "milliseconds", &path.field("ttl_ms"))?,
        ttft_ms: whole(
            stated.ttft_ms,
            1..=DAY_MS,
            "milliseconds",
            &path.field("ttft_ms"),
        )?,
        tpot_ms: whole(
            stated.tpot_ms,
            1..=MOST_TPOT_MS,
            "milliseconds",
            &path.field("tpot_ms"),
        )?,
    })
}

fn whole<T: FromStr + PartialOrd + Display>(
    number: Option<&Number>,
    range: RangeInclusive<T>,
    what: &str,
    path: &Path,
) -> Checked<Option<T>> {
    let Some(number) = number else {
        return Ok(None);
    };
    let value = number.to_string().parse().ok();
    match value.filter(|value| range.contains(value)) {
        Some(value) => Ok(Some(value)),
        None => Err(path.refuse(
            number,
            format!("{what} from {} to {}", range.start(), range.end()),
        )),
    }
}

/// A name must be that of an objective, so that a typing error does not silently mean the default.
fn known(name: &str, all: &Objectives, path: &Path) -> Checked<ObjectiveName> {
    if let Some((name, _)) = all.named.get_key_value(name) {
        return Ok(name.clone());
    }
    let allowed = if all.named.is_empty() {
        "none: governance.objectives defines none".to_owned()
    } else {
        format!("one of {}", all.list())
    };
    Err(path.refuse(name, allowed))
}

fn objective_name(name: &str) -> ObjectiveName {
    ObjectiveName::new(name).expect("a checked name is visible ASCII")
}
