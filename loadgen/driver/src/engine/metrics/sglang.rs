//! Names and labels of SGLang 0.5.23.

use super::{
    EngineConfig, Metrics,
    page::{Kind, Page, labels},
};

pub(super) fn render(m: &Metrics, config: &EngineConfig, page: &mut Page<'_>) {
    let model = config.base_model();
    let by_streaming = ["false", "true"].map(|streaming| {
        labels(&[
            ("engine_type", "unified"),
            ("is_streaming", streaming),
            ("model_name", model),
        ])
    });
    histograms(m, model, page);
    traffic(m, model, &by_streaming, page);
    scheduler(m, config, page);
}

fn histograms(m: &Metrics, model: &str, page: &mut Page<'_>) {
    let model = labels(&[("model_name", model)]);
    let before = ["false", "true"]
        .map(|streaming| labels(&[("engine_type", "unified"), ("is_streaming", streaming)]));
    for (name, help, pair) in [
        (
            "sglang:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            &m.first_token,
        ),
        (
            "sglang:e2e_request_latency_seconds",
            "Histogram of end-to-end latency in seconds.",
            &m.latency,
        ),
        (
            "sglang:request_time_per_output_token_seconds",
            "Histogram of mean time per output token in seconds.",
            &m.time_per_token,
        ),
    ] {
        let series = [
            (before[0].as_str(), model.as_str(), &pair[0]),
            (&before[1], &model, &pair[1]),
        ];
        page.histogram(name, help, &series);
    }
    let unified = labels(&[("engine_type", "unified")]);
    for (name, help, histogram) in [
        (
            "sglang:prompt_tokens_histogram",
            "Histogram of prompt tokens.",
            &m.prompt_tokens,
        ),
        (
            "sglang:uncached_prompt_tokens_histogram",
            "Histogram of uncached tokens.",
            &m.uncached_tokens,
        ),
        (
            "sglang:generation_tokens_histogram",
            "Histogram of generated tokens.",
            &m.generation_tokens,
        ),
        (
            "sglang:inter_token_latency_seconds",
            "Histogram of time between tokens.",
            &m.inter_token,
        ),
    ] {
        page.histogram(name, help, &[(&unified, &model, histogram)]);
    }
    let ranks = labels(&[("pp_rank", "0"), ("tp_rank", "0")]);
    let after = format!("{model},moe_ep_rank=\"0\",{ranks}");
    page.histogram(
        "sglang:queue_time_seconds",
        "Histogram of queueing time in seconds.",
        &[(&unified, &after, &m.queue)],
    );
}

fn traffic(m: &Metrics, model: &str, by_streaming: &[String; 2], page: &mut Page<'_>) {
    type Value = fn(&super::Traffic) -> u64;
    let families: [(&str, &str, Value); 3] = [
        (
            "sglang:prompt_tokens_total",
            "Number of prefill tokens processed.",
            |t| t.prompt_tokens,
        ),
        (
            "sglang:generation_tokens_total",
            "Number of generation tokens processed.",
            |t| t.generated_tokens,
        ),
        (
            "sglang:num_requests_total",
            "Number of requests processed.",
            |t| t.requests,
        ),
    ];
    for (name, help, value) in families {
        let samples: Vec<(&str, f64)> = by_streaming
            .iter()
            .zip(&m.traffic)
            .map(|(l, t)| (l.as_str(), value(t) as f64))
            .collect();
        page.family(Kind::Counter, name, help, &samples);
    }
    let device = labels(&[
        ("cache_source", "device"),
        ("engine_type", "unified"),
        ("model_name", model),
    ]);
    page.family(
        Kind::Counter,
        "sglang:cached_tokens_total",
        "Number of cached prompt tokens.",
        &[(&device, m.counters.cached_tokens as f64)],
    );
    if m.disconnects > 0 {
        // The first series appears with the first abort.
        let base = labels(&[("engine_type", "unified"), ("model_name", model)]);
        page.family(
            Kind::Counter,
            "sglang:num_aborted_requests_total",
            "Number of requests aborted.",
            &[(&base, m.disconnects as f64)],
        );
    }
}

fn scheduler(m: &Metrics, config: &EngineConfig, page: &mut Page<'_>) {
    let base = labels(&[
        ("engine_type", "unified"),
        ("model_name", config.base_model()),
        ("moe_ep_rank", "0"),
        ("pp_rank", "0"),
        ("tp_rank", "0"),
    ]);
    let model = config.step_model();
    let (g, size) = (&m.gauges, model.block_size);
    let (used, total) = (
        f64::from(g.kv_used_blocks * size),
        f64::from(model.num_blocks) * f64::from(size),
    );
    for (name, value) in [
        ("max_total_num_tokens", total),
        ("page_size", f64::from(size)),
        ("num_pages", f64::from(model.num_blocks)),
        ("context_len", f64::from(config.max_model_len)),
        ("num_running_reqs", f64::from(g.running)),
        ("num_queue_reqs", f64::from(g.waiting)),
        ("num_grammar_queue_reqs", 0.0),
        ("gen_throughput", 0.0),
        ("cache_hit_rate", 0.0),
        ("token_usage", (g.kv_use * 100.0).round() / 100.0),
        ("full_token_usage", g.kv_use),
        ("swa_token_usage", 0.0),
        ("mamba_usage", 0.0),
        ("num_used_tokens", used),
        ("kv_available_tokens", total - used),
        ("kv_evictable_tokens", 0.0),
        ("kv_used_tokens", used),
        ("num_prefill_bootstrap_queue_reqs", 0.0),
        ("num_prefill_inflight_queue_reqs", 0.0),
        ("num_decode_prealloc_queue_reqs", 0.0),
        ("num_decode_transfer_queue_reqs", 0.0),
        ("utilization", 0.0),
    ] {
        page.family(
            Kind::Gauge,
            &format!("sglang:{name}"),
            "Scheduler gauge.",
            &[(&base, value)],
        );
    }
}
