//! Engines that take requests and say nothing: noticed by their lack of progress, since their health pages are fine.
//!
//! Silence is a hang after four seconds or more where other engines answer: a machine that stops for less stops them too.
//! As long as the speed of engines is only guessed, ten times the floor is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::sync::Notify;

use crate::rig::{
    ask, ask_many, assert_at_rest, chat_request, context, frame, metric, proxy_with, read, record,
    until,
};
use crate::stub::{Reply, Step, Stub, either, finish, token};

/// Scheduling case 29.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_29_a_hung_engine_is_noticed_by_its_lack_of_progress() {
    let stopped = Arc::new(AtomicBool::new(false));
    let hangs = {
        let stopped = Arc::clone(&stopped);
        Stub::start(move |_, request| {
            if stopped.load(Ordering::SeqCst) {
                Reply::Never
            } else {
                either(request)
            }
        })
        .await
    };
    let good = [
        Stub::start(|_, request| either(request)).await,
        Stub::start(|_, request| either(request)).await,
    ];
    let settings = json!({"timeouts": {"hang_floor_ms": 4_000}});
    let proxy = proxy_with(&[&hangs, &good[0], &good[1]], settings);
    for answer in ask_many(&proxy, 0..60).await {
        assert_eq!(answer.status, 200);
    }
    stopped.store(true, Ordering::SeqCst);
    let mut answered = 0;
    for round in 0..20 {
        let answers = ask_many(&proxy, 100 + round * 20..120 + round * 20).await;
        answered += answers.iter().filter(|answer| answer.status == 200).count();
    }
    assert!(answered >= 396, "{answered} of 400 answered");
    assert!(metric(&proxy, &["endpoint_quarantined{", "\"e0\""]) > 0);
    let before = hangs.count();
    for answer in ask_many(&proxy, 1000..1040).await {
        assert_eq!(answer.status, 200);
    }
    let probes = metric(&proxy, &["endpoint_probes_total", "\"e0\""]) as usize;
    assert!(
        hangs.count() <= before + probes,
        "it gets nothing but probes"
    );
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_hang_before_the_first_token_is_retried_elsewhere() {
    for hang in [Reply::Never, Reply::Stream(vec![Step::Hang])] {
        let hangs = Stub::start(move |_, _| hang.clone()).await;
        let good = Stub::start(|_, request| either(request)).await;
        let proxy = proxy_with(
            &[&hangs, &good],
            json!({"timeouts": {"hang_floor_ms": 400}}),
        );
        for answer in ask_many(&proxy, 0..6).await {
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
        assert!(metric(&proxy, &["endpoint_hangs_total", "\"e0\""]) > 0);
        until("the engine is rid of them", || hangs.open() <= 1).await;
        assert_at_rest(&proxy);
    }
}

#[tokio::test]
async fn silence_after_output_ends_the_stream_with_an_error() {
    let engine = Stub::start(|_, _| Reply::Stream(vec![token("a"), Step::Hang])).await;
    let proxy = proxy_with(&[&engine], json!({"timeouts": {"silence_ms": 50}}));
    let answer = ask(&proxy, 1, chat_request()).await;
    assert!(
        answer.text.contains("\"code\":\"upstream_timeout\""),
        "{}",
        answer.text
    );
    assert_eq!(record(&proxy, 1)["attempts"][0]["cause"], "silent");
    assert_at_rest(&proxy);
}

/// A lone silent stream may be collecting a tool call. An engine that does not answer a probe either is not.
#[tokio::test]
async fn a_stream_of_an_engine_that_answers_no_probe_ends_long_before_its_silence_would() {
    let engine = Stub::start(|n, request| {
        if !request.uri().path().ends_with("/chat/completions") {
            Reply::Close
        } else if n == 0 {
            Reply::Stream(vec![token("a"), Step::Hang])
        } else {
            Reply::Never
        }
    })
    .await;
    let proxy = proxy_with(
        &[&engine],
        json!({"timeouts": {"hung_silence_ms": 20, "hang_floor_ms": 400}}),
    );
    let mut first = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let (rest, second) = tokio::join!(frame(&mut first), ask(&proxy, 2, chat_request()));
    assert!(
        rest.expect("an error event").contains("upstream_timeout"),
        "not only the silence limit of minutes ends it"
    );
    assert_eq!(second.status, 503, "{}", second.text);
    assert_eq!(record(&proxy, 1)["attempts"][0]["cause"], "hung");
    assert_at_rest(&proxy);
}

/// The second stream is the clock: when its silence has been noticed, the first has been left alone for as long.
#[tokio::test]
async fn a_reader_that_takes_its_time_is_not_taken_for_a_silent_engine() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |n, _| {
            let after = if n == 0 {
                Step::Gate(Arc::clone(&gate))
            } else {
                Step::Hang
            };
            Reply::Stream(vec![token("a"), after, finish()])
        })
        .await
    };
    let proxy = proxy_with(&[&engine], json!({"timeouts": {"silence_ms": 50}}));
    let mut slow = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut slow).await.is_some());
    let cut = ask(&proxy, 2, chat_request()).await;
    assert!(cut.text.contains("upstream_timeout"), "{}", cut.text);
    gate.notify_one();
    assert!(read(slow).await.text.ends_with("[DONE]\n\n"));
    assert_eq!(record(&proxy, 1)["outcome"], "completed");
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn an_answer_that_is_too_late_is_given_up() {
    let engine = Stub::start(|_, _| Reply::Never).await;
    let proxy = proxy_with(
        &[&engine],
        json!({"timeouts": {"first_output_ms": 50, "hang_floor_ms": 3_600_000}}),
    );
    let answer = ask(&proxy, 1, chat_request()).await;
    assert_eq!(answer.status, 504);
    assert_eq!(answer.headers["x-headpond-reason"], "upstream_timeout");
    assert_eq!(answer.headers["x-headpond-work"], "prefill");
    assert!(engine.count() <= 1, "nobody is asked again");
    assert_at_rest(&proxy);
}
