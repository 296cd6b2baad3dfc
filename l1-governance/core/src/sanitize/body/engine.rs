//! What L1 writes into a body for the engine that will read it.

use std::fmt;

use governance_context::{Band, CacheDomain};
use inference_wire::json::{Edits, Value, quote};
use inference_wire::route::Route;

use super::{CheckedBody, fields};

/// Whose dialect of the API an endpoint speaks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Lower priorities run first; `cache_salt` separates prefix caches.
    #[default]
    Vllm,
    /// Higher priorities run first; `extra_key` separates prefix caches.
    Sglang,
    /// Only what the `OpenAI` API itself has.
    OpenAi,
}

/// What is to be written.
#[derive(Debug, Clone)]
pub struct EngineFields<'a> {
    /// Who reads it.
    pub engine: Engine,
    /// The name the engine serves the model under.
    pub model: &'a str,
    /// The most output tokens per choice that are reserved; the engine is held to it.
    pub output_bound: Option<u64>,
    /// The band, if the engine runs priority scheduling.
    pub priority: Option<Band>,
    /// The salt of the cache domain, if prefix caches are to be separated.
    pub cache_salt: Option<&'a str>,
}

/// The key that turns cache domains into salts: who does not know it cannot join another's cache by sending its salt.
#[derive(Clone)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// A key from a secret of any length; the same secret gives the same salts on every replica.
    pub fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("headpond 2026 cache salt", secret))
    }

    /// The salt of a domain: 32 hexadecimal digits.
    pub fn salt(&self, domain: &CacheDomain) -> String {
        let hash = blake3::keyed_hash(&self.0, domain.as_str().as_bytes());
        hash.to_hex()[..32].to_owned()
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheKey(..)")
    }
}

/// Adds the changes for one engine. Keys that are reserved are inserted, not set: a caller's copy is being removed.
pub(super) fn write(
    route: &Route,
    body: &CheckedBody,
    root: Value<'_>,
    fields: &EngineFields<'_>,
    edits: &mut Edits,
) {
    if body.model != fields.model {
        edits.set(root, "model", quote(fields.model));
    }
    if !route.generates() {
        return;
    }
    if let Some(bound) = fields.output_bound {
        bound_output(route, root, bound, edits);
    }
    if body.stream && matches!(route, Route::ChatCompletions | Route::Completions) {
        ask_for_usage(root, fields.engine, edits);
    }
    let (salt, priority) = match fields.engine {
        Engine::Vllm => ("cache_salt", fields.priority.map(|band| -i64::from(band.0))),
        Engine::Sglang => ("extra_key", fields.priority.map(|band| i64::from(band.0))),
        Engine::OpenAi => return,
    };
    if let Some(value) = fields.cache_salt {
        edits.insert(root, salt, quote(value));
    }
    if let Some(priority) = priority {
        edits.insert(root, "priority", priority.to_string());
    }
}

/// Every field that limits the output is held to the bound; without one, the route's own is written.
fn bound_output(route: &Route, root: Value<'_>, bound: u64, edits: &mut Edits) {
    let limits = fields::output_limits(route);
    let mut limited = false;
    for key in limits {
        let Some(limit) = root.get(key).and_then(Value::as_u64) else {
            continue;
        };
        limited = true;
        if limit > bound {
            edits.set(root, key, bound.to_string());
        }
    }
    if let (false, Some(key)) = (limited, limits.first()) {
        edits.set(root, key, bound.to_string());
    }
}

fn ask_for_usage(root: Value<'_>, engine: Engine, edits: &mut Edits) {
    let wanted: &[&str] = match engine {
        Engine::Vllm | Engine::Sglang => &["include_usage", "continuous_usage_stats"],
        Engine::OpenAi => &["include_usage"],
    };
    let options = root
        .get("stream_options")
        .filter(|options| options.is_object());
    if let Some(options) = options {
        let is_missing = |key: &&&str| options.get(key).and_then(Value::as_bool) != Some(true);
        wanted
            .iter()
            .filter(is_missing)
            .for_each(|key| edits.set(options, key, "true"));
    } else {
        let members: Vec<String> = wanted.iter().map(|key| format!("\"{key}\":true")).collect();
        edits.set(root, "stream_options", format!("{{{}}}", members.join(",")));
    }
}
