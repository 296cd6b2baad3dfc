//! What a body of the admin API asks for, field by field.

use std::collections::BTreeSet;

use bytes::Bytes;
use governance_context::{MicroWtu, ObjectiveName};
use governance_core::account::{UnixMs, parse_wtu};
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::keys::{Models, Role};
use governance_core::sanitize::BodyRefusal;
use inference_wire::json::Document;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::respond::Refused;
use crate::shared::{Shared, unix_ms};

/// A key to make.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    pub(super) tenant: String,
    pub(super) project: String,
    pub(super) user: Option<String>,
    pub(super) name: String,
    pub(super) models: Option<Vec<String>>,
    pub(super) budget_wtu: Option<Value>,
    pub(super) expires_in: Option<u64>,
    pub(super) role: Option<String>,
    pub(super) objective: Option<String>,
}

/// What is to change; what is left out stays. `null` takes a limit away, where the ceiling allows it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Update {
    pub(super) version: u64,
    #[serde(default, deserialize_with = "given")]
    pub(super) models: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    pub(super) budget_wtu: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    pub(super) expires_in: Option<Value>,
    pub(super) role: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub(super) objective: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rotate {
    #[serde(default)]
    pub(super) overlap_seconds: u64,
}

/// A member that is there, `null` included.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

pub(super) fn models(shared: &Shared, names: Option<Vec<String>>) -> Result<Models, Refused> {
    let Some(names) = names else {
        return Ok(Models::All);
    };
    let mut canonical = BTreeSet::new();
    for name in names {
        let model = shared.config.models.find(&name);
        let model =
            model.ok_or_else(|| invalid("models", "`models` names a model that does not exist"))?;
        canonical.insert(model.name.clone());
    }
    Ok(Models::Only(canonical))
}

/// A number or a text of one; both exactly as they are written.
pub(super) fn budget(value: &Value) -> Result<Option<MicroWtu>, Refused> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            return Err(invalid("budget_wtu", "`budget_wtu` must be a number"));
        }
    };
    match parse_wtu(&text) {
        Ok(amount) => Ok(Some(amount)),
        Err(error) => Err(invalid("budget_wtu", &format!("`budget_wtu`: {error}"))),
    }
}

pub(super) fn expiry(seconds: u64) -> Result<UnixMs, Refused> {
    const MOST_S: u64 = 10 * 366 * 86_400;
    if (1..=MOST_S).contains(&seconds) {
        return Ok(unix_ms().plus(seconds * 1000));
    }
    Err(invalid(
        "expires_in",
        "`expires_in` must be 1 to 316224000 seconds",
    ))
}

pub(super) fn role(word: &str) -> Result<Role, Refused> {
    Role::parse(word).ok_or_else(|| invalid("role", "`role` must be member or lead"))
}

/// An objective of the configuration.
pub(super) fn objective(shared: &Shared, name: &str) -> Result<ObjectiveName, Refused> {
    let all = &shared.config.objectives;
    if let Some((name, _)) = all.named.get_key_value(name) {
        return Ok(name.clone());
    }
    let what = if all.named.is_empty() {
        "`objective` must be left out: governance.objectives defines none".to_owned()
    } else {
        format!("`objective` must be one of {}", all.list())
    };
    Err(invalid("objective", &what))
}

pub(super) fn invalid(param: &'static str, what: &str) -> Refused {
    Fault::new(Code::InvalidValue)
        .what(what)
        .param(param)
        .into()
}

/// Reads a body; a field that is not expected is named.
pub(super) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refused> {
    let document = Document::parse(body).map_err(|error| BodyRefusal::from(error).answer())?;
    // An array would be read as the fields in their order.
    if !document.root().is_object() {
        return Err(BodyRefusal::NotAnObject.answer().into());
    }
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        let unknown = what.starts_with("unknown field");
        let named = unknown || what.starts_with("missing field");
        let field = what.split('`').nth(1).filter(|_| named);
        let field = field.map(str::to_owned);
        let code = if unknown {
            Code::UnknownField
        } else {
            Code::InvalidValue
        };
        let mut what = what.to_owned();
        if let Some(first) = what.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        let fault = Fault::new(code).what(what);
        match field {
            Some(field) => fault.param(field).into(),
            None => fault.into(),
        }
    })
}
