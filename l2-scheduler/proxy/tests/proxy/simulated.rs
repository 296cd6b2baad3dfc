//! The proxy in front of simulated engines, which compute, cache and break as real ones do.

use bytes::Bytes;
use engine_model::Profile;
use http::Request;
use loadgen::engine::{EngineConfig, Fault, SimEngine, UsageReport};
use scheduler_proxy::SchedulerProxy;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::rig::{NEVER_HUNG_MS, ask, assert_at_rest, config, metric, post, record, until};

async fn engines(count: u64, speed: f64) -> Vec<SimEngine> {
    let mut engines = Vec::new();
    for seed in 0..count {
        let config = EngineConfig {
            seed,
            speed,
            ..EngineConfig::new(Profile::LLAMA_8B_A100)
        };
        engines.push(SimEngine::start(config).await.expect("a free port"));
    }
    engines
}

fn proxy(engines: &[SimEngine], settings: &Value) -> SchedulerProxy {
    let endpoints: Vec<Value> = engines
        .iter()
        .enumerate()
        .map(|(index, engine)| json!({"url": engine.url(), "name": format!("e{index}")}))
        .collect();
    let mut section = json!({
        "endpoints": endpoints,
        "timeouts": {"hang_floor_ms": NEVER_HUNG_MS},
    });
    for (key, value) in settings.as_object().expect("settings are an object") {
        section[key] = value.clone();
    }
    SchedulerProxy::new(config(section), 1)
}

/// Turn `turn` of a conversation: all the turns before it, and a new one.
fn turn(session: u64, turn: u64) -> Request<Bytes> {
    let messages: Vec<Value> = (0..=turn)
        .flat_map(|n| {
            let said = format!("session {session} turn {n} ").repeat(450);
            let role = if n == 0 { "system" } else { "user" };
            [
                json!({"role": role, "content": said}),
                json!({"role": "assistant", "content": "yes"}),
            ]
        })
        .collect();
    let body = json!({
        "model": "sim-model", "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": 8, "ignore_eos": true, "messages": messages,
    });
    post("/v1/chat/completions", body.to_string())
}

/// At a speed where a cached prefix saves more than the 2 ms that count as equal.
#[tokio::test]
async fn conversations_stay_where_their_prefix_is_cached() {
    let engines = engines(3, 4.0).await;
    let proxy = proxy(&engines, &json!({}));
    let (sessions, turns) = (9, 5);
    let (mut stayed, mut cached) = (0, 0);
    for n in 0..turns {
        for session in 0..sessions {
            let id = session * 100 + n;
            let answer = ask(&proxy, id, turn(session, n)).await;
            assert!(answer.text.ends_with("[DONE]\n\n"), "{}", answer.text);
            let attempt = record(&proxy, id)["attempts"][0].clone();
            assert_eq!(attempt["measured"]["output_tokens"], 8);
            if n > 0 {
                let before = record(&proxy, id - 1)["attempts"][0]["endpoint"].clone();
                stayed += u64::from(before == attempt["endpoint"]);
                cached += u64::from(attempt["measured"]["cached_tokens"].as_u64() > Some(100));
            }
        }
    }
    let mut page = String::new();
    proxy.encode_metrics(&mut page);
    for gauge in ["endpoint_kv_use_ratio", "endpoint_metrics_age_seconds"] {
        let shown = page
            .lines()
            .filter(|line| line.starts_with(&format!("headpond_scheduler_{gauge}{{")));
        assert_eq!(shown.count(), 3, "{gauge}: one per endpoint");
    }
    let follow_ups = sessions * (turns - 1);
    assert!(
        stayed * 10 >= follow_ups * 9,
        "{stayed} of {follow_ups} stayed"
    );
    assert!(
        cached * 10 >= follow_ups * 9,
        "{cached} of {follow_ups} hit the cache"
    );
    let used = engines
        .iter()
        .filter(|engine| engine.usage_totals().sequences > 0)
        .count();
    assert_eq!(used, 3, "and not all in one place");
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn whatever_breaks_in_one_engine_no_request_is_lost() {
    let mut cases = JoinSet::new();
    for fault in [
        Fault::Refuse,
        Fault::Stall,
        Fault::HangBeforeFirstToken,
        Fault::Cut { chunks: 0 },
        Fault::Busy,
        Fault::ErrorInStream { chunks: 0 },
        Fault::InternalError {
            after_tokens: 0,
            usage: UsageReport::Missing,
        },
        Fault::InternalError {
            after_tokens: 0,
            usage: UsageReport::Included,
        },
        Fault::MetricsDrop,
        Fault::MetricsTruncate,
        Fault::MetricsFreeze,
    ] {
        cases.spawn(none_is_lost(fault));
    }
    cases.join_all().await;
}

async fn none_is_lost(fault: Fault) {
    let engines = engines(2, 200.0).await;
    let settings = json!({"policy": "round-robin", "timeouts": {"hang_floor_ms": 4_000}});
    let proxy = proxy(&engines, &settings);
    // Once their speed is known, four seconds of silence are a hang, and not ten times as many.
    for n in 0..8 {
        assert_eq!(ask(&proxy, n, turn(n, 0)).await.status, 200);
    }
    engines[0].faults().inject(fault);
    let mut calls = JoinSet::new();
    for n in 8..28 {
        let proxy = proxy.clone();
        calls.spawn(async move { ask(&proxy, n, turn(n, 0)).await });
    }
    for answer in calls.join_all().await {
        assert_eq!(answer.status, 200, "{fault:?}: {}", answer.text);
        assert!(
            answer.text.ends_with("[DONE]\n\n"),
            "{fault:?}: {}",
            answer.text
        );
        assert!(
            !answer.text.contains("\"error\""),
            "{fault:?}: {}",
            answer.text
        );
    }
    assert_eq!(
        metric(&proxy, &["requests_total", "\"completed\""]),
        28,
        "{fault:?}"
    );
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_engine() {
    let engines = engines(1, 200.0).await;
    let proxy = proxy(&engines, &json!({}));
    engines[0].faults().inject(Fault::Slow { factor: 200.0 });
    for n in 0..5 {
        let mut response = proxy.call(crate::rig::context(n), turn(n, 0)).await;
        assert!(crate::rig::frame(&mut response).await.is_some());
    }
    assert_at_rest(&proxy);
    until("the engine runs nothing", || {
        engines[0].gauges().running == 0
    })
    .await;
}
