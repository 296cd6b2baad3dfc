//! The metrics pages against recorded ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use loadgen::engine::{EngineConfig, SimEngine, Vocabulary};
use prometheus_parse::{Scrape, Value};
use serde_json::json;

use super::{
    client::{get, post},
    eventually, start, tiny,
};

/// The parser knows no colons in names.
fn parse(page: &str) -> Scrape {
    let plain = page
        .replace("vllm:", "vllm__")
        .replace("sglang:", "sglang__");
    Scrape::parse(plain.lines().map(|l| Ok(l.to_owned()))).expect("lines are at hand")
}

/// Label names and kind of every sample name.
fn families(scrape: &Scrape) -> BTreeMap<String, (&'static str, BTreeSet<String>)> {
    let mut families = BTreeMap::new();
    for sample in &scrape.samples {
        let kind = match sample.value {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
            Value::Summary(_) => "summary",
            Value::Untyped(_) => "untyped",
        };
        let labels = sample.labels.keys().cloned().collect();
        families.insert(sample.metric.clone(), (kind, labels));
    }
    families
}

async fn busy(vocabulary: Vocabulary) -> SimEngine {
    let engine = start(tiny(vocabulary)).await;
    let text = "the same words again and again and again ".repeat(20);
    for stream in [false, true] {
        let body = json!({"prompt": text, "max_tokens": 8, "stream": stream});
        post(engine.addr(), "/v1/completions", &body).await;
    }
    eventually("the last step is counted", || engine.gauges().running == 0).await;
    engine
}

#[tokio::test]
async fn families_are_those_of_the_real_servers() {
    for (vocabulary, directory) in [
        (Vocabulary::Vllm, "vllm-0.32.0"),
        (Vocabulary::Sglang, "sglang-0.5.23"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(directory);
        let read = |file: &str| {
            std::fs::read_to_string(path.join(file)).expect("fixtures are part of the crate")
        };
        let recorded = families(&parse(&read("metrics-under-load.body")));
        let engine = busy(vocabulary).await;
        let answer = get(engine.addr(), "/metrics").await;
        let ours = families(&parse(&answer.body));
        assert!(ours.len() > 25, "{} families", ours.len());
        for (name, (kind, labels)) in &ours {
            let Some((recorded_kind, recorded_labels)) = recorded.get(name) else {
                panic!("{name} is not a metric of {directory}");
            };
            assert_eq!(kind, recorded_kind, "{name}");
            if name.ends_with("_info") {
                assert!(labels.is_subset(recorded_labels), "{name}: {labels:?}");
            } else {
                assert_eq!(labels, recorded_labels, "{name}");
            }
        }
        let headers = if vocabulary == Vocabulary::Sglang {
            "metrics-idle.headers"
        } else {
            "metrics-idle-fresh.headers"
        };
        let kind = read(headers);
        let kind = kind.lines().find_map(|l| {
            l.to_lowercase()
                .strip_prefix("content-type: ")
                .map(str::to_owned)
        });
        assert_eq!(answer.header("content-type").map(str::to_owned), kind);
    }
}

fn value(scrape: &Scrape, name: &str) -> f64 {
    let name = name.replace(':', "__");
    let values = scrape
        .samples
        .iter()
        .filter(|s| s.metric == name)
        .map(|s| match &s.value {
            Value::Counter(v) | Value::Gauge(v) | Value::Untyped(v) => *v,
            Value::Histogram(_) | Value::Summary(_) => f64::NAN,
        });
    values.sum()
}

#[tokio::test]
async fn counters_count_what_was_done() {
    let engine = busy(Vocabulary::Vllm).await;
    let scrape = parse(&get(engine.addr(), "/metrics").await.body);
    // 820 bytes are 205 tokens: six full blocks of 32 are found the second time.
    for (name, expected) in [
        ("vllm:prompt_tokens_total", 410.0),
        ("vllm:prefix_cache_queries_total", 410.0),
        ("vllm:prefix_cache_hits_total", 192.0),
        ("vllm:generation_tokens_total", 16.0),
        ("vllm:request_success_total", 2.0),
        ("vllm:num_requests_running", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
    ] {
        assert!(
            (value(&scrape, name) - expected).abs() < 1e-9,
            "{name} is {}",
            value(&scrape, name)
        );
    }
    let sglang = busy(Vocabulary::Sglang).await;
    let scrape = parse(&get(sglang.addr(), "/metrics").await.body);
    assert!((value(&scrape, "sglang:cached_tokens_total") - 192.0).abs() < 1e-9);
    assert!((value(&scrape, "sglang:num_requests_total") - 2.0).abs() < 1e-9);
}

#[tokio::test]
async fn the_filter_works_with_the_slash_only() {
    let engine = busy(Vocabulary::Vllm).await;
    let query = "name%5B%5D=vllm:num_requests_running&name%5B%5D=vllm:prompt_tokens_total";
    let filtered = get(engine.addr(), &format!("/metrics/?{query}")).await.body;
    let names: BTreeSet<String> = parse(&filtered)
        .samples
        .into_iter()
        .map(|s| s.metric)
        .collect();
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["vllm__num_requests_running", "vllm__prompt_tokens_total"]
    );
    let full = get(engine.addr(), "/metrics").await.body;
    assert_eq!(
        get(engine.addr(), &format!("/metrics?{query}")).await.body,
        full
    );
    let sglang = busy(Vocabulary::Sglang).await;
    assert_eq!(
        get(sglang.addr(), "/metrics/?name[]=sglang:num_running_reqs")
            .await
            .body,
        ""
    );
}

#[tokio::test]
async fn old_names_are_there_if_asked_for() {
    let engine = start(tiny(Vocabulary::VllmLegacy)).await;
    let page = get(engine.addr(), "/metrics").await.body;
    assert!(page.contains("\nvllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.0\n"));
    assert!(page.contains("\nvllm:kv_cache_usage_perc{"));
}

/// SGLang shows a decoding batch only every so many steps.
#[tokio::test]
async fn sglang_gauges_are_stale_between_logged_steps() {
    let config = EngineConfig {
        speed: 1.0,
        decode_log_interval: 1_000,
        ..tiny(Vocabulary::Sglang)
    };
    let engine = start(config).await;
    let ask = |max_tokens: u32| {
        json!({"prompt": "x", "max_tokens": max_tokens, "stream": true}).to_string()
    };
    let mut long = super::client::Connection::open(engine.addr())
        .await
        .expect("listens");
    long.send("POST", "/v1/completions", &[], &ask(1_000)).await;
    long.head().await.expect("headers");
    long.chunk().await.expect("a token");
    let mut short = super::client::Connection::open(engine.addr())
        .await
        .expect("listens");
    short.send("POST", "/v1/completions", &[], &ask(3)).await;
    assert!(short.receive().await.expect("an answer").complete);
    assert_eq!(
        engine.gauges().running,
        2,
        "the prefill batch was the last one shown"
    );
    assert_eq!(engine.counters().finished, 1);
}
