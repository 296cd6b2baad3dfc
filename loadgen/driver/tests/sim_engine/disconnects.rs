//! Clients that leave, and connections that idle.

use std::time::Duration;

use loadgen::engine::{EngineConfig, Outcome, SimEngine, Vocabulary};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{client::Connection, eventually, start, tiny};

async fn ask(engine: &SimEngine, stream: bool) -> Connection {
    let body = json!({"prompt": "x", "max_tokens": 1_900, "stream": stream}).to_string();
    let mut connection = Connection::open(engine.addr()).await.expect("listens");
    connection.send("POST", "/v1/completions", &[], &body).await;
    connection
}

fn slow() -> EngineConfig {
    EngineConfig {
        speed: 1.0,
        ..tiny(Vocabulary::Vllm)
    }
}

async fn check_gone(engine: &SimEngine) {
    eventually("the engine is rid of the request", || {
        engine.counters().aborted == 1
            && engine.gauges().running == 0
            && engine.gauges().kv_used_blocks == 0
    })
    .await;
    let record = engine.usage().pop().expect("one record");
    assert_eq!(record.outcome, Outcome::Aborted);
    assert!(record.generated_tokens < 1_900);
}

#[tokio::test]
async fn a_streaming_client_that_leaves_frees_its_memory() {
    let engine = start(slow()).await;
    let mut connection = ask(&engine, true).await;
    connection.head().await.expect("headers");
    connection.chunk().await.expect("a token");
    assert_eq!(engine.gauges().running, 1);
    drop(connection);
    check_gone(&engine).await;
    assert!(engine.usage()[0].generated_tokens > 0);
}

#[tokio::test]
async fn a_client_that_waits_for_the_whole_answer_may_leave_too() {
    let engine = start(slow()).await;
    let connection = ask(&engine, false).await;
    eventually("it runs", || engine.gauges().running == 1).await;
    drop(connection);
    check_gone(&engine).await;
}

#[tokio::test]
async fn a_half_closed_connection_counts_as_gone() {
    let engine = start(slow()).await;
    let mut connection = ask(&engine, true).await;
    connection.head().await.expect("headers");
    connection.chunk().await.expect("a token");
    connection
        .stream
        .get_mut()
        .shutdown()
        .await
        .expect("the sending side closes");
    check_gone(&engine).await;
}

#[tokio::test]
async fn a_client_may_leave_the_queue() {
    let engine = start(EngineConfig {
        max_num_seqs: 1.try_into().ok(),
        ..slow()
    })
    .await;
    let _first = ask(&engine, true).await;
    let second = ask(&engine, true).await;
    eventually("one runs and one waits", || {
        (engine.gauges().running, engine.gauges().waiting) == (1, 1)
    })
    .await;
    drop(second);
    eventually("the queue is empty", || engine.gauges().waiting == 0).await;
    assert_eq!(engine.gauges().running, 1);
}

/// On a clock that jumps to the next timer whenever everybody waits.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_closes_after_five_seconds() {
    let engine = start(slow()).await;
    let mut connection = Connection::open(engine.addr()).await.expect("listens");
    connection.send("GET", "/version", &[], "").await;
    connection.receive().await.expect("an answer");
    let answered = tokio::time::Instant::now();
    let mut byte = [0];
    assert_eq!(
        connection
            .stream
            .read(&mut byte)
            .await
            .expect("a clean end"),
        0
    );
    let idle = answered.elapsed();
    assert!(
        (Duration::from_secs(5)..Duration::from_millis(5_100)).contains(&idle),
        "{idle:?}"
    );
}

#[tokio::test]
async fn a_thousand_idle_engines_fit_in_one_process() {
    // Beside those of the other tests in this process they need more sockets than the customary 1,024.
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, most).expect("the soft limit may be raised to the hard one");
    let mut engines = Vec::new();
    for _ in 0..1_000 {
        engines.push(start(tiny(Vocabulary::Vllm)).await);
    }
    for engine in [&engines[0], &engines[999]] {
        let body = json!({"prompt": "x", "max_tokens": 2});
        assert_eq!(
            super::client::post(engine.addr(), "/v1/completions", &body)
                .await
                .status,
            200
        );
    }
}
