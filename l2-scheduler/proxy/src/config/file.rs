//! The `scheduling:` section as written.

use scheduler_core::Policy;
use serde::{Deserialize, Serialize};

use super::flow::{BandFile, FlowFile, QueueFile, WtuFile};
use super::origin::shown;
use super::peers::PeersFile;
use super::quota::FlowQuotaFile;
use super::{
    Config, ConfigError, DAY_MS, Endpoint, Engine, Origin, Profile, Timeouts, Untrusted, endpoints,
    millis, refuse, within,
};

/// The `scheduling:` section of the configuration file. Every field has a default, and every one has an effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pool: String,
    policy: String,
    endpoints: Vec<EndpointFile>,
    queue: QueueFile,
    fairness: String,
    wtu: WtuFile,
    quota: FlowQuotaFile,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bands: Vec<BandFile>,
    other_bands: BandFile,
    room: u32,
    engine: EngineFile,
    peers: PeersFile,
    scrape: engine_telemetry::config::File,
    attempts: u32,
    timeouts: TimeoutsFile,
    untrusted: String,
    profile: ProfileFile,
    records: usize,
    body_limit_bytes: usize,
    idle_connections: usize,
}

/// One entry of `scheduling.endpoints`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointFile {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics_url: Option<String>,
    #[serde(default = "auto")]
    engine: String,
    #[serde(default)]
    models: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EngineFile {
    depth: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(
    clippy::struct_field_names,
    reason = "settings carry their unit in their name"
)]
struct TimeoutsFile {
    connect_ms: u64,
    idle_connection_ms: u64,
    first_output_ms: u64,
    silence_ms: u64,
    hung_silence_ms: u64,
    body_read_ms: u64,
    hang_floor_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProfileFile {
    peak_prefill_tokens_per_s: f64,
    kv_tokens: u64,
    max_batched_tokens: u32,
}

impl Default for File {
    fn default() -> Self {
        Self {
            pool: "default".to_owned(),
            policy: Policy::default().to_string(),
            endpoints: Vec::new(),
            queue: QueueFile::default(),
            fairness: "lag".to_owned(),
            wtu: WtuFile::default(),
            quota: FlowQuotaFile::default(),
            bands: Vec::new(),
            other_bands: BandFile::default(),
            room: 256,
            engine: EngineFile::default(),
            peers: PeersFile::default(),
            scrape: engine_telemetry::config::File::default(),
            attempts: 3,
            timeouts: TimeoutsFile::default(),
            untrusted: "refuse".to_owned(),
            profile: ProfileFile::default(),
            records: 4096,
            body_limit_bytes: 64 << 20,
            idle_connections: 256,
        }
    }
}

impl Default for EngineFile {
    fn default() -> Self {
        Self { depth: 32 }
    }
}

impl Default for TimeoutsFile {
    fn default() -> Self {
        Self {
            connect_ms: 1_000,
            // vLLM closes after 5 s.
            idle_connection_ms: 4_000,
            first_output_ms: 1_800_000,
            // A tool call may be collected for minutes before it is sent.
            silence_ms: 300_000,
            hung_silence_ms: 30_000,
            body_read_ms: 60_000,
            hang_floor_ms: 2_000,
        }
    }
}

impl Default for ProfileFile {
    fn default() -> Self {
        Self {
            peak_prefill_tokens_per_s: 10_000.0,
            kv_tokens: 400_000,
            max_batched_tokens: 8_192,
        }
    }
}

impl File {
    /// A section with these endpoints and defaults for the rest.
    #[must_use]
    pub fn with_endpoints(endpoints: impl IntoIterator<Item = EndpointFile>) -> Self {
        Self {
            endpoints: endpoints.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The section with defaults for all that can change while the scheduler runs: the settings of flow control.
    #[must_use]
    pub fn without_flow(&self) -> Self {
        let Self {
            fairness,
            wtu,
            quota,
            bands,
            other_bands,
            ..
        } = Self::default();
        Self {
            queue: self.queue.without_flow(),
            fairness,
            wtu,
            quota,
            bands,
            other_bands,
            ..self.clone()
        }
    }

    /// Whether it says what holds for bands that it does not name.
    pub fn sets_other_bands(&self) -> bool {
        self.other_bands != BandFile::default()
    }

    pub(super) fn check(self) -> Result<Config, ConfigError> {
        Ok(Config {
            pool: self
                .pool
                .parse()
                .map_err(|_| refuse("pool", &self.pool, "1 to 128 visible ASCII characters"))?,
            policy: self.policy.parse().map_err(|_| {
                refuse(
                    "policy",
                    &self.policy,
                    Policy::ALL.map(Policy::name).join(", "),
                )
            })?,
            endpoints: endpoints(self.endpoints.clone())?,
            flow: self.flow().check()?,
            comments: self.queue.comments()?,
            peers: self.peers.check()?,
            room: within("room", self.room, 1, 100_000)?,
            depth: within("engine.depth", self.engine.depth, 1, 100_000)?,
            scrape: scrape(&self.scrape)?,
            attempts: within("attempts", self.attempts, 1, 16)?,
            timeouts: self.timeouts.check()?,
            untrusted: match self.untrusted.as_str() {
                "refuse" => Untrusted::Refuse,
                "lowest" => Untrusted::Lowest,
                other => return Err(refuse("untrusted", other, "refuse or lowest")),
            },
            profile: self.profile.check()?,
            records: within("records", self.records, 1, 1_000_000)?,
            body_limit: within("body_limit_bytes", self.body_limit_bytes, 1 << 10, 1 << 30)?,
            idle_connections: within("idle_connections", self.idle_connections, 1, 10_000)?,
        })
    }

    fn flow(&self) -> FlowFile<'_> {
        FlowFile {
            queue: &self.queue,
            fairness: &self.fairness,
            wtu: &self.wtu,
            quota: &self.quota,
            bands: &self.bands,
            other_bands: &self.other_bands,
        }
    }
}

impl EndpointFile {
    /// An endpoint at an address, with defaults for the rest.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            name: None,
            metrics_url: None,
            engine: auto(),
            models: Vec::new(),
        }
    }

    /// The same endpoint, serving these models only; none: any.
    #[must_use]
    pub fn serving(self, models: impl IntoIterator<Item = String>) -> Self {
        Self {
            models: models.into_iter().collect(),
            ..self
        }
    }

    pub(super) fn check(self, index: usize) -> Result<Endpoint, ConfigError> {
        let at = |field: &str| format!("endpoints[{index}].{field}");
        let origin =
            Origin::parse(&self.url).map_err(|why| refuse(at("url"), shown(&self.url), why))?;
        let metrics = match &self.metrics_url {
            None => Origin {
                base: format!("{}/metrics", origin.base),
                ..origin.clone()
            },
            Some(url) => {
                metrics_page(url).map_err(|why| refuse(at("metrics_url"), shown(url), why))?
            }
        };
        let name = match self.name {
            None => format!("{}:{}", origin.host, origin.port),
            Some(name) if is_name(&name) => name,
            Some(name) => {
                return Err(refuse(
                    at("name"),
                    name,
                    "1 to 128 visible ASCII characters",
                ));
            }
        };
        let engine = match self.engine.as_str() {
            "auto" => Engine::Auto,
            "vllm" => Engine::Vllm,
            "sglang" => Engine::Sglang,
            other => return Err(refuse(at("engine"), other, "auto, vllm or sglang")),
        };
        if engine == Engine::Sglang && self.models.is_empty() {
            let why =
                "at least one model name: SGLang answers any name, so what it serves must be said";
            return Err(refuse(at("models"), &self.models, why));
        }
        if let Some(model) = self.models.iter().find(|model| model.is_empty()) {
            return Err(refuse(
                at("models"),
                model,
                "model names that are not empty",
            ));
        }
        Ok(Endpoint {
            name,
            origin,
            metrics,
            engine,
            models: self.models,
        })
    }
}

impl TimeoutsFile {
    fn check(&self) -> Result<Timeouts, ConfigError> {
        Ok(Timeouts {
            connect: millis("timeouts.connect_ms", self.connect_ms, 1, 60_000)?,
            idle_connection: millis(
                "timeouts.idle_connection_ms",
                self.idle_connection_ms,
                1,
                3_600_000,
            )?,
            first_output: millis("timeouts.first_output_ms", self.first_output_ms, 1, DAY_MS)?,
            silence: millis("timeouts.silence_ms", self.silence_ms, 1, DAY_MS)?,
            hung_silence: millis("timeouts.hung_silence_ms", self.hung_silence_ms, 1, DAY_MS)?,
            body_read: millis("timeouts.body_read_ms", self.body_read_ms, 1, 3_600_000)?,
            hang_floor: millis("timeouts.hang_floor_ms", self.hang_floor_ms, 1, 3_600_000)?,
        })
    }
}

impl ProfileFile {
    fn check(&self) -> Result<Profile, ConfigError> {
        Ok(Profile {
            peak_prefill: within(
                "profile.peak_prefill_tokens_per_s",
                self.peak_prefill_tokens_per_s,
                1.0,
                1e9,
            )?,
            kv_tokens: within("profile.kv_tokens", self.kv_tokens, 1, 1 << 40)?,
            batched_tokens: within(
                "profile.max_batched_tokens",
                self.max_batched_tokens,
                1,
                1 << 24,
            )?,
        })
    }
}

/// The scraper checks its own settings.
fn scrape(
    file: &engine_telemetry::config::File,
) -> Result<engine_telemetry::config::Config, ConfigError> {
    engine_telemetry::config::Config::check(file).map_err(|error| {
        let path = format!("scrape.{}", error.field);
        let allowed = format!("a number from {} to {}", error.least, error.most);
        refuse(path, error.value, allowed)
    })
}

/// An address without a path means `/metrics` there.
fn metrics_page(url: &str) -> Result<Origin, &'static str> {
    let mut origin = Origin::parse(url)?;
    if origin.base.is_empty() {
        "/metrics".clone_into(&mut origin.base);
    }
    Ok(origin)
}

pub(super) fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

fn auto() -> String {
    "auto".to_owned()
}
