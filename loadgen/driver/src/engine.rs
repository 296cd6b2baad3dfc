//! An OpenAI-compatible HTTP server with a simulated engine behind it: the step model of `engine_model` on
//! real time, in the words of vLLM or SGLang, with faults on command.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use loadgen::engine::{EngineConfig, Fault, SimEngine};
//!
//! let engine = SimEngine::start(EngineConfig::new(engine_model::Profile::LLAMA_8B_A100)).await?;
//! println!("serving on {}", engine.addr());
//! engine.faults().inject_times(Fault::Cut { chunks: 3 }, 1);
//! engine.shutdown().await;
//! # Ok(())
//! # }
//! ```

use std::{io, net::SocketAddr, sync::Arc};

use engine_model::{Counters, Gauges};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod answer;
mod ask;
mod body;
mod config;
mod fault;
mod flight;
mod info;
mod metrics;
mod plan;
mod problem;
mod record;
mod route;
mod runner;
mod serve;

pub use config::{
    CacheReport, ControlPath, EngineConfig, OutputLengths, RequestIdHeaders, Task,
    UnknownVocabulary, Vocabulary,
};
pub use fault::{Fault, Faults, UsageReport};
pub use record::{Outcome, UsageRecord, UsageTotals};

use runner::Runner;
use serve::{Server, Stops};

/// Commands to the accept loop that may wait; it takes them at once.
const COMMANDS: usize = 64;

/// A running simulated engine. Dropping it breaks its connections; [`SimEngine::shutdown`] ends them.
pub struct SimEngine {
    addr: SocketAddr,
    runner: Arc<Runner>,
    stops: Stops,
    stop_engine: CancellationToken,
    tasks: TaskTracker,
}

impl SimEngine {
    /// Listens and begins to serve on the current runtime.
    pub async fn start(mut config: EngineConfig) -> io::Result<Self> {
        let model = config.step_model();
        let memory = model
            .num_blocks
            .saturating_sub(1)
            .saturating_mul(model.block_size);
        config.max_model_len = config.max_model_len.min(memory);
        let listener = TcpListener::bind(config.listen).await?;
        let addr = listener.local_addr()?;
        let (sender, commands) = mpsc::channel(COMMANDS);
        let runner = Arc::new(Runner::new(config, Arc::new(Faults::new(sender))));
        let (stops, stop_engine, tasks) =
            (Stops::new(), CancellationToken::new(), TaskTracker::new());
        tasks.spawn(runner::run(runner.clone(), stop_engine.clone()));
        let server = Server {
            addr,
            runner: runner.clone(),
            tasks: tasks.clone(),
            stops: stops.clone(),
            commands,
        };
        tasks.spawn(server.run(listener));
        Ok(Self {
            addr,
            runner,
            stops,
            stop_engine,
            tasks,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://host:port`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn faults(&self) -> &Faults {
        &self.runner.faults
    }

    /// Sequences that ended, the latest 16,384 of them, with what the engine really generated.
    pub fn usage(&self) -> Vec<UsageRecord> {
        self.runner.records().all()
    }

    /// Sums over all sequences that ended.
    pub fn usage_totals(&self) -> UsageTotals {
        self.runner.records().totals()
    }

    /// Most requests that ever waited inside it, seen where steps begin.
    pub fn most_waiting(&self) -> u32 {
        self.runner.records().most_waiting()
    }

    /// What a scrape would see.
    pub fn gauges(&self) -> Gauges {
        self.runner.metrics().gauges
    }

    pub fn counters(&self) -> Counters {
        self.runner.metrics().counters
    }

    /// Stops as a server does on SIGTERM: no new connections, streams end with finish reason `abort`.
    pub async fn shutdown(self) {
        self.stops.gently.cancel();
        self.stop_engine.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        self.stop_engine.cancel();
        self.stops.at_once.cancel();
    }
}
