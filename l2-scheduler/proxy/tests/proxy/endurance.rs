//! Engines and clients that misbehave, many times: nothing is lost, nothing stays counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scheduler_proxy::SchedulerProxy;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::rig::{
    ask, ask_many, assert_at_rest, chat_request, completion_request, config, context, frame,
    metric, proxy, proxy_with, record, until,
};
use crate::stub::{
    Place, Reply, Step, Stub, completion, either, finish, json as answer_json, token,
};

/// A small generator, so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Scheduling case 4. Nothing here gives up on a request because it is old.
#[tokio::test]
async fn case_4_a_request_longer_than_any_reaper_is_still_counted() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |_, _| {
            let mut steps = vec![token("a")];
            for _ in 0..15 {
                steps.extend([Step::Gate(Arc::clone(&gate)), token("b")]);
            }
            steps.extend([Step::Gate(Arc::clone(&gate)), finish()]);
            Reply::Stream(steps)
        })
        .await
    };
    let proxy = proxy(&[&engine]);
    let mut response = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut response).await.is_some());
    for minute in 0..15 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_mins(1)).await;
        tokio::time::resume();
        assert_eq!(
            metric(&proxy, &["headpond_scheduler_in_flight "]),
            1,
            "minute {minute}"
        );
        gate.notify_one();
        let piece = frame(&mut response).await.expect("it goes on");
        assert!(piece.contains("\"b\""), "minute {minute}: {piece}");
    }
    gate.notify_one();
    while frame(&mut response).await.is_some() {}
    assert_eq!(record(&proxy, 1)["outcome"], "completed");
    assert_at_rest(&proxy);
}

/// Scheduling case 5: its counters; what the pool forgets is tested there.
#[tokio::test]
async fn case_5_a_flapping_endpoint_leaves_no_count_behind() {
    let stays = Stub::start(|_, request| either(request)).await;
    let place = Place::new();
    let address = place.address.to_string();
    let mut flaps = Some(Stub::start_at(&address, |_, request| either(request)).await);
    let proxy = proxy(&[&stays, flaps.as_ref().expect("it runs")]);
    for round in 0..12 {
        let range = round * 10..round * 10 + 10;
        for answer in ask_many(&proxy, range).await {
            assert_eq!(answer.status, 200, "round {round}");
        }
        flaps = match flaps {
            Some(_) => None,
            None => Some(Stub::start_at(&address, |_, request| either(request)).await),
        };
    }
    assert_at_rest(&proxy);
    assert_eq!(metric(&proxy, &["requests_total", "completed"]), 120);
}

/// Scheduling case 25.
#[tokio::test]
async fn case_25_names_ipv6_and_a_metrics_port_work_from_a_file() {
    let by_name = Stub::start(|_, _| completion()).await;
    let by_ipv6 = Stub::start_at("[::1]:0", |_, _| completion()).await;
    let metrics = Stub::start(|_, _| completion()).await;
    let file = serde_json::from_value(json!({
        "policy": "round-robin",
        "scrape": {"interval_ms": 50},
        "endpoints": [
            {"url": format!("http://localhost:{}", by_name.address.port()), "metrics_url": metrics.url(), "models": ["m"]},
            {"url": format!("http://{}", by_ipv6.address), "name": "six", "engine": "vllm"},
        ],
    }))
    .expect("a section");
    let proxy = SchedulerProxy::new(scheduler_proxy::Config::check(file).expect("allowed"), 1);
    for n in 0..4 {
        assert_eq!(ask(&proxy, n, completion_request()).await.status, 200);
    }
    assert_eq!((by_name.count(), by_ipv6.count()), (2, 2));
    until("metrics are read where they are", || {
        metrics.metrics_pages() > 0 && by_ipv6.metrics_pages() > 0
    })
    .await;
    assert_eq!(by_name.metrics_pages(), 0);
    let names: Vec<String> = proxy
        .snapshot()
        .endpoints
        .iter()
        .map(|one| one.name.to_string())
        .collect();
    assert_eq!(
        names,
        [
            format!("localhost:{}", by_name.address.port()),
            "six".to_owned()
        ]
    );
}

/// Scheduling case 27.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_27_ten_thousand_cancels_leave_every_gauge_at_zero() {
    const CALLS: u64 = 10_000;
    const AT_ONCE: u64 = 50;
    let engines = [
        Stub::start(|n, request| {
            if n % 7 == 3 {
                answer_json(503, "{}")
            } else {
                either(request)
            }
        })
        .await,
        Stub::start(|n, request| {
            if n % 5 == 3 {
                Reply::Close
            } else {
                either(request)
            }
        })
        .await,
    ];
    let proxy = proxy_with(&[&engines[0], &engines[1]], json!({"room": 8}));
    let mut callers = JoinSet::new();
    for caller in 0..AT_ONCE {
        let proxy = proxy.clone();
        callers.spawn(async move {
            let mut dice = Dice(caller + 1);
            for n in 0..CALLS / AT_ONCE {
                let steps = dice.roll(30);
                cancelled(&proxy, caller * CALLS + n, steps, dice.roll(2) == 0).await;
            }
        });
    }
    callers.join_all().await;
    until("the engines have heard of it", || {
        engines.iter().all(|engine| engine.open() == 0)
    })
    .await;
    assert_at_rest(&proxy);
    let outcomes: u64 = [
        "completed",
        "client_closed",
        "failed",
        "interrupted",
        "rejected",
        "queue_full",
        "no_endpoint",
    ]
    .iter()
    .map(|outcome| metric(&proxy, &["requests_total", &format!("\"{outcome}\"")]))
    .sum();
    assert_eq!(outcomes, CALLS, "every call has one outcome");
    assert!(metric(&proxy, &["requests_total", "\"client_closed\""]) > 1000);
    let answer = ask(&proxy, u64::MAX, completion_request()).await;
    assert_eq!(answer.status, 200, "it still serves");
}

/// Gives the call some turns, then leaves, wherever that is.
async fn cancelled(proxy: &SchedulerProxy, n: u64, turns: u64, stream: bool) {
    let request = if stream {
        chat_request()
    } else {
        completion_request()
    };
    let whole = async {
        let mut response = proxy.call(context(n), request).await;
        while let Some(Ok(_)) = http_body_util::BodyExt::frame(response.body_mut()).await {}
    };
    let patience = async {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = whole => {}
        () = patience => {}
    }
}

/// Scheduling case 30.
#[tokio::test]
async fn case_30_rejected_requests_never_count_against_an_endpoint() {
    let engine = Stub::start(|n, request| {
        if n < 120 {
            answer_json(400, r#"{"error":{"message":"bad"}}"#)
        } else {
            either(request)
        }
    })
    .await;
    let proxy = proxy(&[&engine]);
    for n in 0..120 {
        assert_eq!(ask(&proxy, n, completion_request()).await.status, 400);
    }
    for answer in ask_many(&proxy, 200..300).await {
        assert_eq!(answer.status, 200, "no good request is lost");
    }
    assert_eq!(metric(&proxy, &["attempts_total", "\"rejected\""]), 120);
    assert_eq!(metric(&proxy, &["attempts_total", "\"failed\""]), 0);
    assert_at_rest(&proxy);
}

/// Scheduling case 31.
#[tokio::test]
async fn case_31_a_busy_engine_is_back_pressure_not_a_failure() {
    let busy = Stub::start(|n, request| {
        if n < 30 {
            answer_json(503, "{}")
        } else {
            either(request)
        }
    })
    .await;
    let good = Stub::start(|_, request| either(request)).await;
    let proxy = proxy(&[&busy, &good]);
    for n in 0..60 {
        assert_eq!(ask(&proxy, n, chat_request()).await.status, 200);
    }
    assert_eq!(
        metric(&proxy, &["attempts_total", "\"failed\"", "\"e0\""]),
        0
    );
    assert!(metric(&proxy, &["attempts_total", "\"busy\"", "\"e0\""]) > 0);
    assert_eq!(metric(&proxy, &["endpoint_quarantined{", "\"e0\""]), 0);
    assert_at_rest(&proxy);
}

/// Scheduling case 32: an engine whose keep-alive ends just when a connection is used again.
#[tokio::test]
async fn case_32_no_request_fails_on_a_connection_the_engine_was_closing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let answered = Arc::new(AtomicUsize::new(0));
    let mut engine = JoinSet::new();
    engine.spawn(closing_engine(listener, Arc::clone(&answered)));
    let metrics = Stub::start(|_, _| completion()).await;
    let proxy = SchedulerProxy::new(
        config(json!({"endpoints": [{"url": url, "metrics_url": metrics.url()}], "attempts": 1})),
        1,
    );
    for n in 0..200 {
        let answer = ask(&proxy, n, completion_request()).await;
        assert_eq!(answer.status, 200, "request {n}: {}", answer.text);
    }
    assert_eq!(
        answered.load(Ordering::SeqCst),
        200,
        "nothing was computed twice"
    );
    assert_at_rest(&proxy);
}

/// Answers one request per connection and takes the next one without a word, or closes before it comes.
async fn closing_engine(listener: TcpListener, answered: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    let mut number = 0;
    while let Ok((mut stream, _)) = listener.accept().await {
        let answered = Arc::clone(&answered);
        number += 1;
        let takes_second = number % 2 == 0;
        connections.spawn(async move {
            let mut request = vec![0; 4096];
            if stream.read(&mut request).await.unwrap_or(0) == 0 {
                return;
            }
            answered.fetch_add(1, Ordering::SeqCst);
            let answer =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            if stream.write_all(answer.as_bytes()).await.is_ok() && takes_second {
                let _ = stream.read(&mut request).await;
            }
        });
    }
}

#[tokio::test]
async fn draining_serves_what_is_accepted_and_cuts_what_outlasts_the_limit() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |_, _| {
            Reply::Stream(vec![token("a"), Step::Gate(Arc::clone(&gate)), finish()])
        })
        .await
    };
    let proxy = proxy(&[&engine]);
    let mut first = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let drain = proxy.drain(crate::rig::LIMIT);
    let mut drain = std::pin::pin!(drain);
    let refused = tokio::select! {
        biased;
        _ = &mut drain => panic!("a stream is open"),
        refused = ask(&proxy, 2, chat_request()) => refused,
    };
    assert_eq!(refused.status, 503);
    assert_eq!(refused.headers["x-headpond-reason"], "shutting_down");
    gate.notify_one();
    let (cut, ()) = tokio::join!(drain, async { while frame(&mut first).await.is_some() {} });
    assert_eq!(cut, 0);
    assert_eq!(record(&proxy, 1)["outcome"], "completed");

    let proxy = crate::rig::proxy(&[&engine]);
    let mut open = proxy.call(context(3), chat_request()).await;
    assert!(frame(&mut open).await.is_some());
    let (cut, rest) = tokio::join!(proxy.drain(Duration::from_millis(1)), frame(&mut open));
    assert_eq!(cut, 1);
    assert!(rest.expect("an error event").contains("shutting_down"));
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn draining_waits_for_what_is_queued_and_refuses_it_at_the_limit() {
    let engine = Stub::start(|n, request| {
        if n == 0 {
            Reply::Stream(vec![token("a"), Step::Hang])
        } else {
            either(request)
        }
    })
    .await;
    let proxy = proxy_with(&[&engine], json!({"room": 1}));
    let mut first = proxy.call(context(1), chat_request()).await;
    assert!(frame(&mut first).await.is_some());
    let drained = async {
        until("one waits", || proxy.snapshot().queue_length == 1).await;
        drop(first);
        proxy.drain(crate::rig::LIMIT).await
    };
    let (second, cut) = tokio::join!(ask(&proxy, 2, chat_request()), drained);
    assert_eq!((second.status.as_u16(), cut), (200, 0));

    let nowhere = proxy_with(&[], json!({"queue": {"no_endpoint_ttl_ms": 60_000}}));
    let drained = async {
        until("one waits", || nowhere.snapshot().queue_length == 1).await;
        nowhere.drain(Duration::from_millis(1)).await
    };
    let (waited, cut) = tokio::join!(ask(&nowhere, 3, chat_request()), drained);
    assert_eq!((waited.status.as_u16(), cut), (503, 1));
    assert_eq!(waited.headers["x-headpond-reason"], "shutting_down");
    assert_eq!(waited.headers["x-headpond-work"], "none");
    assert_at_rest(&nowhere);
}

#[tokio::test]
async fn what_has_no_room_waits_here_in_order() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |n, request| {
            if n == 0 {
                Reply::Stream(vec![token("a"), Step::Gate(Arc::clone(&gate)), finish()])
            } else {
                either(request)
            }
        })
        .await
    };
    let proxy = proxy_with(
        &[&engine],
        json!({"room": 1, "queue": {"requests": 2, "ttl_ms": 60_000}}),
    );
    let mut first = proxy.call(context(1), chat_request()).await;
    let mut waiting = JoinSet::new();
    for n in 2..4 {
        let proxy = proxy.clone();
        waiting.spawn(async move { ask(&proxy, n, chat_request()).await });
    }
    until("two wait", || proxy.snapshot().queue_length == 2).await;
    assert_eq!(metric(&proxy, &["scheduler_queue_length "]), 2);
    let refused = ask(&proxy, 9, chat_request()).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.headers["x-headpond-reason"], "queue_full");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(engine.count(), 1);
    gate.notify_one();
    while frame(&mut first).await.is_some() {}
    for answer in waiting.join_all().await {
        assert_eq!(answer.status, 200);
    }
    assert_at_rest(&proxy);
}
