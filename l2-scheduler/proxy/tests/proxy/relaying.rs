//! What passes through, and that it passes unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::Notify;

use crate::rig::{
    ask, assert_at_rest, chat_request, completion_request, context, frame, metric, post, proxy,
    read, record, until,
};
use crate::stub::{Reply, Step, Stub, chat, completion, finish, json as answer_json, send, token};

#[tokio::test]
async fn a_stream_passes_unchanged_and_is_recorded() {
    let engine = Stub::start(|_, _| chat()).await;
    let proxy = proxy(&[&engine]);
    let answer = ask(&proxy, 1, chat_request()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(answer.headers["x-headpond-endpoint"], "e0");
    assert!(answer.headers.contains_key("x-headpond-queue-ms"));
    let expected: String = [token("a"), token("b"), finish()]
        .iter()
        .map(|step| match step {
            Step::Send(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Step::Gate(_) | Step::Cut | Step::Hang => String::new(),
        })
        .collect();
    assert_eq!(answer.text, expected);
    let record = record(&proxy, 1);
    assert_eq!(record["outcome"], "completed");
    let attempt = &record["attempts"][0];
    assert_eq!(attempt["measured"]["cached_tokens"], 4);
    assert_eq!(attempt["measured"]["output_tokens"], 2);
    assert!(attempt["measured"]["ttft_ms"].as_f64().is_some());
    assert_eq!(attempt["decision"]["chosen"], "e0");
    assert!(
        !record.to_string().contains("hello"),
        "no prompt text in records"
    );
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_whole_answer_passes_unchanged_and_its_connection_serves_again() {
    let engine = Stub::start(|_, _| completion()).await;
    let proxy = proxy(&[&engine]);
    for n in 0..5 {
        let answer = ask(&proxy, n, completion_request()).await;
        assert_eq!(answer.status, 200);
        assert!(answer.text.starts_with(r#"{"choices":[{"text":"hi"}]"#));
        assert!(!answer.headers.contains_key("server"));
        assert_eq!(
            record(&proxy, n)["attempts"][0]["measured"]["cached_tokens"],
            4
        );
    }
    assert_eq!(metric(&proxy, &["requests_total", "completed"]), 5);
    until("one connection for answers, one for metrics", || {
        engine.connections() <= 2
    })
    .await;
    assert_at_rest(&proxy);
}

/// Scheduling case 19.
#[tokio::test]
async fn case_19_the_body_reaches_the_engine_byte_by_byte() {
    let engine = Stub::start(|_, _| completion()).await;
    let proxy = proxy(&[&engine]);
    let body = "{ \"zeta\":12345678901234567890123,\"model\" : \"m\",\"alpha\":1.0e-7,\"prompt\":\"\\/ <>& \\u00e9 é 𝄞\",\n\t\"n\":01e0,\"x\":{}}".replace("01e0", "1e0");
    ask(&proxy, 1, post("/v1/completions", body.clone())).await;
    assert_eq!(engine.request(0).body(), body.as_bytes());
}

/// Scheduling case 20.
#[tokio::test]
async fn case_20_usage_split_over_two_reads_is_counted() {
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":90,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n";
    let end = "data: [DONE]\n\n";
    let halves = [5, 30, usage.len() - 3];
    let engine = Stub::start(move |n, _| {
        let (left, right) = usage.split_at(halves[n]);
        Reply::Stream(vec![
            token("a"),
            send(left),
            Step::Gate(ready()),
            send(right),
            send(end),
        ])
    })
    .await;
    let proxy = proxy(&[&engine]);
    for n in 0..3 {
        let answer = ask(&proxy, n, chat_request()).await;
        assert!(
            answer.text.ends_with(&format!("{usage}{end}")),
            "{}",
            answer.text
        );
        let measured = &record(&proxy, n)["attempts"][0]["measured"];
        assert_eq!(measured["cached_tokens"], 64);
        assert_eq!(measured["output_tokens"], 7);
    }
}

/// A gate that is open, so that what is before and after it is sent apart.
fn ready() -> Arc<Notify> {
    let gate = Arc::new(Notify::new());
    gate.notify_one();
    gate
}

struct Tracked(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

/// Scheduling case 35.
#[tokio::test]
async fn case_35_the_request_body_is_released_at_the_first_byte_of_the_answer() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |_, _| {
            Reply::Stream(vec![
                Step::Gate(Arc::clone(&gate)),
                token("a"),
                Step::Gate(Arc::clone(&gate)),
                finish(),
            ])
        })
        .await
    };
    let proxy = proxy(&[&engine]);
    let released = Arc::new(AtomicBool::new(false));
    let text = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x".repeat(64 << 10)}]});
    let body = Bytes::from_owner(Tracked(
        text.to_string().into_bytes(),
        Arc::clone(&released),
    ));
    let call = proxy.call(context(1), post("/v1/chat/completions", body));
    let mut call = std::pin::pin!(call);
    let waiting = async { until("the engine has the request", || engine.count() == 1).await };
    tokio::select! {
        _ = &mut call => panic!("the engine has not answered"),
        () = waiting => {}
    }
    assert!(
        !released.load(Ordering::SeqCst),
        "a retry may still need it"
    );
    gate.notify_one();
    let mut response = call.await;
    assert!(
        frame(&mut response)
            .await
            .expect("a frame")
            .contains("\"a\"")
    );
    assert!(
        released.load(Ordering::SeqCst),
        "no retry is possible any more"
    );
    gate.notify_one();
    assert!(read(response).await.text.ends_with("[DONE]\n\n"));
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_refusal_of_the_engine_passes_untouched() {
    let body = r#"{"error":{"message":"too long","type":"BadRequestError","param":"input_tokens","code":400}}"#;
    let engine = Stub::start(move |_, _| answer_json(400, body)).await;
    let proxy = proxy(&[&engine]);
    let answer = ask(&proxy, 1, chat_request()).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (400, body));
    assert_eq!(answer.headers["x-headpond-work"], "none");
    assert!(!answer.headers.contains_key("x-headpond-reason"));
    assert_eq!(engine.count(), 1, "no other try");
    assert_eq!(record(&proxy, 1)["outcome"], "rejected");
}

#[tokio::test]
async fn an_engine_that_ignores_stream_is_passed_on_as_it_answers() {
    let engine = Stub::start(|_, _| completion()).await;
    let proxy = proxy(&[&engine]);
    let answer = ask(&proxy, 1, chat_request()).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let record = record(&proxy, 1);
    assert_eq!(record["outcome"], "completed");
    let measured = &record["attempts"][0]["measured"];
    assert!(measured["whole_answer_ms"].is_f64(), "{measured}");
    assert!(
        measured.get("ttft_ms").is_none(),
        "no first token was seen: {measured}"
    );
}

#[tokio::test]
async fn comments_before_the_first_event_pass_with_it() {
    let engine = Stub::start(|_, _| {
        Reply::Stream(vec![
            send(": ping\n\n"),
            Step::Gate(ready()),
            token("a"),
            finish(),
        ])
    })
    .await;
    let proxy = proxy(&[&engine]);
    let answer = ask(&proxy, 1, chat_request()).await;
    assert!(
        answer.text.starts_with(": ping\n\ndata: "),
        "{}",
        answer.text
    );
}
