//! Flow control as callers and operators see it: every outcome with its code, its advice, its record and its numbers.

use std::sync::Arc;

use governance_context::{Band, Context, TtlSource};
use http::StatusCode;
use scheduler_proxy::SchedulerProxy;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::rig::{
    Answer, assert_at_rest, chat_request, completion_request, context, frame, metric, post,
    proxy_with, read, record, until,
};
use crate::stub::{Reply, Step, Stub, chat, finish, token};

async fn ask_as(proxy: &SchedulerProxy, n: u64, band: i32) -> Answer {
    let context = Context {
        band: Band(band),
        ..context(n)
    };
    read(proxy.call(context, completion_request()).await).await
}

/// One engine that works on one request for ever, and a pool with these settings.
async fn occupied(settings: Value) -> (Stub, SchedulerProxy, tokio::task::JoinSet<()>) {
    let engine = Stub::start(|_, _| Reply::Never).await;
    let proxy = proxy_with(&[&engine], settings);
    let mut running = tokio::task::JoinSet::new();
    let caller = proxy.clone();
    running.spawn(async move {
        caller.call(context(0), completion_request()).await;
    });
    until("the engine is occupied", || proxy.snapshot().bookings == 1).await;
    (engine, proxy, running)
}

#[tokio::test]
async fn every_refusal_says_who_why_and_when_to_come_back() {
    for (settings, band, code, because) in [
        (
            json!({"room": 1, "queue": {"requests": 0}, "other_bands": {"requests": 5}}),
            0,
            "queue_full",
            json!("pool"),
        ),
        (
            json!({"room": 1, "queue": {"flow": {"requests": 0}}}),
            0,
            "queue_full",
            json!("flow"),
        ),
        (
            json!({"room": 1, "bands": [{"band": 0, "requests": 0}]}),
            0,
            "queue_full",
            json!("band"),
        ),
        (
            json!({"quota": {"in_flight_wtu": 1, "over": "refuse"}}),
            0,
            "over_quota",
            json!("flow"),
        ),
        (
            json!({"bands": [{"band": 0, "quota": {"wtu_per_s": 1, "over": "refuse"}}]}),
            0,
            "over_quota",
            json!("band"),
        ),
        (json!({"room": 1}), -1, "shed", Value::Null),
        (
            json!({"room": 1, "bands": [{"band": 7, "ttl_ms": 30, "refuse": "never"}]}),
            7,
            "queue_expired",
            Value::Null,
        ),
    ] {
        let (_engine, proxy, mut running) = occupied(settings.clone()).await;
        let answer = ask_as(&proxy, 1, band).await;
        let told = format!("{settings}: {} {:?}", answer.text, answer.headers);
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{told}");
        assert_eq!(answer.headers["x-headpond-reason"], code, "{told}");
        assert_eq!(answer.headers["x-headpond-work"], "none", "{told}");
        for header in ["retry-after", "retry-after-ms", "x-headpond-queue-ms"] {
            let number = answer.headers[header].to_str().expect("a number");
            assert!(number.parse::<u64>().is_ok(), "{told}");
        }
        assert!(
            answer.text.contains("Wait as long as retry-after"),
            "{told}"
        );
        let record = record(&proxy, 1);
        assert_eq!(record["reason"], code, "{told}");
        assert_eq!(record["refusal"]["because"], because, "{told}");
        assert!(record["refusal"]["retry_after_ms"].is_f64(), "{told}");
        let band = format!("band=\"{band}\"");
        let outcome = format!("outcome=\"{code}\"");
        assert_eq!(metric(&proxy, &["outcomes_total", &band, &outcome]), 1);
        running.shutdown().await;
        assert_at_rest(&proxy);
    }
}

#[tokio::test]
async fn an_expired_wait_names_the_limit_that_ended_it() {
    for (band_ms, own_ms, limit, words) in [
        (
            40,
            20_000,
            json!({"by": "band", "ms": 40}),
            "40 ms that a request of its priority band may wait",
        ),
        (
            20_000,
            50,
            json!({"by": "timeouts.queue", "ms": 50}),
            "50 ms that timeouts.queue lets a request wait",
        ),
    ] {
        // What was in force at the start is not what is in force.
        let settings = |ttl_ms: u64| json!({"room": 1, "bands": [{"band": 7, "ttl_ms": ttl_ms, "refuse": "never"}]});
        let (_engine, proxy, mut running) = occupied(settings(30_000)).await;
        proxy.reconfigure(crate::rig::config(settings(band_ms)).flow);
        let context = Context {
            band: Band(7),
            ttl_ms: own_ms,
            ttl_by: TtlSource::Gateway,
            ..context(1)
        };
        let answer = read(proxy.call(context, completion_request()).await).await;
        assert_eq!(answer.headers["x-headpond-reason"], "queue_expired");
        assert!(answer.text.contains(words), "{}", answer.text);
        assert_eq!(record(&proxy, 1)["wait_limit"], limit);
        running.shutdown().await;
    }
}

#[tokio::test]
async fn whoever_leaves_the_queue_is_counted_as_leaving() {
    let (_engine, proxy, mut running) = occupied(json!({"room": 1})).await;
    let caller = proxy.clone();
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(async move {
        caller.call(context(1), completion_request()).await;
    });
    until("one waits", || proxy.snapshot().queue_length == 1).await;
    assert_eq!(metric(&proxy, &["band_queue_length", "band=\"0\""]), 1);
    assert_eq!(metric(&proxy, &["band_running{", "band=\"0\""]), 1);
    assert_eq!(metric(&proxy, &["flow_queue_length", "flow=\"f\""]), 1);
    waiting.shutdown().await;
    let outcomes = |outcome| metric(&proxy, &["outcomes_total", outcome]);
    assert_eq!(outcomes("client_closed"), 1);
    running.shutdown().await;
    assert_eq!(outcomes("client_closed"), 1, "after dispatch it is no wait");
    assert_eq!(outcomes("dispatched"), 1);
    assert_eq!(metric(&proxy, &["band_queue_length", "band=\"0\""]), 0);
    assert_at_rest(&proxy);
}

fn with_comments(mut request: http::Request<bytes::Bytes>) -> http::Request<bytes::Bytes> {
    let wish = http::HeaderValue::from_static("1");
    request
        .headers_mut()
        .insert("x-headpond-queue-comments", wish);
    request
}

/// One engine whose first answer ends when the gate opens, so that a second request waits behind it.
async fn gated(settings: Value, then: Reply) -> (Stub, SchedulerProxy, Arc<Notify>) {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |n, _| match n {
            0 => Reply::Stream(vec![token("a"), Step::Gate(Arc::clone(&gate)), finish()]),
            _ => then.clone(),
        })
        .await
    };
    let mut settings = settings;
    settings["room"] = 1.into();
    settings["queue"]["comments_after_ms"] = 10.into();
    settings["queue"]["comments_every_ms"] = 20.into();
    let proxy = proxy_with(&[&engine], settings);
    (engine, proxy, gate)
}

#[tokio::test]
async fn whoever_asks_for_it_hears_of_its_place_until_the_stream_follows() {
    let (_engine, proxy, gate) = gated(json!({}), chat()).await;
    let mut first = proxy.call(context(0), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let mut told = proxy.call(context(1), with_comments(chat_request())).await;
    assert_eq!(told.status(), 200);
    assert_eq!(
        told.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let mut heard = String::new();
    while !heard.contains("position=0") {
        heard += &frame(&mut told).await.expect("it still waits");
    }
    assert!(heard.starts_with(": headpond queue "), "{heard}");
    gate.notify_one();
    drop(read(first).await);
    let rest = read(told).await.text;
    let stream = rest.find("data: ").expect("the engine's own stream");
    assert!(
        rest[..stream]
            .split("\n\n")
            .all(|line| line.is_empty() || line.starts_with(": headpond ")),
        "{rest}"
    );
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    assert_eq!(record(&proxy, 1)["outcome"], "completed");
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_refusal_after_the_comments_is_an_event_of_the_family() {
    // Long after the first comment.
    let settings = json!({"queue": {"ttl_ms": 4_000}});
    let (_engine, proxy, gate) = gated(settings, chat()).await;
    let mut first = proxy.call(context(0), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let messages = post(
        "/v1/messages",
        r#"{"model":"m","stream":true,"messages":[]}"#,
    );
    for (n, request, start) in [
        (1, chat_request(), "data: {\"error\":{"),
        (2, messages, "event: error\ndata: {"),
    ] {
        let told = read(proxy.call(context(n), with_comments(request)).await).await;
        assert_eq!(told.status, 200);
        let (comments, event) = told.text.split_at(told.text.find(start).expect(start));
        assert!(comments.starts_with(": headpond queue"), "{}", told.text);
        assert!(event.contains("\"code\":\"queue_expired\""), "{event}");
        assert!(event.contains("\"retry_after_ms\":"), "{event}");
        assert_eq!(record(&proxy, n)["reason"], "queue_expired");
    }
    gate.notify_one();
    drop(read(first).await);
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn an_engines_refusal_after_the_comments_keeps_its_words() {
    let bad = crate::stub::json(
        400,
        r#"{"error":{"message":"bad image","type":"BadRequestError"}}"#,
    );
    let (_engine, proxy, gate) = gated(json!({}), bad).await;
    let mut first = proxy.call(context(0), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let mut told = proxy.call(context(1), with_comments(chat_request())).await;
    assert!(frame(&mut told).await.is_some());
    gate.notify_one();
    drop(read(first).await);
    let text = read(told).await.text;
    assert!(
        text.contains("bad image") && text.contains("\"code\":400"),
        "{text}"
    );
    assert_eq!(record(&proxy, 1)["outcome"], "rejected");
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_long_or_unreadable_refusal_after_the_comments_is_still_told_as_the_engines() {
    let long = format!(
        r#"{{"error":{{"message":"{}","type":"BadRequestError"}}}}"#,
        "too many images ".repeat(8 << 10)
    );
    for (status, reply, words) in [
        (400, crate::stub::json(400, &long), "too many images"),
        (
            404,
            Reply::Whole(404, "text/plain", "no such adapter".into()),
            "no such adapter",
        ),
    ] {
        let (_engine, proxy, gate) = gated(json!({}), reply).await;
        let mut first = proxy.call(context(0), chat_request()).await;
        assert!(frame(&mut first).await.is_some());
        let mut told = proxy.call(context(1), with_comments(chat_request())).await;
        assert!(frame(&mut told).await.is_some());
        gate.notify_one();
        drop(read(first).await);
        let text = read(told).await.text;
        let code = format!("\"code\":{status}");
        assert!(text.contains(words) && text.contains(&code), "{text}");
        assert!(!text.contains("without a stream"), "{text}");
        let error = text.split("\n\n").find(|event| event.starts_with("data:"));
        assert!(error.expect("an event").len() < 2048, "it is cut");
        let record = record(&proxy, 1);
        assert_eq!(record["outcome"], "rejected");
        assert_eq!(record["attempts"][0]["end"], "rejected");
        assert_at_rest(&proxy);
    }
}

#[tokio::test]
async fn whoever_leaves_while_it_is_told_leaves_the_queue() {
    let (_engine, proxy, gate) = gated(json!({}), chat()).await;
    let mut first = proxy.call(context(0), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let told = proxy.call(context(1), with_comments(chat_request())).await;
    assert_eq!(proxy.snapshot().queue_length, 1);
    drop(told);
    assert_eq!(proxy.snapshot().queue_length, 0);
    assert_eq!(record(&proxy, 1)["outcome"], "client_closed");
    gate.notify_one();
    drop(read(first).await);
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn without_the_wish_and_without_a_stream_the_status_stays() {
    let settings = json!({"queue": {"ttl_ms": 100}});
    let (_engine, proxy, gate) = gated(settings, chat()).await;
    let mut first = proxy.call(context(0), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    for (n, request) in [
        (1, chat_request()),
        (2, with_comments(completion_request())),
    ] {
        let answer = read(proxy.call(context(n), request).await).await;
        assert_eq!(answer.status, 429, "{}", answer.text);
        let waited = answer.headers["x-headpond-queue-ms"]
            .to_str()
            .expect("text");
        assert!(waited.parse::<u64>().expect("a number") >= 100, "{waited}");
    }
    gate.notify_one();
    drop(read(first).await);
}
