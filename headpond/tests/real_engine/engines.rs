//! The running vLLM servers: where they are, whose turn it is to use them, and what they count.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use http::Method;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use crate::ask::{CHAT, prompt, streamed};
use crate::wire;

/// Names the file that the starter of the servers writes.
const READY_FILE: &str = "HEADPOND_VLLM_READY_FILE";
/// Longest a server may take for anything: a restart on a busy machine takes half a minute.
const PATIENCE: Duration = Duration::from_mins(2);

static TURN: Mutex<()> = Mutex::const_new(());

/// The servers, for one test at a time.
pub(crate) struct Engines {
    list: Vec<Engine>,
    _turn: MutexGuard<'static, ()>,
}

/// One server.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Engine {
    pub(crate) url: String,
    process_group: u32,
}

impl Engines {
    /// Waits for the turn, and until no server has anything to do.
    pub(crate) async fn take() -> Self {
        let turn = TURN.lock().await;
        let list = read();
        assert!(
            list.len() >= 3,
            "three servers are needed, {READY_FILE} names {}",
            list.len()
        );
        let engines = Self { list, _turn: turn };
        engines.idle().await;
        engines
    }

    /// Waits until no server has anything to do: what an earlier client left behind has been noticed.
    pub(crate) async fn idle(&self) {
        for engine in &self.list {
            until("the engine is idle", async || {
                let page = engine.metrics().await?;
                let busy = page.count("vllm:num_requests_running")
                    + page.count("vllm:num_requests_waiting");
                (busy == 0).then_some(())
            })
            .await;
        }
    }

    pub(crate) fn all(&self) -> &[Engine] {
        &self.list
    }

    /// Tokens computed since the start, over all servers.
    pub(crate) async fn counted(&self) -> Counted {
        let mut sum = Counted::default();
        for engine in &self.list {
            let page = engine.metrics().await.expect("the engine answers");
            sum.prompt += page.count("vllm:prompt_tokens_total");
            sum.output += page.count("vllm:generation_tokens_total");
        }
        sum
    }

    /// Kills a server with everything it runs. The starter starts it again.
    pub(crate) fn kill(&self, url: &str) {
        let engine = self
            .list
            .iter()
            .find(|engine| engine.url == url)
            .expect("one of the servers");
        let group = format!("-{}", engine.process_group);
        let status = Command::new("kill").args(["-KILL", "--", &group]).status();
        assert!(
            status.expect("kill runs").success(),
            "the server is there to be killed"
        );
    }

    /// Waits until a killed server serves again.
    pub(crate) async fn restarted(&self, url: &str) {
        let before = self
            .list
            .iter()
            .find(|engine| engine.url == url)
            .expect("one of the servers")
            .process_group;
        until("the server is started again", async || {
            let after = read().into_iter().find(|engine| engine.url == url);
            after.filter(|engine| engine.process_group != before)
        })
        .await;
    }
}

/// What servers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) prompt: u64,
    pub(crate) output: u64,
}

impl std::ops::Sub for Counted {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            prompt: self.prompt - earlier.prompt,
            output: self.output - earlier.output,
        }
    }
}

impl Engine {
    /// As headpond calls it.
    pub(crate) fn name(&self) -> &str {
        self.url.strip_prefix("http://").expect("an http URL")
    }

    /// Asks the server itself.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> wire::Answer {
        let url = format!("{}{path}", self.url);
        wire::send(Method::POST, &url, "", body.to_string())
            .await
            .expect("an answer")
    }

    /// As many streams as the server runs at once, from clients of its own, until they are dropped.
    pub(crate) async fn occupy(&self, output: u32) -> Vec<wire::Open> {
        let mut streams = Vec::new();
        for _ in 0..4 {
            let request = streamed(CHAT, &prompt(400), output).to_string();
            let url = format!("{}{CHAT}", self.url);
            let stream = wire::open(Method::POST, &url, "", request).await;
            streams.push(stream.expect("the engine answers"));
        }
        // The engine answers before it has a place.
        until("all of them run", async || {
            (self.metrics().await?.count("vllm:num_requests_running") == 4).then_some(())
        })
        .await;
        streams
    }

    pub(crate) async fn metrics(&self) -> Option<Page> {
        let answer = wire::send(Method::GET, &format!("{}/metrics", self.url), "", "").await?;
        Some(Page(
            String::from_utf8(answer.body.to_vec()).expect("a page is UTF-8"),
        ))
    }
}

/// A metrics page.
pub(crate) struct Page(pub(crate) String);

impl Page {
    /// The sum of all series of a counter or of a gauge that counts, whatever their other labels.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.sum(name) as u64
    }

    pub(crate) fn sum(&self, name: &str) -> f64 {
        let series = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = rest
                .starts_with(['{', ' '])
                .then(|| rest.rsplit(' ').next())??;
            value.parse::<f64>().ok()
        });
        series.sum()
    }
}

fn read() -> Vec<Engine> {
    let path = std::env::var_os(READY_FILE).map(PathBuf::from);
    let path = path.expect("HEADPOND_VLLM_READY_FILE is set by scripts/test-real-engine");
    let text = std::fs::read(&path).expect("the servers are running");
    serde_json::from_slice(&text).expect("the starter writes a list of servers")
}

/// Looks again until there is something to see. Other processes do the work, so there is nothing to wait on.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "waited {PATIENCE:?} in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
