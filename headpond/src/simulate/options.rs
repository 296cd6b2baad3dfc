//! What can be asked of `headpond simulate`.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help that people read, not Markdown"
)]

use clap::{Args, ValueEnum};

#[derive(Args)]
pub(crate) struct Simulate {
    /// What is sent (repeatable): mooncake_conversation, mooncake_synthetic, agentic, tenants, bursty,
    /// or a file: tab-separated with or without block ids, Mooncake JSON lines, Azure CSV
    /// [default: the two mooncake traces]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) trace: Vec<String>,
    /// Run at one load factor: divides the time stamps of a trace, multiplies the users of a generated
    /// workload (above 0, up to 50)
    #[arg(
        long,
        value_name = "FACTOR",
        conflicts_with = "capacity",
        allow_negative_numbers = true
    )]
    pub(crate) load: Option<String>,
    /// Find the load factor at which 95 % of all offered requests are good (the default)
    #[arg(long)]
    pub(crate) capacity: bool,
    /// Which policies, separated by commas [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// How many seeds: each draws the times, the lengths and the ties anew, the same for every policy
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(crate) seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub(crate) first_seed: u64,
    /// How many engines
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) engines: u32,
    /// Which GPU they imitate: 70b-8xh100, 70b-8xa100, 8b-a100, 32b-2xh100
    #[arg(long, value_name = "NAME", default_value = "70b-8xh100")]
    pub(crate) profile: String,
    /// How many schedulers share the requests and the engines; they tell each other their load every
    /// 100 ms
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) schedulers: u32,
    /// Whether planned refuses a request that cannot meet its target any more [default: both ways]
    #[arg(long, value_name = "doomed|never")]
    pub(crate) refuse: Option<RefuseWhom>,
    /// Spread the requests over so many tenants of very different size [default: those of the
    /// workload: 300 in tenants, 8 in agentic, otherwise one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tenants: Option<u32>,
    /// How many requests at the most [default: 6000 of mooncake_conversation, otherwise all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) requests: Option<u64>,
    /// Print one JSON object per trace, policy and seed in place of the tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RefuseWhom {
    Doomed,
    Never,
}
