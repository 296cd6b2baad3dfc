//! What can be asked of `headpond load`.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help that people read, not Markdown"
)]

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct Load {
    /// Take address, models and keys from the ready file of `headpond up`; or give --url, --key and
    /// --model
    #[arg(long, value_name = "PATH", required_unless_present_any = ["url", "rehearse"])]
    pub(crate) ready_file: Option<PathBuf>,
    /// The server's address, e.g. http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A virtual key to send with (repeatable: one tenant each, in turn)
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Vec<String>,
    /// The model to ask for (repeatable: in turn) [default: the first the ready file names]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Vec<String>,
    /// Replay a trace: mooncake_conversation, mooncake_synthetic, or a file in their format
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "rate")]
    pub(crate) trace: Option<String>,
    /// A group of users (repeatable): "NAME rate=PER_SECOND prompt=TOKENS output=TOKENS", and
    /// band=N, from=SECONDS, until=SECONDS. It sends with the key of the tenant NAME of the ready
    /// file, or with the --key in the same place; its prompts share nothing. Tokens are 512, or
    /// 100..900, or lognormal:MEDIAN,P90,MOST. The band is told, not asked for: it groups the report
    #[arg(
        long,
        value_name = "GROUP",
        conflicts_with_all = ["trace", "factor", "rate", "requests", "prompt_tokens", "output_tokens"]
    )]
    pub(crate) group: Vec<String>,
    /// How long groups without an end of their own send, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "group", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) duration: u64,
    /// Load factor: divides the time stamps of the trace
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) factor: f64,
    /// Mean arrivals per second, Poisson
    #[arg(long, value_name = "PER_SECOND", default_value_t = 5.0)]
    pub(crate) rate: f64,
    /// How many requests to send at the most
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) requests: usize,
    /// Prompt tokens of a generated request
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) prompt_tokens: u32,
    /// Output tokens of a generated request
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) output_tokens: u32,
    /// What `headpond up --speed` was given: times are scaled back in the report
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) speed: f64,
    /// The profile whose unloaded prefill time sets the TTFT target (1 s + 3 × T_p)
    #[arg(long, value_name = "NAME", default_value = "8b-a100")]
    pub(crate) profile: String,
    /// The same seed gives the same arrivals and prompts
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Share of requests whose client leaves in the middle (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) cancel: f64,
    /// Send nothing: replay the same requests on virtual time, scheduled as `scheduling` of this
    /// file says, and report the same figures (see docs/simulating.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "speed", "cancel"])]
    pub(crate) rehearse: Option<PathBuf>,
    /// How many engines of the --profile a rehearsal has
    #[arg(long, value_name = "N", default_value_t = 8, requires = "rehearse", conflicts_with = "url", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) engines: u32,
    /// Seconds between which a rehearsal cannot read its engines' metrics, e.g. 30..40
    #[arg(
        long,
        value_name = "FROM..UNTIL",
        requires = "rehearse",
        conflicts_with = "url"
    )]
    pub(crate) blackout: Option<String>,
    /// Print one JSON object in place of the table
    #[arg(long)]
    pub(crate) json: bool,
}
