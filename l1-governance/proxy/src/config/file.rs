//! The `governance:` section as people write it. Nothing here is checked beyond its shape.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::objectives::Stated;

/// The `governance:` section of the configuration file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub(super) models: Vec<ModelFile>,
    pub(super) objectives: BTreeMap<String, ObjectiveFile>,
    /// The one in force where nobody names another.
    pub(super) default_objective: Option<String>,
    pub(super) tenants: Vec<TenantFile>,
    /// Without it only keys of role `lead` can use the admin API.
    pub(super) admin_token: Option<SecretFile>,
    /// Binds cache salts and key hashes to this installation; generated per process when absent.
    pub(super) installation_secret: Option<SecretFile>,
    pub(super) max_body_bytes: Option<u64>,
    pub(super) max_answer_bytes: Option<u64>,
    pub(super) timeouts: TimeoutsFile,
    pub(super) cors: CorsFile,
    pub(super) no_price: Option<String>,
    pub(super) floor_wtu: Option<Number>,
    pub(super) decision_records: Option<usize>,
    pub(super) access_log: Option<bool>,
}

/// A number that may be written bare or quoted; quoted decimals keep every digit.
#[derive(Clone, Deserialize, Serialize, PartialEq)]
#[serde(untagged, expecting = "a number")]
pub(super) enum Number {
    Whole(u64),
    Negative(i64),
    Decimal(f64),
    Text(String),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Whole(number) => write!(f, "{number}"),
            Number::Negative(number) => write!(f, "{number}"),
            Number::Decimal(number) => write!(f, "{number}"),
            Number::Text(text) => f.write_str(text),
        }
    }
}

/// As it was written.
impl std::fmt::Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Text(text) => write!(f, "{text:?}"),
            Number::Decimal(number) => write!(f, "{number:?}"),
            Number::Whole(_) | Number::Negative(_) => write!(f, "{self}"),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelFile {
    pub(super) name: String,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    /// The name engines know it by; its own name when absent.
    pub(super) served_as: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) engine: Option<String>,
    #[serde(default)]
    pub(super) engine_priority: bool,
    pub(super) context_tokens: u64,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) default_max_tokens: Option<u64>,
    pub(super) tier: Option<String>,
    pub(super) price: Option<PriceFile>,
    pub(super) unknown_fields: Option<String>,
    /// No token is shorter than this many bytes of prompt; the hold assumes it.
    pub(super) bytes_per_token_floor: Option<Number>,
    /// No token is longer than this many bytes of prompt; an early "too long" assumes it.
    pub(super) bytes_per_token_ceiling: Option<Number>,
}

/// WTU per token.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceFile {
    pub(super) uncached: Number,
    /// The uncached rate when absent.
    pub(super) cached: Option<Number>,
    pub(super) output: Number,
}

/// What requests that refer to it are promised.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ObjectiveFile {
    pub(super) band: Option<Number>,
    pub(super) weight: Option<Number>,
    pub(super) ttl_ms: Option<Number>,
    pub(super) ttft_ms: Option<Number>,
    pub(super) tpot_ms: Option<Number>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantFile {
    pub(super) name: String,
    pub(super) objective: Option<String>,
    pub(super) band: Option<Number>,
    pub(super) weight: Option<Number>,
    pub(super) ttl_ms: Option<Number>,
    pub(super) ttft_ms: Option<Number>,
    pub(super) tpot_ms: Option<Number>,
    /// The ratio of the account group: every charge is multiplied by it.
    pub(super) ratio: Option<Number>,
    /// Which models its keys may use; all of them when absent.
    pub(super) models: Option<Vec<String>>,
    #[serde(default)]
    pub(super) limits: Vec<LimitFile>,
    /// Tenants of one group share prefix caches; each is alone when absent.
    pub(super) cache_group: Option<String>,
    #[serde(default)]
    pub(super) projects: Vec<ProjectFile>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProjectFile {
    pub(super) name: String,
    pub(super) objective: Option<String>,
    pub(super) band: Option<Number>,
    pub(super) weight: Option<Number>,
    pub(super) ttl_ms: Option<Number>,
    pub(super) ttft_ms: Option<Number>,
    pub(super) tpot_ms: Option<Number>,
    #[serde(default)]
    pub(super) limits: Vec<LimitFile>,
    pub(super) models: Option<Vec<String>>,
    #[serde(default)]
    pub(super) users: Vec<UserFile>,
    #[serde(default)]
    pub(super) keys: Vec<KeyFile>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserFile {
    pub(super) name: String,
    #[serde(default)]
    pub(super) limits: Vec<LimitFile>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyFile {
    pub(super) name: String,
    pub(super) user: Option<String>,
    pub(super) role: Option<String>,
    /// Seconds since 1970; never when absent.
    pub(super) expires: Option<u64>,
    pub(super) models: Option<Vec<String>>,
    pub(super) objective: Option<String>,
    pub(super) band: Option<Number>,
    pub(super) weight: Option<Number>,
    pub(super) ttl_ms: Option<Number>,
    pub(super) ttft_ms: Option<Number>,
    pub(super) tpot_ms: Option<Number>,
    #[serde(default)]
    pub(super) limits: Vec<LimitFile>,
    pub(super) secret: SecretFile,
}

/// Where a secret is read from. Never the secret itself.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SecretFile {
    pub(super) file: Option<PathBuf>,
    pub(super) env: Option<String>,
}

/// One limit: `requests` + `per`, `concurrency`, or `wtu` / `tokens` + `tier` + a window.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitFile {
    pub(super) name: Option<String>,
    pub(super) tier: Option<String>,
    pub(super) requests: Option<u64>,
    pub(super) burst: Option<u64>,
    pub(super) concurrency: Option<u64>,
    pub(super) wtu: Option<Number>,
    pub(super) tokens: Option<Number>,
    pub(super) per: Option<String>,
    /// rolling (default), calendar, anchor, balance.
    pub(super) window: Option<String>,
    /// Of a calendar window: UTC or an offset such as +02:00.
    pub(super) zone: Option<String>,
    /// Of a rolling or anchor window: one of its boundaries, in seconds since 1970.
    pub(super) anchor: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TimeoutsFile {
    pub(super) header_read: Option<String>,
    pub(super) body_read: Option<String>,
    pub(super) idle: Option<String>,
    pub(super) answer: Option<String>,
    pub(super) keep_alive_grace: Option<String>,
    pub(super) keep_alive_every: Option<String>,
    pub(super) queue: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CorsFile {
    pub(super) allowed_origins: Vec<String>,
}

macro_rules! states {
    ($objective:expr, $file:ty) => {
        impl $file {
            pub(super) fn stated(&self) -> Stated<'_> {
                let objective: fn(&$file) -> Option<&str> = $objective;
                Stated {
                    objective: objective(self),
                    band: self.band.as_ref(),
                    weight: self.weight.as_ref(),
                    ttl_ms: self.ttl_ms.as_ref(),
                    ttft_ms: self.ttft_ms.as_ref(),
                    tpot_ms: self.tpot_ms.as_ref(),
                }
            }
        }
    };
}

states!(|_| None, ObjectiveFile);
states!(|file| file.objective.as_deref(), TenantFile);
states!(|file| file.objective.as_deref(), ProjectFile);
states!(|file| file.objective.as_deref(), KeyFile);
