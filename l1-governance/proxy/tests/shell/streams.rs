//! Streams and disconnects: cases 21–34.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use governance_context::Work;
use governance_proxy::Reached;
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
/// `"hi"` with its role in tokens, as it is estimated: 6 bytes and a template of 8.
const ESTIMATED_PROMPT: u64 = 10;

fn streaming(extra: Value) -> Value {
    let mut body = chat(extra);
    body["stream"] = json!(true);
    body
}

/// A chunk of an engine that reports no running usage.
fn bare(text: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{}}}}}]}}\n\n",
        Value::from(text)
    )
}

fn settled(rig: &Rig) -> (&'static str, u64, u64, bool) {
    let record = rig.newest();
    let settlement = record.settlement.as_ref().expect("a settlement");
    (
        settlement.state,
        settlement.prompt_tokens,
        settlement.output_tokens,
        settlement.estimated,
    )
}

#[tokio::test]
async fn a_stream_goes_through_without_the_usage_nobody_asked_for() {
    let usage = r#","usage":{"prompt_tokens":14,"total_tokens":15,"completion_tokens":1}"#;
    let plain = chunk("x", 14, 1).replace(usage, "");
    let ours = chunk("x", 14, 1);
    for (options, expected) in [
        (json!(null), format!("{plain}{DONE}")),
        (
            json!({"include_usage": true}),
            format!("{plain}{}{DONE}", usage_chunk(14, 0, 1)),
        ),
        (
            json!({"include_usage": true, "continuous_usage_stats": true}),
            format!("{ours}{}{DONE}", usage_chunk(14, 0, 1)),
        ),
    ] {
        let rig = Rig::new(Stage::always(Play::Stream(whole_stream(14, 1)))).await;
        let answer = rig
            .post(CHAT, streaming(json!({"stream_options": options})))
            .await;
        assert_eq!(answer.text(), expected, "{options}");
        assert_eq!(
            answer.header("content-type"),
            "text/event-stream; charset=utf-8"
        );
        assert_eq!(answer.header("cache-control"), "no-cache");
        assert_eq!(answer.header("x-accel-buffering"), "no");
        let asked = &rig.stage.last_body()["stream_options"];
        assert_eq!(
            asked,
            &json!({"include_usage": true, "continuous_usage_stats": true})
        );
        assert_eq!(settled(&rig), ("committed", 14, 1, false));
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_21_a_client_that_leaves_without_usage_pays_for_what_passed_by() {
    let mut pieces: Vec<Piece> = (0..9).map(|_| data(&bare("x"))).collect();
    pieces.push(Piece::Hang);
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let mut body = rig.open(CHAT, streaming(json!({}))).await.into_body();
    for _ in 0..6 {
        frame(&mut body).await.expect("a chunk");
    }
    drop(body);
    assert_eq!(settled(&rig), ("committed", ESTIMATED_PROMPT, 6, true));
    assert_eq!(
        rig.wtu("acme").await,
        (ESTIMATED_PROMPT * 1000 + 6 * 2000, 0)
    );
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_22_and_26_a_client_that_leaves_cancels_the_engine_and_nothing_is_retried() {
    let pieces = vec![data(&chunk("x", 14, 1)), Piece::Hang];
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let mut body = rig.open(CHAT, streaming(json!({}))).await.into_body();
    frame(&mut body).await.expect("a chunk");
    assert_eq!(rig.stage.open.load(Ordering::SeqCst), 1);
    drop(body);
    assert_eq!(
        rig.stage.open.load(Ordering::SeqCst),
        0,
        "cancelled at once"
    );
    assert_eq!(rig.stage.cancelled.load(Ordering::SeqCst), 1);
    assert_eq!(rig.stage.call_count(), 1);
    assert_eq!(settled(&rig), ("committed", 14, 1, false));
    assert_eq!(outcome(&rig), (200, "client_closed".to_owned()));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_any_answer_is_told_as_499() {
    for stream in [false, true] {
        let rig = Rig::new(Stage::always(Play::Hang)).await;
        let body = chat(json!({ "stream": stream }));
        {
            let mut request = pin!(rig.governance.handle(post(CHAT, &key(1), body)));
            until_called(&rig, 1, request.as_mut()).await;
        }
        assert_eq!(outcome(&rig), (499, "client_closed".to_owned()));
        rig.assert_quiet().await;
    }
}

/// Of the newest request.
fn outcome(rig: &Rig) -> (u16, String) {
    let record = rig.newest();
    let outcome = record.outcome.as_ref().expect("an outcome");
    (outcome.status, outcome.code.to_owned())
}

#[tokio::test]
async fn case_23_a_report_of_zeros_before_a_disconnect_is_a_value() {
    let zeros = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}"#;
    let pieces = vec![data(&format!("{zeros}\n\n")), Piece::Hang];
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let mut body = rig.open(CHAT, streaming(json!({}))).await.into_body();
    frame(&mut body).await.expect("a chunk");
    drop(body);
    assert_eq!(settled(&rig), ("committed", 0, 0, false));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_24_a_client_that_leaves_before_a_whole_answer_leaves_an_unknown_end() {
    for (work, state) in [
        (None, "unknown"),
        (Some(Work::Prefill), "unknown"),
        (Some(Work::None), "released"),
    ] {
        let rig = Rig::new(Stage::always(Play::Hang)).await;
        *rig.stage.work.lock().expect("unpoisoned") = work;
        {
            let mut request = pin!(rig.chat(json!({})));
            until_called(&rig, 1, request.as_mut()).await;
        }
        assert_eq!(rig.stage.cancelled.load(Ordering::SeqCst), 1);
        assert_eq!(settled(&rig).0, state, "{work:?}");
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_25_gone_before_the_first_token_after_the_last_and_without_usage() {
    let all = || {
        vec![
            data(&chunk("x", 14, 1)),
            data(&chunk("y", 14, 2)),
            Piece::Hang,
        ]
    };
    let none = vec![data(": nothing yet\n\n"), Piece::Hang];
    let silent = vec![data(&bare("x")), data(&bare("y")), Piece::Hang];
    for (pieces, frames, expected) in [
        (none, 0, ("unknown", 0, 0, false)),
        (all(), 2, ("committed", 14, 2, false)),
        (silent, 2, ("committed", ESTIMATED_PROMPT, 2, true)),
    ] {
        let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
        {
            let mut request = pin!(rig.open(CHAT, streaming(json!({}))));
            if frames == 0 {
                until_called(&rig, 1, request.as_mut()).await;
            } else {
                let mut body = request.await.into_body();
                for _ in 0..frames {
                    frame(&mut body).await.expect("a chunk");
                }
            }
        }
        assert_eq!(settled(&rig), expected);
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_27_a_client_that_closes_between_usage_and_the_end_did_not_leave() {
    let mut pieces = whole_stream(14, 2);
    pieces.pop();
    pieces.push(Piece::Hang);
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let options = json!({"stream_options": {"include_usage": true}});
    let mut body = rig.open(CHAT, streaming(options)).await.into_body();
    for _ in 0..3 {
        frame(&mut body).await.expect("a chunk");
    }
    drop(body);
    assert_eq!(settled(&rig), ("committed", 14, 2, false));
    assert_eq!(
        rig.newest().outcome.as_ref().expect("an outcome").code,
        "ok"
    );
    assert_eq!(rig.metric("headpond_governance_client_aborts_total"), 0.0);
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_28_each_metric_is_observed_once_when_a_client_leaves() {
    let pieces = vec![data(&chunk("x", 14, 1)), Piece::Hang];
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let mut body = rig.open(CHAT, streaming(json!({}))).await.into_body();
    frame(&mut body).await.expect("a chunk");
    drop(body);
    for (line, value) in [
        (
            r#"headpond_governance_requests_total{route="chat_completions",tenant="acme",code="client_closed"}"#,
            1.0,
        ),
        (
            r#"headpond_governance_requests_total{route="chat_completions",tenant="acme",code="ok"}"#,
            0.0,
        ),
        (
            r#"headpond_governance_settlements_total{state="committed"}"#,
            1.0,
        ),
        ("headpond_governance_client_aborts_total", 1.0),
        ("headpond_governance_reservation_seconds_count", 1.0),
        (
            r#"headpond_governance_tokens_total{tenant="acme",class="output"}"#,
            1.0,
        ),
        (
            r#"headpond_governance_charged_micro_wtu_total{tenant="acme"}"#,
            16_000.0,
        ),
    ] {
        assert_eq!(rig.metric(line), value, "{line}\n{}", rig.metrics());
    }
}

#[tokio::test]
async fn case_29_every_way_to_fail_has_its_own_end() {
    let error =
        |code: &str| json!({"error": {"message": "m", "type": "t", "param": null, "code": code}});
    let mut with_usage = error("boom");
    with_usage["usage"] = json!({"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17});
    let whole = |status, headers: &[(&'static str, &str)], body: &Value| {
        let headers = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        Play::Whole(status, headers, body.to_string())
    };
    let by_l2 = |code: &'static str, work: &'static str| {
        [("x-headpond-reason", code), ("x-headpond-work", work)]
    };
    for (play, status, code, state) in [
        (whole(400, &[], &error("bad")), 400, "bad", "released"),
        (
            whole(429, &[("retry-after", "7")], &error("busy")),
            429,
            "busy",
            "released",
        ),
        (whole(500, &[], &error("boom")), 502, "boom", "unknown"),
        (whole(500, &[], &with_usage), 502, "boom", "committed"),
        (
            whole(401, &[], &error("engine_key")),
            502,
            "engine_key",
            "released",
        ),
        (
            whole(429, &by_l2("queue_full", "none"), &error("queue_full")),
            429,
            "queue_full",
            "released",
        ),
        (
            whole(503, &by_l2("no_endpoint", "none"), &error("no_endpoint")),
            503,
            "no_endpoint",
            "released",
        ),
        (
            whole(502, &by_l2("upstream_error", "none"), &error("x")),
            502,
            "upstream_error",
            "released",
        ),
        (
            whole(502, &by_l2("upstream_error", "partial"), &error("x")),
            502,
            "upstream_error",
            "unknown",
        ),
        (
            whole(504, &by_l2("upstream_timeout", "prefill"), &error("x")),
            504,
            "upstream_timeout",
            "unknown",
        ),
        (
            Play::Unreachable(Reached::No),
            503,
            "no_endpoint",
            "released",
        ),
        (
            Play::Unreachable(Reached::Perhaps),
            502,
            "upstream_error",
            "unknown",
        ),
        (Play::Panic, 500, "internal_error", "unknown"),
    ] {
        let rig = Rig::new(Stage::always(play)).await;
        let answer = rig.chat(json!({})).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, code),
            "{}",
            answer.text()
        );
        assert!(!answer.header("x-headpond-reason").is_empty());
        assert_eq!(settled(&rig).0, state, "{code}");
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_30_a_character_cut_in_two_at_every_byte_stays_whole() {
    let text = format!("{}{}{DONE}", chunk("a🦀b", 14, 1), usage_chunk(14, 0, 1));
    let whole = text.as_bytes();
    let rig = Rig::new(Stage::new(move |_, request| {
        let at: usize = request.headers()["openai-cut"]
            .to_str()
            .expect("text")
            .parse()
            .expect("a number");
        let text = format!("{}{}{DONE}", chunk("a🦀b", 14, 1), usage_chunk(14, 0, 1));
        let (a, b) = text.as_bytes().split_at(at);
        Play::Stream(vec![
            Piece::Data(Bytes::copy_from_slice(a)),
            Piece::Data(Bytes::copy_from_slice(b)),
        ])
    }))
    .await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    for at in 0..whole.len() {
        let mut request = post(CHAT, &key(1), streaming(json!({"stream_options": options})));
        request
            .headers_mut()
            .insert("openai-cut", at.to_string().parse().expect("a value"));
        let answer = rig.send(request).await;
        assert_eq!(answer.bytes, whole, "cut at {at}");
        assert_eq!(settled(&rig), ("committed", 14, 1, false), "cut at {at}");
    }
    rig.assert_quiet().await;
}

#[tokio::test]
async fn a_stream_that_breaks_at_any_byte_ends_with_an_error_and_one_settlement() {
    let whole: String = format!(
        "{}{}{}{DONE}",
        chunk("x", 14, 1),
        chunk("y", 14, 2),
        usage_chunk(14, 0, 2)
    );
    let (first, second) = (chunk("x", 14, 1).len(), chunk("y", 14, 2).len());
    let reported = first + second + usage_chunk(14, 0, 2).len();
    let script = whole.clone();
    let rig = Rig::new(Stage::new(move |_, request| {
        let at: usize = request.headers()["openai-cut"]
            .to_str()
            .expect("text")
            .parse()
            .expect("a number");
        Play::Stream(vec![
            Piece::Data(Bytes::copy_from_slice(&script.as_bytes()[..at])),
            Piece::Cut,
        ])
    }))
    .await;
    for at in 0..=whole.len() {
        let mut request = post(CHAT, &key(1), streaming(json!({})));
        request
            .headers_mut()
            .insert("openai-cut", at.to_string().parse().expect("a value"));
        let answer = rig.send(request).await;
        let (state, prompt, output, _) = settled(&rig);
        let expected = match at {
            at if at >= reported => ("committed", 14, 2),
            at if at >= first + second => ("unknown", 14, 2),
            at if at >= first => ("unknown", 14, 1),
            _ => ("unknown", 0, 0),
        };
        assert_eq!((state, prompt, output), expected, "cut at {at}");
        if at < first {
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (502, "upstream_error"),
                "cut at {at}"
            );
        } else {
            assert_eq!(answer.status, 200);
            let last = answer
                .text()
                .trim_end()
                .rsplit("\n\n")
                .next()
                .expect("an event")
                .to_owned();
            assert!(last.contains("upstream_error"), "cut at {at}: {last}");
        }
    }
    rig.assert_quiet().await;
}

/// Runs a stream on paused time: the ledger, which has a clock of its own, is done by then.
async fn paused(rig: &Rig, path: &str, body: Value) -> Answer {
    let mut response = pin!(rig.open(path, body));
    let early = loop {
        let once = std::future::poll_fn(|context| Poll::Ready(response.as_mut().poll(context)));
        match once.await {
            Poll::Ready(response) => break Some(response),
            Poll::Pending if rig.stage.call_count() > 0 => break None,
            Poll::Pending => tokio::task::yield_now().await,
        }
    };
    tokio::time::pause();
    let response = match early {
        Some(response) => response,
        None => response.await,
    };
    let answer = Answer::read(response).await;
    tokio::time::resume();
    answer
}

#[tokio::test]
async fn case_31_keep_alive_bytes_flow_until_a_late_first_token() {
    let wait = Play::After(
        Duration::from_secs(90),
        Box::new(Play::Stream(whole_stream(14, 1))),
    );
    let rig = Rig::new(Stage::always(wait)).await;
    let answer = paused(&rig, CHAT, streaming(json!({}))).await;
    assert_eq!(answer.status, 200);
    let (silence, rest) = answer
        .text()
        .split_once("data: ")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("data");
    // At 10 s, then every 15 s until 90 s.
    assert_eq!(silence, ": keep-alive\n\n".repeat(6));
    assert!(rest.ends_with(DONE));
    assert_eq!(settled(&rig), ("committed", 14, 1, false));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn an_early_failure_keeps_its_status() {
    let early = Play::Whole(
        429,
        vec![("x-headpond-reason", "queue_full".into())],
        "{}".into(),
    );
    let inside = |code: u16| {
        Play::Stream(vec![data(&format!(
            "data: {{\"error\":{{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":{code}}}}}\n\n"
        ))])
    };
    for (play, status, state) in [
        (
            // The first comment comes ten seconds after the request, whatever the ledger took of them.
            Play::After(Duration::from_secs(2), Box::new(early)),
            429,
            "released",
        ),
        (inside(400), 400, "released"),
        (inside(500), 502, "unknown"),
        (Play::Stream(vec![Piece::Cut]), 502, "unknown"),
        (Play::Stream(vec![]), 502, "unknown"),
    ] {
        let rig = Rig::new(Stage::always(play)).await;
        let answer = paused(&rig, CHAT, streaming(json!({}))).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(settled(&rig).0, state);
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_32_and_33_a_failure_after_the_keep_alive_is_an_error_of_the_right_family() {
    let late = || {
        let refused = Play::Whole(
            429,
            vec![("x-headpond-reason", "queue_expired".into())],
            "{}".into(),
        );
        // Between the first comment, ten seconds after the request, and the second.
        Play::After(Duration::from_secs(15), Box::new(refused))
    };
    let messages = json!({"model": "demo", "max_tokens": 5, "stream": true,
        "messages": [{"role": "user", "content": "hi"}]});
    for (path, body, starts, has) in [
        (
            CHAT,
            streaming(json!({})),
            "data: {\"error\":{",
            "\"code\":\"queue_expired\"",
        ),
        (
            "/v1/messages",
            messages,
            "event: error\ndata: {\"type\":\"error\"",
            "\"rate_limit_error\"",
        ),
        (
            "/v1/responses",
            json!({"model": "demo", "input": "hi", "stream": true}),
            "event: response.failed\ndata: {\"type\":\"response.failed\"",
            "\"status\":\"failed\"",
        ),
    ] {
        let rig = Rig::new(Stage::always(late())).await;
        let answer = paused(&rig, path, body).await;
        assert_eq!(answer.status, 200);
        let text = answer.text();
        let event = text
            .strip_prefix(": keep-alive\n\n")
            .expect("the keep-alive first");
        assert!(event.starts_with(starts) && event.contains(has), "{event}");
        assert_eq!(event.matches("\n\n").count(), 1, "nothing follows: {event}");
        assert_eq!(settled(&rig).0, "released");
        let outcome = rig.newest().outcome.clone().expect("an outcome");
        assert_eq!((outcome.status, outcome.code), (200, "queue_expired"));
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn an_engine_error_in_the_middle_is_charged_as_seen_and_its_text_is_not_output() {
    let error = "data: {\"error\":{\"message\":\"died at http://10.1.2.3:8000/x\",\"type\":\"x\",\"param\":null,\"code\":\"boom\"}}\n\n";
    let both = format!("{}{error}", chunk("y", 14, 2));
    for pieces in [
        vec![
            data(&chunk("x", 14, 1)),
            data(&chunk("y", 14, 2)),
            data(error),
        ],
        vec![data(&chunk("x", 14, 1)), data(&both)],
    ] {
        let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
        let answer = rig.post(CHAT, streaming(json!({}))).await;
        let text = answer.text();
        assert!(
            text.contains("\"y\"") && text.contains("\"code\":\"boom\""),
            "{text}"
        );
        assert!(!text.contains("10.1.2.3"), "{text}");
        assert_eq!(settled(&rig), ("committed", 14, 2, false));
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_33_responses_streams_are_metered_by_their_terminal_events() {
    let event = |kind: &str, rest: &str| {
        data(&format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n"
        ))
    };
    let completed = r#","response":{"id":"r","status":"completed","usage":{"input_tokens":14,"output_tokens":2,"total_tokens":16}}"#;
    let failed = r#","response":{"id":"r","status":"failed","error":{"code":"server_error","message":"no"}}"#;
    let body = json!({"model": "demo", "input": "hi", "stream": true});
    for (end, kind, expected, code) in [
        (
            completed,
            "response.completed",
            ("committed", 14, 2, false),
            "ok",
        ),
        (
            failed,
            "response.failed",
            ("committed", ESTIMATED_PROMPT, 1, true),
            "upstream_error",
        ),
    ] {
        let rig = Rig::new(Stage::always(Play::Stream(vec![
            event(
                "response.created",
                r#","response":{"id":"r","status":"in_progress"}"#,
            ),
            event("response.output_text.delta", r#","delta":"hi""#),
            event(kind, end),
        ])))
        .await;
        let answer = rig.post("/v1/responses", body.clone()).await;
        assert!(
            answer.text().contains(&format!("\"type\":\"{kind}\"")),
            "{}",
            answer.text()
        );
        let (state, _, output, estimated) = settled(&rig);
        assert_eq!(
            (state, output, estimated),
            (expected.0, expected.2, expected.3)
        );
        assert_eq!(
            rig.newest().outcome.as_ref().expect("an outcome").code,
            code
        );
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn messages_streams_keep_their_own_usage() {
    let events = [
        (
            "message_start",
            r#","message":{"id":"m","usage":{"input_tokens":14,"output_tokens":0}}"#,
        ),
        (
            "content_block_start",
            r#","index":0,"content_block":{"type":"text","text":""}"#,
        ),
        (
            "content_block_delta",
            r#","index":0,"delta":{"type":"text_delta","text":"hi"}"#,
        ),
        ("content_block_stop", r#","index":0"#),
        (
            "message_delta",
            r#","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":14,"output_tokens":1}"#,
        ),
        ("message_stop", ""),
    ];
    let events = events
        .map(|(kind, rest)| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n"));
    let pieces = events.iter().map(|event| data(event)).collect();
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let body = json!({"model": "demo", "max_tokens": 5, "stream": true,
        "messages": [{"role": "user", "content": "hi"}]});
    let answer = rig.post("/v1/messages", body).await;
    assert_eq!(answer.text(), events.concat());
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    assert_eq!(settled(&rig), ("committed", 14, 1, false));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_34_an_event_nobody_knows_passes_and_ends_nothing() {
    let vendor = "event: vendor.ping\ndata: {\"vendor\":{\"x\":1}}\n\n";
    let mut pieces = vec![data(vendor), data(": a comment\n\n")];
    pieces.extend(whole_stream(14, 2));
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let answer = rig.post(CHAT, streaming(json!({}))).await;
    let text = answer.text();
    assert!(
        text.starts_with(vendor) && text.contains(": a comment\n\n") && text.ends_with(DONE),
        "{text}"
    );
    assert_eq!(settled(&rig), ("committed", 14, 2, false));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn silence_in_the_middle_is_bridged_and_has_an_end() {
    let pieces = vec![data(&chunk("x", 14, 1)), Piece::Hang];
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let answer = paused(&rig, CHAT, streaming(json!({}))).await;
    let text = answer.text();
    // 1,800 s of silence, a comment every 15 s before that.
    assert_eq!(text.matches(": keep-alive").count(), 119, "{text}");
    assert!(
        text.trim_end().ends_with('}') && text.contains("upstream_timeout"),
        "{text}"
    );
    assert_eq!(settled(&rig), ("unknown", 14, 1, false));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn an_endless_line_is_an_error_and_not_memory() {
    let long = Piece::Data(Bytes::from(vec![b'x'; 600 * 1024]));
    let pieces = vec![
        data(&chunk("x", 14, 1)),
        data("data: "),
        long.clone(),
        long,
        Piece::Hang,
    ];
    let rig = Rig::new(Stage::always(Play::Stream(pieces))).await;
    let answer = rig.post(CHAT, streaming(json!({}))).await;
    assert!(
        answer.text().contains("upstream_error"),
        "{}",
        answer.text().len()
    );
    assert_eq!(rig.stage.open.load(Ordering::SeqCst), 0);
    rig.assert_quiet().await;
}
