//! `headpond up` in front of the servers, and what it says about each request.

use std::collections::BTreeMap;
use std::process::Output;

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tempfile::TempDir;

use crate::engines::{Engine, Page, until};
use crate::process::{Running, headpond, run};
use crate::wire::{self, Answer};

pub(crate) struct Front {
    running: Running,
    directory: TempDir,
}

impl Front {
    /// In front of these servers, with the tenants of the example.
    pub(crate) fn up(engines: &[Engine]) -> Self {
        let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
        Self::before(&urls)
    }

    pub(crate) fn before(urls: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let arguments: Vec<&str> = urls.iter().flat_map(|url| ["--endpoint", url]).collect();
        let running = Running::up(directory.path(), &arguments);
        Self { running, directory }
    }

    pub(crate) fn ready(&self) -> &Value {
        &self.running.ready
    }

    pub(crate) async fn get(&self, path: &str, tenant: &str) -> Answer {
        self.send(Method::GET, path, tenant, "").await
    }

    pub(crate) async fn post(&self, path: &str, tenant: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, tenant, &body.to_string())
            .await
    }

    async fn send(&self, method: Method, path: &str, tenant: &str, body: &str) -> Answer {
        let url = format!("{}{path}", self.running.url());
        let answer = wire::send(method, &url, self.running.key(tenant), body.to_owned()).await;
        assert!(answer.is_some(), "no answer:\n{}", self.running.log());
        answer.expect("checked above")
    }

    /// A stream that the caller reads; dropping it hangs up.
    pub(crate) async fn open(&self, path: &str, tenant: &str, body: &Value) -> Stream {
        let url = format!("{}{path}", self.running.url());
        let open = wire::open(
            Method::POST,
            &url,
            self.running.key(tenant),
            body.to_string(),
        )
        .await;
        Stream {
            open: open.expect("an answer"),
            text: String::new(),
        }
    }

    /// The decision record of a request, once the request has ended.
    pub(crate) async fn record(&self, id: &str) -> Record {
        let url = format!("{}/admin/v1/decisions/{id}", self.running.admin_url());
        let record = until("the request has a record", async || {
            let answer = wire::get(&url).await;
            let record = Record((answer.status == 200).then(|| answer.json())?);
            let scheduled = record.at("/scheduling").is_object()
                || record.at("/governance/timing/admitted_us").is_null();
            (record.at("/governance/outcome").is_object() && scheduled).then_some(record)
        });
        record.await
    }

    /// The record of the latest request, for a client that left before it knew its id.
    pub(crate) async fn latest(&self) -> Record {
        let url = format!("{}/admin/v1/decisions?count=1", self.running.admin_url());
        let list = wire::get(&url).await.json();
        let id = list.pointer("/decisions/0/request").and_then(Value::as_str);
        self.record(id.expect("there was a request")).await
    }

    pub(crate) async fn metrics(&self) -> Page {
        let answer = wire::get(&format!("{}/metrics", self.running.admin_url())).await;
        Page(String::from_utf8(answer.body.to_vec()).expect("a page is UTF-8"))
    }

    /// Ends it, and checks that its ledger is in order.
    pub(crate) fn stop(self) {
        assert!(self.running.stop().success());
        let data = self.directory.path().join("data");
        let Output {
            status,
            stdout,
            stderr,
        } = run(headpond()
            .args(["ledger", "verify", "--data-dir"])
            .arg(data));
        let (stdout, stderr) = (
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr),
        );
        assert!(
            status.success(),
            "the ledger is not in order: {stdout}{stderr}"
        );
    }
}

/// Token counts, whoever reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl Tokens {
    /// Reads a `usage` object of any of the APIs.
    pub(crate) fn of(usage: &Value) -> Self {
        let first = |names: &[&str]| names.iter().find_map(|name| usage.pointer(name)?.as_u64());
        let cached = first(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cache_read_input_tokens",
        ]);
        let cached = cached.unwrap_or(0);
        // The Messages API leaves out of `input_tokens` what a cache was read for or written with.
        let beside = if usage.get("cache_read_input_tokens").is_some() {
            cached
        } else {
            0
        };
        let written = first(&["/cache_creation_input_tokens"]).unwrap_or(0);
        Self {
            prompt: first(&["/prompt_tokens", "/input_tokens"]).expect("a usage object")
                + beside
                + written,
            cached,
            output: first(&["/completion_tokens", "/output_tokens"]).unwrap_or(0),
        }
    }
}

/// What headpond says about one request.
pub(crate) struct Record(Value);

impl Record {
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or(&Value::Null)
    }

    pub(crate) fn state(&self) -> &str {
        self.at("/governance/settlement/state")
            .as_str()
            .unwrap_or_default()
    }

    pub(crate) fn reason(&self) -> &str {
        self.at("/governance/settlement/reason")
            .as_str()
            .unwrap_or_default()
    }

    /// Whether the tokens were counted by headpond because the engine did not say.
    pub(crate) fn estimated(&self) -> bool {
        self.at("/governance/settlement/estimated") == true
    }

    /// What the ledger charged.
    pub(crate) fn charged(&self) -> Tokens {
        let count = |name: &str| {
            self.at(&format!("/governance/settlement/{name}"))
                .as_u64()
                .unwrap_or(0)
        };
        Tokens {
            prompt: count("prompt_tokens"),
            cached: count("cached_tokens"),
            output: count("output_tokens"),
        }
    }

    fn attempts(&self) -> impl Iterator<Item = &Value> {
        let calls = self
            .at("/scheduling/calls")
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        calls
            .iter()
            .filter_map(|call| call["attempts"].as_array())
            .flatten()
    }

    /// The endpoint of every attempt with how it ended.
    pub(crate) fn journey(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.attempts()
            .map(|attempt| (text(&attempt["endpoint"]), text(&attempt["end"])))
            .collect()
    }

    /// Where it ran in the end.
    pub(crate) fn endpoint(&self) -> String {
        self.journey()
            .pop()
            .map(|(endpoint, _)| endpoint)
            .expect("it was dispatched")
    }

    /// What was known of each endpoint when the last attempt was dispatched, by name.
    pub(crate) fn candidates(&self) -> BTreeMap<String, Value> {
        let list = self
            .attempts()
            .last()
            .and_then(|attempt| attempt["decision"]["candidates"].as_array());
        let name = |candidate: &Value| candidate["endpoint"].as_str().expect("a name").to_owned();
        list.expect("candidates")
            .iter()
            .map(|candidate| (name(candidate), candidate.clone()))
            .collect()
    }
}

/// A stream of events.
pub(crate) struct Stream {
    open: wire::Open,
    text: String,
}

impl Stream {
    pub(crate) fn id(&self) -> String {
        let id = self
            .open
            .response
            .headers()
            .get("x-request-id")
            .expect("every answer has an id");
        id.to_str().expect("visible ASCII").to_owned()
    }

    pub(crate) fn status(&self) -> u16 {
        self.open.response.status().as_u16()
    }

    /// Reads until so many events with data have come. False: the stream ended before.
    pub(crate) async fn read(&mut self, events: usize) -> bool {
        while self.events().count() < events {
            match self.open.response.body_mut().frame().await {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.text.push_str(
                        std::str::from_utf8(&data)
                            .expect("an engine's chunks end between characters"),
                    );
                }
                Some(Err(_)) | None => return false,
            }
        }
        true
    }

    /// Reads to the end.
    pub(crate) async fn finish(&mut self) -> &str {
        self.read(usize::MAX).await;
        &self.text
    }

    fn events(&self) -> impl Iterator<Item = &str> {
        data(&self.text)
    }
}

/// The data of the events of a stream.
pub(crate) fn data(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("data: "))
}

/// The events of a stream that are JSON.
pub(crate) fn events(text: &str) -> impl Iterator<Item = Value> {
    data(text)
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).expect("events are JSON"))
}
