//! A scripted scheduler, a ledger in a temporary directory, and short words for requests.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use governance_context::{AttemptId, Context, RequestId, Work};
use governance_core::account::AccountId;
use governance_core::keys::{KeyText, Pepper};
use governance_core::ledger::Balance;
use governance_proxy::config::{Config, File};
use governance_proxy::record::Record;
use governance_proxy::{Body, BoxError, Governance, Reached, Scheduler, Unreachable};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full};
use ledger_store::{Options, SqliteLedger};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Sleep;

/// Longest anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// One piece of a scripted stream.
#[derive(Clone)]
pub(crate) enum Piece {
    Data(Bytes),
    Wait(Duration),
    /// The stream breaks.
    Cut,
    /// The scheduler panics.
    Panic,
    /// Nothing more comes, ever.
    Hang,
}

pub(crate) fn data(text: &str) -> Piece {
    Piece::Data(Bytes::copy_from_slice(text.as_bytes()))
}

/// What the scheduler does with one call.
#[derive(Clone)]
pub(crate) enum Play {
    Whole(u16, Vec<(&'static str, String)>, String),
    Stream(Vec<Piece>),
    /// Waits, then does the rest.
    After(Duration, Box<Play>),
    Unreachable(Reached),
    Panic,
    Hang,
}

pub(crate) fn ok(body: Value) -> Play {
    Play::Whole(200, Vec::new(), body.to_string())
}

type Script = dyn Fn(&Context, &Request<Bytes>) -> Play + Send + Sync;

/// A scheduler that does what the test says, and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct Stage {
    script: Arc<Script>,
    pub(crate) calls: Arc<Mutex<Vec<(Context, Request<Bytes>)>>>,
    /// Calls whose answer was dropped before its end.
    pub(crate) cancelled: Arc<AtomicUsize>,
    /// Calls that are being answered.
    pub(crate) open: Arc<AtomicUsize>,
    pub(crate) work: Arc<Mutex<Option<Work>>>,
    /// Tokens handed out per attempt: what the engine would say it generated.
    pub(crate) truth: Arc<Mutex<BTreeMap<AttemptId, u64>>>,
}

impl Stage {
    pub(crate) fn new(
        script: impl Fn(&Context, &Request<Bytes>) -> Play + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Arc::new(script),
            calls: Arc::default(),
            cancelled: Arc::default(),
            open: Arc::default(),
            work: Arc::default(),
            truth: Arc::default(),
        }
    }

    pub(crate) fn always(play: Play) -> Self {
        Self::new(move |_, _| play.clone())
    }

    pub(crate) fn call_count(&self) -> usize {
        self.calls.lock().expect("unpoisoned").len()
    }

    pub(crate) fn last_call(&self) -> (Context, Request<Bytes>) {
        self.calls
            .lock()
            .expect("unpoisoned")
            .last()
            .cloned()
            .expect("a call was made")
    }

    pub(crate) fn last_body(&self) -> Value {
        serde_json::from_slice(self.last_call().1.body()).expect("the forwarded body is JSON")
    }
}

/// Counts a call as cancelled unless it is told that it ended.
struct Open {
    stage: Stage,
    attempt: AttemptId,
    ended: bool,
}

impl Open {
    fn count(&self, bytes: &Bytes) {
        let tokens = memchr::memmem::find_iter(bytes, b"\"delta\"").count() as u64;
        let mut truth = self.stage.truth.lock().expect("unpoisoned");
        *truth.entry(self.attempt).or_default() += tokens;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stage.open.fetch_sub(1, Ordering::SeqCst);
        if !self.ended {
            self.stage.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

pub(crate) struct Played {
    pieces: VecDeque<Piece>,
    waiting: Option<Pin<Box<Sleep>>>,
    open: Open,
}

impl http_body::Body for Played {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                std::task::ready!(waiting.as_mut().poll(context));
                self.waiting = None;
            }
            match self.pieces.pop_front() {
                None => {
                    self.open.ended = true;
                    return Poll::Ready(None);
                }
                Some(Piece::Data(bytes)) => {
                    self.open.count(&bytes);
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Piece::Wait(time)) => self.waiting = Some(Box::pin(tokio::time::sleep(time))),
                Some(Piece::Cut) => return Poll::Ready(Some(Err("the engine went away".into()))),
                Some(Piece::Panic) => panic!("scripted"),
                Some(Piece::Hang) => {
                    self.pieces.push_front(Piece::Hang);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Scheduler for Stage {
    type Body = Played;

    async fn call(
        &self,
        context: &Context,
        request: Request<Bytes>,
    ) -> Result<Response<Played>, Unreachable> {
        let mut play = (self.script)(context, &request);
        self.calls
            .lock()
            .expect("unpoisoned")
            .push((context.clone(), request));
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut open = Open {
            stage: self.clone(),
            attempt: context.attempt,
            ended: false,
        };
        loop {
            let (status, headers, pieces, kind) = match play {
                Play::After(time, rest) => {
                    tokio::time::sleep(time).await;
                    play = *rest;
                    continue;
                }
                Play::Panic => panic!("scripted"),
                Play::Hang => std::future::pending().await,
                Play::Unreachable(reached) => {
                    open.ended = true;
                    return Err(Unreachable {
                        reached,
                        source: "scripted".into(),
                    });
                }
                Play::Whole(status, headers, body) => (
                    status,
                    headers,
                    vec![Piece::Data(body.into())],
                    "application/json",
                ),
                Play::Stream(pieces) => {
                    (200, Vec::new(), pieces, "text/event-stream; charset=utf-8")
                }
            };
            let mut response = Response::new(Played {
                pieces: pieces.into(),
                waiting: None,
                open,
            });
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            let out = response.headers_mut();
            out.insert("content-type", kind.parse().expect("a header value"));
            for (name, value) in headers {
                out.insert(name, value.parse().expect("a header value"));
            }
            return Ok(response);
        }
    }

    fn work_done(&self, _attempt: &AttemptId) -> Option<Work> {
        *self.work.lock().expect("unpoisoned")
    }
}

/// L1 with everything around it.
pub(crate) struct Rig {
    pub(crate) governance: Governance<Stage>,
    pub(crate) ledger: SqliteLedger,
    pub(crate) stage: Stage,
    pub(crate) dir: TempDir,
}

pub(crate) const ADMIN_TOKEN: &str = "admin-token-of-the-tests";

/// The key with this number; the same in every test.
pub(crate) fn key(number: u8) -> String {
    let mut random = [number; 44];
    random[0] = number / 32;
    KeyText::generate(&random).reveal().to_owned()
}

/// Prompt `"hi"` costs little; output is 0.002 WTU a token, prompt 0.001, cached 0.0005.
pub(crate) fn standard(dir: &TempDir) -> Value {
    let secret = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a temporary file");
        json!({ "file": path })
    };
    let key_file = |name: &str, number: u8| secret(name, &key(number));
    json!({
        "models": [
            {"name": "demo", "aliases": ["demo-alias"], "served_as": "org/demo-7b",
             "context_tokens": 4096, "max_output_tokens": 1024, "default_max_tokens": 64,
             "price": {"uncached": "0.001", "cached": "0.0005", "output": "0.002"}},
            {"name": "free", "context_tokens": 4096,
             "price": {"uncached": "0", "output": "0"}},
            {"name": "unpriced", "context_tokens": 4096},
            {"name": "hidden", "context_tokens": 4096,
             "price": {"uncached": "0.001", "output": "0.002"}},
        ],
        "tenants": [
            {"name": "acme", "models": ["demo", "free", "unpriced"], "projects": [
                {"name": "app", "users": [{"name": "ann"}], "keys": [
                    {"name": "main", "user": "ann", "secret": key_file("k1", 1)},
                    {"name": "second", "user": "ann", "secret": key_file("k2", 2)},
                    {"name": "lead", "role": "lead", "secret": key_file("k3", 3)},
                    {"name": "expired", "expires": 1, "secret": key_file("k4", 4)},
                ]},
                {"name": "other", "keys": [{"name": "main", "secret": key_file("k5", 5)}]},
            ]},
            {"name": "umbrella", "band": 5, "weight": 3, "projects": [
                {"name": "lab", "keys": [{"name": "main", "secret": key_file("k6", 6)}]},
            ]},
        ],
        "admin_token": secret("admin", ADMIN_TOKEN),
        "installation_secret": secret("installation", "the installation of the tests"),
        "access_log": true,
    })
}

impl Rig {
    pub(crate) async fn new(stage: Stage) -> Self {
        Self::with(stage, |_| {}).await
    }

    /// A rig whose configuration is the standard one, changed.
    pub(crate) async fn with(stage: Stage, change: impl FnOnce(&mut Value)) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        Self::start(stage, dir, change).await
    }

    /// The same ledger under the standard configuration, changed in another way.
    pub(crate) async fn restart(self, change: impl FnOnce(&mut Value)) -> Self {
        let Self {
            governance,
            ledger,
            stage,
            dir,
        } = self;
        drop(governance);
        ledger.close().await.expect("the ledger answers");
        Self::start(stage, dir, change).await
    }

    async fn start(stage: Stage, dir: TempDir, change: impl FnOnce(&mut Value)) -> Self {
        let mut config = standard(&dir);
        change(&mut config);
        let file: File = serde_json::from_value(config).expect("the shape of a configuration");
        let config = Config::check(file).expect("a valid configuration");
        let path = dir.path().join("ledger.db");
        let mut options = Options::new(Pepper([7; 32]));
        // Tests on a busy machine are not about how fast its disk is.
        options.patience = PATIENCE;
        let ledger = SqliteLedger::open(&path, options).expect("a new ledger");
        let governance = Governance::new(config, ledger.clone(), stage.clone());
        let governance = governance.await.expect("L1 starts");
        Self {
            governance,
            ledger,
            stage,
            dir,
        }
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        Answer::read(self.governance.handle(request).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, &key(1), body)).await
    }

    pub(crate) async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", chat(body)).await
    }

    /// Sends a streaming request and hands out the body, unread.
    pub(crate) async fn open(&self, path: &str, body: Value) -> Response<Body> {
        self.governance.handle(post(path, &key(1), body)).await
    }

    pub(crate) async fn admin(&self, method: &str, path: &str, token: &str, body: Value) -> Answer {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .body(Full::from(body))
            .expect("a request");
        Answer::read(self.governance.admin(request).await).await
    }

    pub(crate) fn balances(&self, account: &str) -> Ready<Vec<Balance>> {
        let account = AccountId::parse(account).expect("an account id");
        ready(self.ledger.balances(&account).expect("the ledger answers"))
    }

    /// Micro-WTU used and held under the first policy in WTU of an account.
    pub(crate) async fn wtu(&self, account: &str) -> (u64, u64) {
        let balances = self.balances(account).await;
        let balance = balances
            .iter()
            .find(|b| b.unit.as_str() == "uwtu")
            .expect("metered in WTU");
        (balance.used, balance.held)
    }

    pub(crate) fn record(&self, answer: &Answer) -> Arc<Record> {
        self.governance
            .record(&answer.request_id())
            .expect("a record")
    }

    pub(crate) fn newest(&self) -> Arc<Record> {
        self.governance
            .records(1)
            .first()
            .cloned()
            .expect("a record")
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        self.governance.encode_metrics(&mut text);
        text
    }

    /// Whether the newest request has its last word.
    pub(crate) fn records_settled(&self) -> bool {
        self.governance
            .records(1)
            .first()
            .is_some_and(|record| record.timing.total_us.is_some())
    }

    /// The value of a metric line that starts with this.
    pub(crate) fn metric(&self, start: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find(|line| line.starts_with(start));
        line.and_then(|line| line.rsplit(' ').next())
            .map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Nothing is running, held or counted as running any more, and the ledger agrees with itself.
    pub(crate) async fn assert_quiet(&self) {
        self.ledger.flush().await.expect("the ledger answers");
        assert_eq!(self.metric("headpond_governance_requests_in_flight "), 0.0);
        assert_eq!(self.metric("headpond_governance_holds_open "), 0.0);
        assert_eq!(self.stage.open.load(Ordering::SeqCst), 0);
        let report = self.ledger.verify().await.expect("the ledger can be read");
        assert!(report.is_green(), "{:?}", report.violations);
    }
}

/// Adds to an account of the standard configuration: `/tenants/0/projects/0`.
pub(crate) fn limit(config: &mut Value, pointer: &str, limits: Value) {
    config
        .pointer_mut(pointer)
        .expect("a place in the configuration")["limits"] = limits;
}

pub(crate) fn post(path: &str, key: &str, body: Value) -> Request<Full<Bytes>> {
    Request::builder()
        .method("POST")
        .uri(path)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .expect("a request")
}

pub(crate) fn get(path: &str, key: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .uri(path)
        .header("authorization", format!("Bearer {key}"))
        .body(Full::default())
        .expect("a request")
}

/// A chat request: `body` over a model and one short message.
pub(crate) fn chat(body: Value) -> Value {
    let mut request = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in body.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// A whole chat answer with this usage.
pub(crate) fn answer(prompt: u64, cached: u64, output: u64) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": "org/demo-7b",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
                  "prompt_tokens_details": {"cached_tokens": cached}},
    })
}

/// A chunk of a chat stream with running usage.
pub(crate) fn chunk(text: &str, prompt: u64, output: u64) -> String {
    format!(
        "data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{}}},\"finish_reason\":null}}],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{output}}}}}\n\n",
        Value::from(text),
        prompt + output,
    )
}

/// The last chunk of a chat stream, with nothing but usage.
pub(crate) fn usage_chunk(prompt: u64, cached: u64, output: u64) -> String {
    format!(
        "data: {{\"id\":\"c\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":{output},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\n",
        prompt + output,
    )
}

pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// A whole chat stream of `output` one-token chunks.
pub(crate) fn whole_stream(prompt: u64, output: u64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = (1..=output).map(|n| data(&chunk("x", prompt, n))).collect();
    pieces.push(data(&usage_chunk(prompt, 0, output)));
    pieces.push(data(DONE));
    pieces
}

/// An answer, read to its end.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Answer {
    pub(crate) async fn read(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = body
            .collect()
            .await
            .expect("bodies of L1 do not fail")
            .to_bytes();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            bytes,
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.bytes.to_vec()).expect("UTF-8")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("ASCII"))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn request_id(&self) -> RequestId {
        self.header("x-request-id")
            .parse()
            .expect("every answer has a request id")
    }
}

/// Drives a request until L2 was called for the `count`th time; the request is still open then.
pub(crate) async fn until_called<F: Future>(rig: &Rig, count: usize, mut request: Pin<&mut F>) {
    while rig.stage.call_count() < count {
        let polled = std::future::poll_fn(|context| Poll::Ready(request.as_mut().poll(context)));
        assert!(polled.await.is_pending(), "answered without a call");
        tokio::task::yield_now().await;
    }
}

/// Waits, politely, until something has become true.
pub(crate) async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::task::yield_now().await;
    }
}

/// Reads one frame of a body.
pub(crate) async fn frame(body: &mut Body) -> Option<Bytes> {
    let frame = body.frame().await?.expect("bodies of L1 do not fail");
    Some(frame.into_data().expect("data"))
}

/// The size of a body that is known, for answers that must not be chunked.
pub(crate) fn exact_size(response: &Response<Body>) -> Option<u64> {
    response.body().size_hint().exact()
}
