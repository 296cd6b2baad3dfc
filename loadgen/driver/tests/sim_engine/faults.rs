//! Everything that can be broken on command.

use std::time::Duration;

use loadgen::engine::{EngineConfig, Fault, SimEngine, UsageReport, Vocabulary};
use serde_json::{Value, json};

use super::{
    client::{Connection, get, post, request},
    eventually, start, tiny,
};

fn body(stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": 100, "stream": stream})
}

async fn open(engine: &SimEngine, stream: bool) -> Connection {
    let mut connection = Connection::open(engine.addr()).await.expect("listens");
    connection
        .send("POST", "/v1/completions", &[], &body(stream).to_string())
        .await;
    connection
}

/// Nothing more comes, however long one waits.
async fn is_silent(connection: &mut Connection) -> bool {
    tokio::time::timeout(Duration::from_millis(150), connection.chunk())
        .await
        .is_err()
}

#[tokio::test]
async fn a_stream_is_cut_at_the_chunk_told() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    for chunks in [0, 1, 4] {
        engine.faults().inject_times(Fault::Cut { chunks }, 1);
        let answer = request(
            engine.addr(),
            "POST",
            "/v1/completions",
            &[],
            &body(true).to_string(),
        )
        .await;
        assert_eq!(
            (answer.status, answer.chunks.len() as u32, answer.complete),
            (200, chunks, false)
        );
    }
    engine.faults().inject_times(Fault::Cut { chunks: 2 }, 1);
    assert!(
        open(&engine, false).await.receive().await.is_none(),
        "a whole answer never comes"
    );
    assert!(
        post(engine.addr(), "/v1/completions", &body(true))
            .await
            .complete,
        "the fault is used up"
    );
}

#[tokio::test]
async fn an_error_object_stands_inside_a_good_stream() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    engine
        .faults()
        .inject_times(Fault::ErrorInStream { chunks: 3 }, 1);
    let answer = post(engine.addr(), "/v1/completions", &body(true)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.complete);
    assert_eq!(
        answer.chunks.len(),
        5,
        "three chunks, the error, and the end"
    );
    assert_eq!(
        answer.events().last().expect("events")["error"]["code"],
        500
    );
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_500_may_say_what_was_used() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    for (after_tokens, usage, tokens) in [
        (0, UsageReport::Missing, None),
        (0, UsageReport::Included, Some(0)),
        (5, UsageReport::Missing, None),
        (5, UsageReport::Included, Some(5)),
    ] {
        engine.faults().inject_times(
            Fault::InternalError {
                after_tokens,
                usage,
            },
            1,
        );
        let answer = post(engine.addr(), "/v1/completions", &body(true)).await;
        assert_eq!(answer.status, 500);
        assert_eq!(answer.json()["error"]["type"], "InternalServerError");
        let reported = answer.json()["usage"]["completion_tokens"].as_u64();
        match tokens {
            Some(at_least) => assert!(reported.is_some_and(|r| r >= at_least), "{reported:?}"),
            None => assert_eq!(reported, None),
        }
    }
}

#[tokio::test]
async fn a_request_hangs_before_its_first_token() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    engine.faults().inject_times(Fault::HangBeforeFirstToken, 2);
    let mut stream = open(&engine, true).await;
    assert_eq!(stream.head().await.map(|h| h.status), Some(200));
    assert!(is_silent(&mut stream).await);
    let mut whole = open(&engine, false).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(150), whole.head())
            .await
            .is_err()
    );
    assert_eq!(engine.counters().prompt_tokens, 0);
}

#[tokio::test]
async fn a_request_hangs_after_its_first_token() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    engine.faults().inject_times(Fault::HangAfterFirstToken, 1);
    let mut stream = open(&engine, true).await;
    stream.head().await.expect("headers");
    assert!(
        stream
            .chunk()
            .await
            .is_some_and(|c| c.starts_with("data: {"))
    );
    assert!(is_silent(&mut stream).await);
}

#[tokio::test]
async fn a_stalled_engine_looks_healthy() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let before = get(engine.addr(), "/metrics").await.body;
    engine.faults().inject(Fault::Stall);
    let mut stream = open(&engine, true).await;
    stream.head().await.expect("headers");
    assert!(is_silent(&mut stream).await);
    assert_eq!(get(engine.addr(), "/health").await.status, 200);
    assert_eq!(
        get(engine.addr(), "/metrics").await.body,
        before,
        "gauges change only when it steps"
    );
    engine.faults().clear();
    assert!(stream.chunk().await.is_some(), "it goes on where it stood");
}

#[tokio::test]
async fn a_stall_ends_by_itself_if_told_so() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    engine
        .faults()
        .inject_for(Fault::Stall, Duration::from_millis(30));
    assert_eq!(
        post(engine.addr(), "/v1/completions", &body(true))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_refused_connection_is_refused_by_the_system() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let mut idle = Connection::open(engine.addr()).await.expect("listens");
    engine.faults().inject(Fault::Refuse);
    assert!(idle.receive().await.is_none(), "open connections end");
    assert!(Connection::open(engine.addr()).await.is_err());
    engine.faults().clear();
    assert!(comes_back(&engine).await);
}

async fn comes_back(engine: &SimEngine) -> bool {
    for _ in 0..1_000 {
        if let Ok(mut connection) = Connection::open(engine.addr()).await {
            connection.send("GET", "/health", &[], "").await;
            if connection.receive().await.is_some_and(|r| r.status == 200) {
                return true;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

fn started(page: &str) -> f64 {
    let line = page
        .lines()
        .find_map(|l| l.strip_prefix("process_start_time_seconds "));
    line.and_then(|v| v.parse().ok())
        .expect("the page says when the process began")
}

#[tokio::test]
async fn a_restart_cuts_streams_and_forgets_everything_but_its_name() {
    // A stream takes much longer than its first token.
    let engine = start(EngineConfig {
        speed: 0.1,
        ..tiny(Vocabulary::Vllm)
    })
    .await;
    let prompt = json!({"prompt": "long ".repeat(200), "max_tokens": 2});
    post(engine.addr(), "/v1/completions", &prompt).await;
    let before = started(&get(engine.addr(), "/metrics").await.body);
    let mut stream = open(&engine, true).await;
    stream.head().await.expect("headers");
    stream.chunk().await.expect("a token");
    engine.faults().inject(Fault::Restart { down_ms: 20 });
    while let Some(chunk) = stream.chunk().await {
        assert!(!chunk.is_empty(), "a cut stream has no proper end");
    }
    assert!(comes_back(&engine).await);
    eventually("counters begin again", || {
        engine.counters().prompt_tokens == 0
    })
    .await;
    assert!(started(&get(engine.addr(), "/metrics").await.body) > before);
    let again = post(engine.addr(), "/v1/completions", &prompt).await.json();
    assert_eq!(
        again["usage"]["prompt_tokens_details"]["cached_tokens"], 0,
        "the cache is empty"
    );
    assert_eq!(again["model"], "tiny");
}

#[tokio::test]
async fn a_busy_engine_answers_as_if_its_queue_were_full() {
    for (vocabulary, message) in [
        (Vocabulary::Vllm, "The engine is currently busy"),
        (Vocabulary::Sglang, "The request queue is full."),
    ] {
        let engine = start(tiny(vocabulary)).await;
        engine.faults().inject_times(Fault::Busy, 1);
        let answer = post(engine.addr(), "/v1/completions", &body(false)).await;
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains(message), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_slow_replica_takes_that_much_longer() {
    let engine = start(EngineConfig {
        speed: 1_000.0,
        ..tiny(Vocabulary::Vllm)
    })
    .await;
    engine.faults().inject(Fault::Slow { factor: 1_000.0 });
    let begin = std::time::Instant::now();
    post(engine.addr(), "/v1/completions", &body(false)).await;
    // 100 steps of at least 12.8 ms, each a thousandth of that without the fault.
    assert!(begin.elapsed() >= Duration::from_millis(1_280));
}

#[tokio::test]
async fn the_metrics_page_lies_freezes_breaks_and_ends_early() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let page = async || {
        let mut connection = Connection::open(engine.addr()).await.expect("listens");
        connection.send("GET", "/metrics", &[], "").await;
        connection.receive().await
    };
    engine.faults().inject(Fault::MetricsFreeze);
    let frozen = page().await.expect("a page").body;
    post(engine.addr(), "/v1/completions", &body(false)).await;
    assert_eq!(page().await.expect("a page").body, frozen);
    engine.faults().clear();
    assert_ne!(page().await.expect("a page").body, frozen);

    engine.faults().inject(Fault::MetricsTruncate);
    let truncated = page().await.expect("half a page");
    assert!(!truncated.complete && !truncated.body.is_empty() && !truncated.body.ends_with('\n'));
    engine.faults().clear();

    engine.faults().inject(Fault::MetricsDrop);
    assert!(page().await.is_none());
    engine.faults().clear();

    let begin = std::time::Instant::now();
    engine.faults().inject(Fault::MetricsSlow { delay_ms: 60 });
    assert!(
        page().await.is_some_and(|p| p.complete) && begin.elapsed() >= Duration::from_millis(60)
    );
}

#[tokio::test]
async fn the_metrics_page_can_say_idle_while_it_is_not() {
    let engine = start(EngineConfig {
        speed: 0.1,
        ..tiny(Vocabulary::Vllm)
    })
    .await;
    let mut stream = open(&engine, true).await;
    stream.head().await.expect("headers");
    stream.chunk().await.expect("a token");
    let running = async || {
        let page = get(engine.addr(), "/metrics").await.body;
        let line = page
            .lines()
            .find(|l| l.starts_with("vllm:num_requests_running{"))
            .map(str::to_owned);
        line.and_then(|l| l.rsplit(' ').next().map(str::to_owned))
    };
    assert_eq!(running().await.as_deref(), Some("1.0"));
    engine.faults().inject(Fault::MetricsLie);
    assert_eq!(running().await.as_deref(), Some("0.0"));
}

#[tokio::test]
async fn faults_come_over_the_control_path_if_it_is_open() {
    let engine = start(tiny(Vocabulary::Vllm)).await;
    let told = post(engine.addr(), "/sim/fault", &json!({"fault": "unhealthy"})).await;
    assert_eq!(told.status, 200);
    assert_eq!(get(engine.addr(), "/health").await.status, 503);
    post(engine.addr(), "/sim/fault", &json!({"fault": "clear"})).await;
    assert_eq!(get(engine.addr(), "/health").await.status, 200);
    assert_eq!(
        post(engine.addr(), "/sim/fault", &json!({"fault": "unknown"}))
            .await
            .status,
        400
    );

    let closed = start(EngineConfig {
        control_path: loadgen::engine::ControlPath::Off,
        ..tiny(Vocabulary::Vllm)
    })
    .await;
    assert_eq!(
        post(closed.addr(), "/sim/fault", &json!({"fault": "unhealthy"}))
            .await
            .status,
        404
    );
}
