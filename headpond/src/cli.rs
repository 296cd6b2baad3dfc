//! The command line: what can be asked for, and the help that teaches it. Nothing is decided here.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help that people read, not Markdown"
)]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};

use crate::load::Load;
use crate::simulate::Simulate;
use crate::{client, config};

/// An inference-pool scheduler for private GPU clusters.
///
/// It stands between applications and your own vLLM or SGLang replicas, and decides for every
/// request whether it may run, for whom and against whose quota (governance, L1), and when and on
/// which replica (scheduling, L2).
#[derive(Parser)]
#[command(
    name = "headpond",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(
    after_help = "Start here:\n  headpond up            everything in one process, with simulated engines\n  headpond top           what the pool is doing, every second\n  headpond why <id>      the reasons behind one request (its x-request-id)\n  headpond load          put a load on it and see what each user would feel"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process: governance, scheduling and simulated engines
    ///
    /// Without options it serves three simulated engines (one of them slow) to three tenants with
    /// keys, counts every token in an embedded ledger and prints a curl that works.
    #[command(
        after_help = "Examples:\n  headpond up\n  headpond up --endpoint http://gpu-1:8000 --endpoint http://gpu-2:8000\n  headpond up --config headpond.yaml --data-dir /var/lib/headpond\n  headpond up --listen 127.0.0.1:0 --ready-file /tmp/ready.json   (for scripts)"
    )]
    Up(Up),
    /// Run governance (L1) alone, in front of a `headpond schedule`
    Govern(Govern),
    /// Run scheduling (L2) alone, behind a `headpond govern`
    Schedule(Schedule),
    /// Run one simulated engine: an OpenAI-compatible server that behaves like vLLM or SGLang
    Engine(Engine),
    /// Put an open-loop load on a server and report what its users would feel
    #[command(
        after_help = "Examples:\n  headpond load --ready-file /tmp/ready.json --rate 20 --requests 500\n  headpond load --ready-file /tmp/ready.json --trace mooncake_conversation --requests 1000 --speed 20\n  headpond load --url http://127.0.0.1:8080 --key hp-... --model demo --json\n  headpond load --ready-file /tmp/ready.json --duration 120 --group \"chat rate=8 prompt=250..750 output=200\" \\\n    --group \"batch rate=1 prompt=20000 output=300 band=-1 from=30\"\n\nLatency counts from the intended time of a request. A run whose own schedule lagged, or\nwhere nothing was answered, is reported as invalid and exits with 3: its figures would mislead."
    )]
    Load(Load),
    /// Compare scheduling policies on virtual time: the code that runs in production, no server needed
    ///
    /// Without options it looks for the load that each policy sustains on two recorded traces, and
    /// prints a table of what their users would feel.
    #[command(
        after_help = "Examples:\n  headpond simulate\n  headpond simulate --trace agentic --trace bursty --policy planned,weighted\n  headpond simulate --load 3 --policy planned --refuse never --requests 12031 --json\n  headpond simulate --trace requests.csv --profile 8b-a100 --engines 16\n\nThe same seeds give the same figures on any machine. docs/simulating.md says what each means."
    )]
    Simulate(Simulate),
    /// Create, list, revoke and rotate virtual keys (talks to the admin listener)
    #[command(subcommand)]
    Key(Key),
    /// Look after the ledger
    #[command(subcommand)]
    Ledger(Ledger),
    /// Watch a pool: endpoints, bands, flows, saturation by cause and rates, every second
    Top(Top),
    /// Explain one request: identity, limits, reservation, queue, candidates, choice, outcome
    ///
    /// Where `govern` and `schedule` are two processes, each has its own part of it: ask the other one
    /// with --admin-url.
    Why(Why),
    /// Check or show a configuration file
    #[command(subcommand)]
    Config(Config),
}

#[derive(Args)]
pub(crate) struct Up {
    /// A real engine to use in place of the simulated ones (repeatable)
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Vec<String>,
    #[command(flatten)]
    pub(crate) simulation: Simulation,
    /// How replicas are chosen: planned, predicted-cost, token-aware, lmetric, weighted,
    /// least-request, p2c, round-robin, random
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Where clients connect; port 0 takes any free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", value_parser = config::listen_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators connect: metrics, decisions, keys [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", value_parser = config::listen_address)]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Where the ledger and the generated keys live; without it they end with the process
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// A configuration file, the same one the cluster uses
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Written, atomically, once requests are served: {url, admin_url, models, tenants, endpoints}
    #[arg(long, value_name = "PATH")]
    pub(crate) ready_file: Option<PathBuf>,
    /// How long open streams may go on after SIGTERM, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout: u64,
}

/// The simulated engines of `headpond up`.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Simulation {
    /// How many engines to simulate; the last one is slow [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) engines: Option<u16>,
    /// Which GPU they imitate: 70b-8xh100, 70b-8xa100, 8b-a100, 32b-2xh100 [default: 8b-a100]
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// How much faster than real time they run [default: 1]
    #[arg(long, value_name = "FACTOR")]
    pub(crate) speed: Option<f64>,
    /// How many times slower the last one is; 1: like the others [default: 3]
    #[arg(long, value_name = "FACTOR")]
    pub(crate) slow: Option<f64>,
}

impl Simulation {
    pub(crate) fn is_given(&self) -> bool {
        self.engines.is_some()
            || self.profile.is_some()
            || self.speed.is_some()
            || self.slow.is_some()
    }
}

#[derive(Args)]
pub(crate) struct Govern {
    /// The configuration file; its `governance`, `scheduler_url` and `context_keys` are used
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) serve: Serve,
    /// Where the ledger lives
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct Schedule {
    /// The configuration file; its `scheduling` and `context_keys` are used
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Args)]
pub(crate) struct Serve {
    /// Where clients connect; overrides the file [default: 127.0.0.1:8080, `schedule`: 8081]
    #[arg(long, value_name = "ADDRESS", value_parser = config::listen_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators connect; overrides the file [default: 127.0.0.1:9090, `schedule`: 9091]
    #[arg(long, value_name = "ADDRESS", value_parser = config::listen_address)]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// Written, atomically, once requests are served
    #[arg(long, value_name = "PATH")]
    pub(crate) ready_file: Option<PathBuf>,
    /// How long open streams may go on after SIGTERM, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout: u64,
}

#[derive(Args)]
pub(crate) struct Engine {
    /// Where it listens; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000", value_parser = config::listen_address)]
    pub(crate) listen: SocketAddr,
    /// Which GPU it imitates: 70b-8xh100, 70b-8xa100, 8b-a100, 32b-2xh100
    #[arg(long, value_name = "NAME", default_value = "8b-a100")]
    pub(crate) profile: String,
    /// Whose answers and metrics it imitates: vllm or sglang
    #[arg(long, value_name = "ENGINE", default_value = "vllm")]
    pub(crate) vocabulary: String,
    /// The model it serves (repeatable)
    #[arg(long, value_name = "NAME", default_values_t = ["demo".to_owned()])]
    pub(crate) model: Vec<String>,
    /// How much faster than real time it runs
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) speed: f64,
    /// The same seed gives the same answers
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Accept fault commands on POST /sim/fault (see docs/engine-profiles.md)
    #[arg(long)]
    pub(crate) faults: bool,
}

/// How a command finds the admin listener.
#[derive(Args)]
pub(crate) struct Admin {
    /// The admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "HEADPOND_ADMIN_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:9090",
        value_parser = client::admin_url
    )]
    pub(crate) admin_url: String,
    /// A file with the admin token, or with a key of role `lead` (`headpond up` without --config
    /// writes `admin.token` into its data directory)
    #[arg(
        long,
        value_name = "FILE",
        env = "HEADPOND_ADMIN_TOKEN_FILE",
        hide_env_values = true,
        value_parser = OsStringValueParser::new().try_map(client::token_file)
    )]
    pub(crate) admin_token_file: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum Key {
    /// Mint a key; its secret is printed once and stored nowhere
    Create(KeyCreate),
    /// List keys by their public part
    List {
        #[command(flatten)]
        admin: Admin,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Refuse a key from this moment on
    Revoke {
        #[command(flatten)]
        admin: Admin,
        /// The public part, which stands behind `hp-`
        public: String,
    },
    /// Replace a key: prints a new one; the old one stays good for the overlap
    Rotate {
        #[command(flatten)]
        admin: Admin,
        /// The public part, which stands behind `hp-`
        public: String,
        /// How long both are good, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        overlap: u64,
    },
}

#[derive(Args)]
pub(crate) struct KeyCreate {
    #[command(flatten)]
    pub(crate) admin: Admin,
    /// The tenant it belongs to
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: String,
    /// The project it belongs to
    #[arg(long, value_name = "NAME")]
    pub(crate) project: String,
    /// The user it belongs to; a new name makes a new user
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// What people call it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// A model it may use (repeatable) [default: all its project may use]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Vec<String>,
    /// Good for this many seconds [default: no end]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) expires_in: Option<u64>,
    /// The objective of its requests, one of governance.objectives [default: its project's]
    #[arg(long, value_name = "NAME")]
    pub(crate) objective: Option<String>,
    /// May create and revoke keys of its own project, never beyond its own reach
    #[arg(long)]
    pub(crate) lead: bool,
}

#[derive(Subcommand)]
pub(crate) enum Ledger {
    /// Check every invariant and the hash chain of a ledger file; exits with 1 if one is broken
    Verify {
        /// The directory given to `headpond up` or `govern` as --data-dir
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct Top {
    /// Print one frame, with the rates of one second, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON, one object a second
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: Admin,
}

#[derive(Args)]
pub(crate) struct Why {
    /// The x-request-id of an answer
    pub(crate) id: String,
    /// Print the record as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: Admin,
}

#[derive(Subcommand)]
pub(crate) enum Config {
    /// Check a file as every command that uses it does: exits with 0, or says what is wrong, where,
    /// and what is allowed. Files of keys that it names are read, the secrets of governance are not
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a file with its defaults written out; without one, an example to start from
    Show {
        /// The file
        file: Option<PathBuf>,
    },
}
