//! A scheduler in front of scripted engines, and what a caller sees.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use governance_context::{
    AttemptId, Band, Context, MicroWtu, PathHash, RequestId, Targets, TtlSource,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use scheduler_proxy::{Body, Config, SchedulerProxy};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::stub::Stub;

/// Nothing in a test may take longer.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

pub(crate) fn config(section: Value) -> Config {
    let file = serde_json::from_value(section).expect("a section in the right form");
    Config::check(file).expect("allowed values")
}

/// Milliseconds after which silence is a hang, for tests in which no engine hangs: their machine may stop for a while.
pub(crate) const NEVER_HUNG_MS: u64 = 3_600_000;

/// A scheduler for these engines, with settings merged into the section.
pub(crate) fn proxy_with(engines: &[&Stub], settings: Value) -> SchedulerProxy {
    let mut section = json!({
        "endpoints": engines
            .iter()
            .enumerate()
            .map(|(index, engine)| json!({"url": engine.url(), "name": format!("e{index}")}))
            .collect::<Vec<_>>(),
        "policy": "round-robin",
        "queue": {"no_endpoint_ttl_ms": 0},
        "timeouts": {"hang_floor_ms": NEVER_HUNG_MS},
    });
    let Value::Object(settings) = settings else {
        panic!("settings are an object");
    };
    for (key, value) in settings {
        section[key] = value;
    }
    SchedulerProxy::new(config(section), 1)
}

pub(crate) fn proxy(engines: &[&Stub]) -> SchedulerProxy {
    proxy_with(engines, json!({}))
}

/// The n-th context; each is another request and attempt.
pub(crate) fn context(n: u64) -> Context {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    Context {
        pool: "default".parse().expect("a name"),
        attempt: AttemptId::new(1_700_000_000_000, random),
        request: RequestId::new(1_700_000_000_000, random),
        tenant: "t".parse().expect("a name"),
        account_path: PathHash::of(["t"]),
        fairness: "f".parse().expect("a name"),
        weight: 1,
        band: Band(0),
        objective: None,
        ttl_ms: 20_000,
        ttl_by: TtlSource::Unsaid,
        targets: Targets::default(),
        // Unknown: the scheduler takes its own estimate.
        prompt_tokens: 0,
        output_bound: 100,
        held: MicroWtu(1),
        cache_domain: "d".parse().expect("a name"),
        policy_version: "v1".parse().expect("a name"),
    }
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Bytes> {
    Request::post(path)
        .header("content-type", "application/json")
        .body(body.into())
        .expect("a valid request")
}

pub(crate) fn chat_request() -> Request<Bytes> {
    post(
        "/v1/chat/completions",
        r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#,
    )
}

pub(crate) fn completion_request() -> Request<Bytes> {
    post(
        "/v1/completions",
        r#"{"model":"m","prompt":"hello","max_tokens":5}"#,
    )
}

pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (head, body) = response.into_parts();
    let body = tokio::time::timeout(LIMIT, body.collect())
        .await
        .expect("the answer ends")
        .expect("the answer is complete");
    Answer {
        status: head.status,
        headers: head.headers,
        text: String::from_utf8(body.to_bytes().to_vec()).expect("text"),
    }
}

pub(crate) async fn ask(proxy: &SchedulerProxy, n: u64, request: Request<Bytes>) -> Answer {
    let response = tokio::time::timeout(LIMIT, proxy.call(context(n), request))
        .await
        .expect("every call is answered");
    read(response).await
}

/// The next piece of a streamed answer.
pub(crate) async fn frame(response: &mut Response<Body>) -> Option<String> {
    let frame = tokio::time::timeout(LIMIT, response.body_mut().frame())
        .await
        .expect("something comes")?;
    let data = frame.expect("no error").into_data().expect("data");
    Some(String::from_utf8(data.to_vec()).expect("text"))
}

/// The value of a metric's only sample that contains all of `parts`.
pub(crate) fn metric(proxy: &SchedulerProxy, parts: &[&str]) -> u64 {
    let mut page = String::new();
    proxy.encode_metrics(&mut page);
    let found: Vec<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)))
        .collect();
    match found.as_slice() {
        [] => 0,
        [line] => {
            let (_, value) = line.rsplit_once(' ').expect("a sample");
            value.parse().expect("a whole number")
        }
        many => panic!("{parts:?} is ambiguous: {many:?}"),
    }
}

/// Everything that counts something in progress is zero.
pub(crate) fn assert_at_rest(proxy: &SchedulerProxy) {
    let snapshot = proxy.snapshot();
    assert_eq!(
        (
            snapshot.bookings,
            snapshot.queue_length,
            snapshot.queue_bytes
        ),
        (0, 0, 0)
    );
    for endpoint in &snapshot.endpoints {
        let gauges = (
            endpoint.bookings,
            endpoint.prefilling,
            endpoint.pending_tokens,
            endpoint.context_tokens,
        );
        assert_eq!(gauges, (0, 0, 0, 0), "{}", endpoint.name);
    }
    let mut page = String::new();
    proxy.encode_metrics(&mut page);
    for line in page.lines() {
        let in_progress = ["queue_length", "queue_bytes", "in_flight"]
            .iter()
            .any(|name| line.contains(name));
        assert!(
            line.starts_with('#') || !in_progress || line.ends_with(" 0"),
            "{line}"
        );
    }
}

/// Lets other tasks run until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait)
        .await
        .unwrap_or_else(|_| panic!("it never came to this: {what}"));
}

pub(crate) fn record(proxy: &SchedulerProxy, n: u64) -> Value {
    let record = proxy
        .records(&context(n).request)
        .expect("the request is remembered");
    record["calls"][0].clone()
}

/// Calls at once, all answered.
pub(crate) async fn ask_many(proxy: &SchedulerProxy, range: Range<u64>) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    for n in range {
        let proxy = proxy.clone();
        calls.spawn(async move {
            let request = if n % 2 == 0 {
                chat_request()
            } else {
                completion_request()
            };
            ask(&proxy, n, request).await
        });
    }
    calls.join_all().await
}
