//! The body of a request: what stays, what goes, what is wrong with it, and what the engine is to read.
//!
//! The text is never written anew: everything is a change to spans of what the caller sent, made in one pass.

mod engine;
mod fields;
mod walk;

use std::fmt::Write as _;

use inference_wire::json::{Document, Edits, JsonError, Kind, Value};
use inference_wire::prompt::Size;
use inference_wire::route::Route;

use crate::catalogue::{Answer, Code};

pub use engine::{CacheKey, Engine, EngineFields};

/// More output tokens than this per choice are refused as absurd.
pub const MAX_OUTPUT_TOKENS: u64 = 10_000_000;
/// More choices than this are refused as absurd.
pub const MAX_CHOICES: u64 = 128;
/// More independent prompts than this in one request are refused.
pub const MAX_PROMPTS: u64 = 2048;
/// The longest model name looked at.
pub const MAX_MODEL_BYTES: usize = 256;

/// What happens to a field that is not on the route's list. Reserved fields go in any case.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownFields {
    /// Removed.
    #[default]
    Drop,
    /// Refused with 400, naming the field.
    Reject,
    /// Passed on.
    Pass,
}

/// A body that may be priced and, after [`CheckedBody::engine_body`], be sent.
#[derive(Debug, Clone)]
pub struct CheckedBody {
    /// The model the caller asked for.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The most output tokens per choice the caller asked for, in whichever field; `None` if it set no limit.
    pub max_tokens: Option<u64>,
    /// How many outputs are generated: `n` or `best_of`, times the number of independent prompts.
    pub choices: u64,
    /// Whether the caller asked for the usage at the end of the stream.
    pub include_usage: bool,
    /// Whether the caller asked for the usage in every event of the stream.
    pub continuous_usage: bool,
    /// How long the prompt is.
    pub prompt: Size,
    /// What was removed, for the decision record: paths, bounded in number and length.
    pub removed: Vec<String>,
    edits: Edits,
}

/// Why a body is not acceptable. Names fields, never shows values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyRefusal {
    /// Not JSON, or JSON that two readers may understand differently.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// JSON, but not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// A field has the wrong type or a value out of range.
    #[error("`{param}` must be {expected}")]
    Invalid {
        /// The field, with its path.
        param: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A field that asks for something this gateway does not do.
    #[error("`{param}` is not supported here: {why}")]
    Unsupported {
        /// The field.
        param: &'static str,
        /// The reason and the way around.
        why: &'static str,
    },
    /// The route refuses fields it does not know.
    #[error("`{param}` is not a known field")]
    Unknown {
        /// The field, shortened.
        param: String,
    },
}

impl BodyRefusal {
    /// The error as the caller gets it.
    pub fn answer(&self) -> Answer {
        let (code, param) = match self {
            Self::Json(JsonError::DuplicateKey { .. }) => (Code::DuplicateKey, None),
            Self::Json(_) | Self::NotAnObject => (Code::InvalidJson, None),
            Self::Invalid { param, .. } | Self::Unsupported { param, .. } => {
                (Code::InvalidValue, Some((*param).to_owned()))
            }
            Self::Unknown { param } => (Code::UnknownField, Some(param.clone())),
        };
        let mut what = self.to_string();
        if let Self::Json(JsonError::DuplicateKey { offset, key }) = self {
            what = format!(
                "The key `{}` at byte {offset} stands twice in one object",
                shortened(key)
            );
        }
        if let Some(first) = what.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        let answer = Answer::new(code).what(what);
        match param {
            Some(param) => answer.param(param),
            None => answer,
        }
    }
}

/// The model a body asks for: looked at before anything else, so that an unknown model is refused first.
pub fn model(document: &Document<'_>) -> Result<String, BodyRefusal> {
    let expected = "the name of a model";
    let root = document.root();
    if !root.is_object() {
        return Err(BodyRefusal::NotAnObject);
    }
    let model = root.get("model").and_then(Value::as_str);
    match model {
        Some(model) if !model.is_empty() && model.len() <= MAX_MODEL_BYTES => {
            Ok(model.into_owned())
        }
        Some(_) | None => Err(BodyRefusal::Invalid {
            param: "model",
            expected,
        }),
    }
}

/// Checks a body and notes what must go.
pub fn check(
    route: &Route,
    document: &Document<'_>,
    unknown: UnknownFields,
) -> Result<CheckedBody, BodyRefusal> {
    let model = model(document)?;
    let root = document.root();
    refuse_unsupported(route, root)?;
    let stream = optional(root, "stream", "true or false", Value::as_bool)?.unwrap_or(false);
    let (include_usage, continuous_usage) = usage_asked(root)?;
    let max_tokens = max_tokens(route, root)?;
    let choices = choices(root)?.saturating_mul(prompts(route, root)?);

    let mut walk = walk::Walk::default();
    walk.body(route, root, unknown)?;
    let (edits, removed) = walk.finish();
    let prompt = Size::of(route, root);
    Ok(CheckedBody {
        model,
        stream,
        max_tokens,
        choices,
        include_usage,
        continuous_usage,
        prompt,
        removed,
        edits,
    })
}

impl CheckedBody {
    /// The body for the engine. `document` is the one this was checked from.
    pub fn engine_body(
        &self,
        route: &Route,
        document: &Document<'_>,
        fields: &EngineFields<'_>,
    ) -> Vec<u8> {
        let mut edits = self.edits.clone();
        engine::write(route, self, document.root(), fields, &mut edits);
        edits.apply(document.text().as_bytes())
    }
}

/// A member that may be absent or null.
fn optional<'a, T>(
    object: Value<'a>,
    param: &'static str,
    expected: &'static str,
    read: impl FnOnce(Value<'a>) -> Option<T>,
) -> Result<Option<T>, BodyRefusal> {
    // The path of a nested field ends in its own key.
    let key = param.rsplit('.').next().unwrap_or(param);
    match object.get(key).filter(|value| !value.is_null()) {
        Some(value) => read(value)
            .map(Some)
            .ok_or(BodyRefusal::Invalid { param, expected }),
        None => Ok(None),
    }
}

fn usage_asked(root: Value<'_>) -> Result<(bool, bool), BodyRefusal> {
    let options = optional(root, "stream_options", "an object", |value| {
        value.is_object().then_some(value)
    })?;
    let Some(options) = options else {
        return Ok((false, false));
    };
    let expected = "true or false";
    let include = optional(
        options,
        "stream_options.include_usage",
        expected,
        Value::as_bool,
    )?;
    let continuous = optional(
        options,
        "stream_options.continuous_usage_stats",
        expected,
        Value::as_bool,
    )?;
    let include = include.unwrap_or(false);
    // Engines send running usage only together with the final one.
    Ok((include, include && continuous.unwrap_or(false)))
}

/// The largest of the fields that limit the output: engines disagree about which of two counts.
fn max_tokens(route: &Route, root: Value<'_>) -> Result<Option<u64>, BodyRefusal> {
    let expected = "an integer between 1 and 10000000";
    let in_range = |value: Value<'_>| {
        value
            .as_u64()
            .filter(|count| (1..=MAX_OUTPUT_TOKENS).contains(count))
    };
    let mut most = None;
    for param in fields::output_limits(route) {
        most = most.max(optional(root, param, expected, in_range)?);
    }
    Ok(most)
}

fn choices(root: Value<'_>) -> Result<u64, BodyRefusal> {
    let expected = "an integer between 1 and 128";
    let in_range = |value: Value<'_>| {
        value
            .as_u64()
            .filter(|count| (1..=MAX_CHOICES).contains(count))
    };
    let n = optional(root, "n", expected, in_range)?;
    let best_of = optional(root, "best_of", expected, in_range)?;
    Ok(n.max(best_of).unwrap_or(1))
}

/// How many independent prompts a completion has: each is answered on its own.
fn prompts(route: &Route, root: Value<'_>) -> Result<u64, BodyRefusal> {
    if *route != Route::Completions {
        return Ok(1);
    }
    let Some(prompt) = root.get("prompt") else {
        return Ok(1);
    };
    let is_list = prompt
        .elements()
        .next()
        .is_some_and(|first| first.kind() != Kind::Number);
    let count = if is_list {
        prompt.elements().count() as u64
    } else {
        1
    };
    if count > MAX_PROMPTS {
        return Err(BodyRefusal::Invalid {
            param: "prompt",
            expected: "at most 2048 prompts",
        });
    }
    Ok(count)
}

fn refuse_unsupported(route: &Route, root: Value<'_>) -> Result<(), BodyRefusal> {
    if *route != Route::Responses {
        return Ok(());
    }
    let background = optional(root, "background", "true or false", Value::as_bool)?;
    if background == Some(true) {
        let why = "an answer must be read while it is generated, so that it can be metered; leave the field out";
        return Err(BodyRefusal::Unsupported {
            param: "background",
            why,
        });
    }
    for param in ["previous_response_id", "conversation"] {
        if root.get(param).is_some_and(|value| !value.is_null()) {
            let why =
                "answers are not kept between requests; send the whole conversation in `input`";
            return Err(BodyRefusal::Unsupported { param, why });
        }
    }
    Ok(())
}

/// A caller's field name, short enough to be shown.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 64;
    let mut short = String::new();
    for character in name.chars() {
        if short.len() >= LONGEST {
            short.push('…');
            break;
        }
        if character.is_control() {
            let _ = write!(short, "{}", character.escape_default());
        } else {
            short.push(character);
        }
    }
    short
}

#[cfg(test)]
mod tests;
