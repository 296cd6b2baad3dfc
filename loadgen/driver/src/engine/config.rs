//! What a simulated engine is told before it starts.

use std::{fmt, net::SocketAddr, num::NonZeroU32, str::FromStr};

use engine_model::{Order, Profile};

/// Whose HTTP surface, error shapes and metric names to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// As vLLM 0.32.
    Vllm,
    /// As vLLM 0.32 with the metric names of 0.10 added (`vllm:gpu_cache_usage_perc` and its kin).
    VllmLegacy,
    /// As SGLang 0.5.23.
    Sglang,
}

impl Vocabulary {
    pub(super) fn is_sglang(self) -> bool {
        match self {
            Self::Sglang => true,
            Self::Vllm | Self::VllmLegacy => false,
        }
    }
}

impl fmt::Display for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vllm",
            Self::VllmLegacy => "vllm-legacy",
            Self::Sglang => "sglang",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no engine vocabulary; known are vllm, vllm-legacy, sglang")]
pub struct UnknownVocabulary(String);

impl FromStr for Vocabulary {
    type Err = UnknownVocabulary;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Vllm, Self::VllmLegacy, Self::Sglang]
            .into_iter()
            .find(|v| v.to_string() == name)
            .ok_or_else(|| UnknownVocabulary(name.to_owned()))
    }
}

/// What the model can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Generate,
    Embed,
    Both,
}

/// Whether `X-Request-Id` comes back as a header (`--enable-request-id-headers`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestIdHeaders {
    Echo,
    Ignore,
}

/// Whether usage says how much of the prompt was cached (`--enable-prompt-tokens-details`,
/// `--enable-cache-report`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheReport {
    On,
    Off,
}

/// Whether the server takes `/sim/fault` and shows `/sim/usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlPath {
    On,
    Off,
}

/// Lengths of answers that nobody limited: log-normal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputLengths {
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
}

/// One simulated engine. Start from [`EngineConfig::new`] and change what matters.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Port 0 lets the system choose.
    pub listen: SocketAddr,
    pub profile: Profile,
    /// Names it serves; the first is the model's own, the others aliases.
    pub models: Vec<String>,
    /// `LoRA` adapters served under their own names; each has a cache of its own.
    pub adapters: Vec<String>,
    pub task: Task,
    pub vocabulary: Vocabulary,
    pub seed: u64,
    /// How many times faster than the imitated hardware; 1 is real time.
    pub speed: f64,
    /// Relative spread of step times.
    pub noise: f64,
    pub max_model_len: u32,
    /// Most sequences running at once; the profile's default if `None`.
    pub max_num_seqs: Option<NonZeroU32>,
    /// Token budget of a step; the profile's default if `None`.
    pub max_num_batched_tokens: Option<NonZeroU32>,
    /// Tokens per KV block.
    pub block_size: NonZeroU32,
    /// KV blocks; all the profile's memory if `None`.
    pub kv_blocks: Option<NonZeroU32>,
    /// Most waiting requests before 503; unlimited if `None`, as engines are by default.
    pub queue_limit: Option<u32>,
    pub order: Order,
    pub output_lengths: OutputLengths,
    pub request_id_headers: RequestIdHeaders,
    pub cache_report: CacheReport,
    pub control_path: ControlPath,
    /// `SGLang` renews its gauges every so many decoding steps (`--decode-log-interval`).
    pub decode_log_interval: u32,
}

impl EngineConfig {
    /// A vLLM-like engine named `sim-model` on a loopback port the system chooses, at real time.
    pub fn new(profile: Profile) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            profile,
            models: vec!["sim-model".to_owned()],
            adapters: Vec::new(),
            task: Task::Generate,
            vocabulary: Vocabulary::Vllm,
            seed: 0,
            speed: 1.0,
            noise: 0.0,
            max_model_len: 131_072,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            block_size: const { NonZeroU32::new(16).expect("16 is not zero") },
            kv_blocks: None,
            queue_limit: None,
            order: Order::FirstCome,
            output_lengths: OutputLengths {
                median: 200.0,
                sigma: 0.8,
            },
            request_id_headers: RequestIdHeaders::Ignore,
            cache_report: CacheReport::On,
            control_path: ControlPath::On,
            decode_log_interval: 40,
        }
    }

    /// Name of the model itself.
    pub(super) fn base_model(&self) -> &str {
        self.models.first().map_or("sim-model", String::as_str)
    }

    pub(super) fn knows(&self, model: &str) -> bool {
        self.models.iter().chain(&self.adapters).any(|m| m == model)
    }

    pub(super) fn step_model(&self) -> engine_model::Config {
        let defaults =
            engine_model::Config::new(self.profile).with_block_size(self.block_size.get());
        let or = |value: Option<NonZeroU32>, default| value.map_or(default, NonZeroU32::get);
        engine_model::Config {
            num_blocks: or(self.kv_blocks, defaults.num_blocks),
            max_sequences: or(self.max_num_seqs, defaults.max_sequences),
            max_batched_tokens: or(self.max_num_batched_tokens, defaults.max_batched_tokens),
            order: self.order,
            noise: self.noise,
            seed: self.seed,
            ..defaults
        }
    }
}
