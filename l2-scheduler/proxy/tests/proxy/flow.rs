//! Flow control as callers and operators see it: every outcome with its code, its advice, its record and its numbers.

use governance_context::{Band, Context};
use http::StatusCode;
use scheduler_proxy::SchedulerProxy;
use serde_json::{Value, json};

use crate::rig::{
    Answer, assert_at_rest, completion_request, context, metric, proxy_with, read, record, until,
};
use crate::stub::{Reply, Stub};

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
