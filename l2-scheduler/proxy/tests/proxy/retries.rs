//! When another endpoint is asked, and when not any more.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;

use crate::rig::{
    ask, assert_at_rest, chat_request, completion_request, context, frame, metric, post, proxy,
    proxy_with, record,
};
use crate::stub::{Place, Reply, Step, Stub, chat, completion, json as answer_json, send, token};

fn kinds_of_failure() -> Vec<(&'static str, Reply)> {
    let error = "data: {\"error\":{\"message\":\"EngineCore encountered an issue\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n";
    vec![
        ("a 500", answer_json(500, "{}")),
        ("a 503", answer_json(503, "{}")),
        ("a 429", answer_json(429, "{}")),
        ("a closed connection", Reply::Close),
        ("a cut after the headers", Reply::Stream(vec![Step::Cut])),
        (
            "a cut after a comment",
            Reply::Stream(vec![send(": wait\n\n"), Step::Cut]),
        ),
        ("an empty stream", Reply::Stream(vec![])),
        ("an error as first event", Reply::Stream(vec![send(error)])),
        (
            "half an event",
            Reply::Stream(vec![send("data: {\"cho"), Step::Cut]),
        ),
    ]
}

/// Engines that all answer alike.
async fn twins(reply: &Reply) -> [Stub; 3] {
    let one = || {
        let reply = reply.clone();
        Stub::start(move |_, _| reply.clone())
    };
    [one().await, one().await, one().await]
}

/// How often all of them together.
fn asked(engines: &[Stub]) -> usize {
    engines.iter().map(Stub::count).sum()
}

#[tokio::test]
async fn until_the_first_data_another_endpoint_is_asked() {
    for (kind, failure) in kinds_of_failure() {
        let bad = Stub::start(move |_, _| failure.clone()).await;
        let good = Stub::start(|_, _| chat()).await;
        let proxy = proxy(&[&bad, &good]);
        for n in 0..2 {
            let answer = ask(&proxy, n, chat_request()).await;
            assert_eq!(answer.status, 200, "{kind}");
            assert!(
                answer.text.ends_with("[DONE]\n\n"),
                "{kind}: {}",
                answer.text
            );
            assert!(!answer.text.contains("error"), "{kind}");
        }
        assert!(bad.count() > 0, "{kind}: it was asked");
        assert_eq!(good.count(), 2, "{kind}");
        let retried = (0..2).find(|n| {
            record(&proxy, *n)["attempts"]
                .as_array()
                .expect("an array")
                .len()
                == 2
        });
        let record = record(&proxy, retried.expect("one call was retried"));
        let ids: Vec<_> = [(&bad, 0), (&good, 0), (&good, 1)]
            .iter()
            .map(|(stub, index)| stub.request(*index).headers()["x-request-id"].clone())
            .collect();
        assert_ne!(ids[0], ids[1], "{kind}: a retry has its own id");
        assert_ne!(ids[0], ids[2], "{kind}: a retry has its own id");
        assert_eq!(record["outcome"], "completed", "{kind}");
        assert_at_rest(&proxy);
    }
}

#[tokio::test]
async fn a_dead_endpoint_costs_nothing() {
    let place = Place::new();
    let dead = Stub::start_at(&place.address.to_string(), |_, _| Reply::Never).await;
    let good = Stub::start(|_, _| completion()).await;
    let proxy = proxy(&[&dead, &good]);
    drop(dead);
    for n in 0..4 {
        let answer = ask(&proxy, n, completion_request()).await;
        assert_eq!(answer.status, 200);
    }
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn after_the_first_data_no_other_endpoint_is_asked() {
    let families = [
        (
            "/v1/chat/completions",
            r#"{"model":"m","stream":true,"messages":[]}"#,
            token("a"),
            "data: {\"error\":",
        ),
        (
            "/v1/messages",
            r#"{"model":"m","stream":true,"messages":[]}"#,
            send(
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n",
            ),
            "event: error\ndata: {",
        ),
        (
            "/v1/responses",
            r#"{"model":"m","stream":true,"input":"x"}"#,
            send(
                "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\n\
                 event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
            ),
            "event: response.failed\ndata: {",
        ),
    ];
    for (path, body, first, error) in families {
        for broken in [
            vec![Step::Cut],
            vec![send("data: {\"half"), Step::Cut],
            vec![],
        ] {
            let steps = [vec![first.clone()], broken].concat();
            let bad = twins(&Reply::Stream(steps)).await;
            let proxy = proxy(&[&bad[0], &bad[1]]);
            let answer = ask(&proxy, 1, post(path, body)).await;
            assert_eq!(answer.status, 200);
            assert_eq!(asked(&bad), 1, "{path}: asked once");
            let Step::Send(first) = &first else {
                panic!("the first step sends");
            };
            let rest = answer
                .text
                .strip_prefix(std::str::from_utf8(first).expect("text"));
            let rest = rest.expect("what had arrived is passed on");
            assert!(rest.starts_with(error), "{path}: {rest}");
            assert!(rest.ends_with("\n\n"), "{path}: {rest}");
            let record = record(&proxy, 1);
            assert_eq!(record["outcome"], "interrupted", "{path}");
            assert_eq!(record["attempts"][0]["end"], "failed", "{path}");
            assert_at_rest(&proxy);
        }
    }
}

#[tokio::test]
async fn an_error_after_output_is_passed_on_and_counts_as_a_failure() {
    let error = "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\ndata: [DONE]\n\n";
    let bad = Stub::start(move |_, _| Reply::Stream(vec![token("a"), send(error)])).await;
    let proxy = proxy(&[&bad]);
    let answer = ask(&proxy, 1, chat_request()).await;
    assert!(answer.text.ends_with(error));
    assert_eq!(metric(&proxy, &["attempts_total", "\"failed\""]), 1);
    assert_eq!(bad.count(), 1);
}

#[tokio::test]
async fn a_rejection_inside_a_stream_is_not_retried() {
    let error = "data: {\"error\":{\"message\":\"bad image\",\"code\":400}}\n\ndata: [DONE]\n\n";
    let engines = twins(&Reply::Stream(vec![send(error)])).await;
    let proxy = proxy(&[&engines[0], &engines[1]]);
    let answer = ask(&proxy, 1, chat_request()).await;
    assert_eq!(answer.text, error);
    assert_eq!(asked(&engines), 1);
    assert_eq!(record(&proxy, 1)["outcome"], "rejected");
}

#[tokio::test]
async fn attempts_are_bounded_and_the_answer_says_what_may_have_been_computed() {
    let usage = r#"{"error":{"message":"secret host 10.0.0.7"},"usage":{"prompt_tokens":7,"completion_tokens":0}}"#;
    for (reply, status, code, work, reports_usage) in [
        (
            answer_json(500, usage),
            502,
            "upstream_error",
            "prefill",
            true,
        ),
        (answer_json(503, "{}"), 429, "queue_full", "none", false),
        (Reply::Close, 502, "upstream_error", "prefill", false),
        (
            answer_json(307, "{}"),
            502,
            "upstream_error",
            "prefill",
            false,
        ),
    ] {
        let bad = twins(&reply).await;
        let proxy = proxy_with(&[&bad[0], &bad[1], &bad[2]], json!({"attempts": 2}));
        let answer = ask(&proxy, 1, completion_request()).await;
        assert_eq!(answer.status, status, "{code}");
        assert_eq!(answer.headers["x-headpond-reason"], code);
        assert_eq!(answer.headers["x-headpond-work"], work, "{code}");
        assert!(!answer.text.contains("10.0.0.7"));
        assert_eq!(
            answer.text.contains("\"usage\":{\"prompt_tokens\":7"),
            reports_usage,
            "{}",
            answer.text
        );
        let record = record(&proxy, 1);
        assert_eq!(record["attempts"].as_array().expect("an array").len(), 2);
        assert_eq!(record["reason"], code);
        assert_at_rest(&proxy);
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_not_retried_for_and_its_connection_closes() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |_, _| Reply::Stream(vec![token("a"), Step::Gate(Arc::clone(&gate))]))
            .await
    };
    let proxy = proxy(&[&engine]);
    let mut response = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut response).await.is_some());
    assert_eq!(engine.open(), 1);
    drop(response);
    assert_at_rest(&proxy);
    crate::rig::until("the engine knows", || engine.open() == 0).await;
    assert_eq!(record(&proxy, 1)["outcome"], "client_closed");
    assert_eq!(engine.count(), 1);
}

#[tokio::test]
async fn a_client_that_closes_after_done_has_its_whole_answer() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |_, _| {
            Reply::Stream(vec![
                token("a"),
                crate::stub::finish(),
                Step::Gate(Arc::clone(&gate)),
            ])
        })
        .await
    };
    let proxy = proxy(&[&engine]);
    let mut response = proxy.call(context(1), chat_request()).await;
    while !frame(&mut response)
        .await
        .expect("not over")
        .contains("[DONE]")
    {}
    drop(response);
    let record = record(&proxy, 1);
    assert_eq!(record["outcome"], "completed");
    assert_eq!(record["attempts"][0]["measured"]["output_tokens"], 2);
}

#[tokio::test]
async fn a_whole_answer_that_is_cut_shows_it() {
    let cut = Reply::Stream(vec![send("{\"choices\":"), Step::Cut]);
    let engine = Stub::start(move |_, _| cut.clone()).await;
    let proxy = proxy(&[&engine]);
    let response = proxy.call(context(1), completion_request()).await;
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    assert!(body.is_err());
    assert_eq!(record(&proxy, 1)["outcome"], "interrupted");
    assert_at_rest(&proxy);
}
