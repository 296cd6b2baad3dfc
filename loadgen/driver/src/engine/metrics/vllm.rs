//! Names and labels of vLLM 0.32, and of 0.10 beside them.

use super::{
    EngineConfig, Histogram, Metrics,
    page::{Kind, Page, labels},
};

/// A counter and its `_created` companion.
fn counter(page: &mut Page<'_>, m: &Metrics, name: &str, help: &str, samples: &[(&str, f64)]) {
    page.family(Kind::Counter, &format!("{name}_total"), help, samples);
    let created: Vec<(&str, f64)> = samples
        .iter()
        .map(|(labels, _)| (*labels, m.started))
        .collect();
    page.family(Kind::Gauge, &format!("{name}_created"), help, &created);
}

pub(super) fn render(m: &Metrics, config: &EngineConfig, page: &mut Page<'_>) {
    page.family(
        Kind::Gauge,
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        &[("", m.started)],
    );
    let model = config.base_model();
    let base = labels(&[("engine", "0"), ("model_name", model)]);
    gauges(m, &base, page);
    tokens(m, &base, page);
    requests(m, model, page);
    histograms(m, model, &base, page);
    cache_config(config, page);
}

fn with(base: &str, name: &str, value: &str) -> String {
    format!("{base},{name}=\"{value}\"")
}

fn gauges(m: &Metrics, base: &str, page: &mut Page<'_>) {
    let g = &m.gauges;
    let mut gauge = |name: &str, help: &str, samples: &[(&str, f64)]| {
        page.family(Kind::Gauge, name, help, samples);
    };
    let (running, waiting) = (f64::from(g.running), f64::from(g.waiting));
    gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        &[(base, running)],
    );
    gauge(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        &[(base, waiting)],
    );
    let (capacity, deferred) = (
        with(base, "reason", "capacity"),
        with(base, "reason", "deferred"),
    );
    gauge(
        "vllm:num_requests_waiting_by_reason",
        "Number of requests waiting, by reason.",
        &[(&capacity, waiting), (&deferred, 0.0)],
    );
    let [awake, offloaded, discarded] =
        ["awake", "weights_offloaded", "discard_all"].map(|s| with(base, "sleep_state", s));
    gauge(
        "vllm:engine_sleep_state",
        "Engine sleep state; awake = 1 when it serves.",
        &[(&awake, 1.0), (&offloaded, 0.0), (&discarded, 0.0)],
    );
    gauge(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage; 1 is full.",
        &[(base, g.kv_use)],
    );
}

fn tokens(m: &Metrics, base: &str, page: &mut Page<'_>) {
    let c = &m.counters;
    let (prompt, cached) = (c.prompt_tokens as f64, c.cached_tokens as f64);
    let mut count =
        |name: &str, help: &str, samples: &[(&str, f64)]| counter(page, m, name, help, samples);
    count(
        "vllm:prefix_cache_queries",
        "Prefix cache queries, in tokens.",
        &[(base, prompt)],
    );
    count(
        "vllm:prefix_cache_hits",
        "Prefix cache hits, in tokens.",
        &[(base, cached)],
    );
    count(
        "vllm:external_prefix_cache_queries",
        "External cache queries, in tokens.",
        &[(base, 0.0)],
    );
    count(
        "vllm:external_prefix_cache_hits",
        "External cache hits, in tokens.",
        &[(base, 0.0)],
    );
    count(
        "vllm:num_preemptions",
        "Cumulative number of preemptions.",
        &[(base, c.preemptions as f64)],
    );
    count(
        "vllm:prompt_tokens",
        "Number of prefill tokens processed.",
        &[(base, prompt)],
    );
    let [compute, local, external] = ["local_compute", "local_cache_hit", "external_kv_transfer"]
        .map(|source| with(base, "source", source));
    count(
        "vllm:prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        &[
            (&compute, prompt - cached),
            (&local, cached),
            (&external, 0.0),
        ],
    );
    count(
        "vllm:prompt_tokens_cached",
        "Number of cached prompt tokens.",
        &[(base, cached)],
    );
    let sources = ["device", "host", "p2p", "disk", "external_unspecified"]
        .map(|source| with(base, "source", source));
    let by_source: Vec<(&str, f64)> = sources
        .iter()
        .enumerate()
        .map(|(i, l)| (l.as_str(), if i == 0 { cached } else { 0.0 }))
        .collect();
    count(
        "vllm:prompt_tokens_cached_by_source",
        "Number of cached prompt tokens by source.",
        &by_source,
    );
    count(
        "vllm:generation_tokens",
        "Generation tokens processed.",
        &[(base, c.generated_tokens as f64)],
    );
}

fn requests(m: &Metrics, model: &str, page: &mut Page<'_>) {
    let reasons = ["stop", "length", "abort", "error", "repetition"];
    let reasons = reasons.map(|r| {
        labels(&[
            ("engine", "0"),
            ("finished_reason", r),
            ("model_name", model),
        ])
    });
    // Clients that leave are not counted anywhere, as on the real engine.
    let values = [m.stopped as f64, m.ended_by_length as f64, 0.0, 0.0, 0.0];
    let samples: Vec<(&str, f64)> = reasons.iter().map(String::as_str).zip(values).collect();
    counter(
        page,
        m,
        "vllm:request_success",
        "Count of successfully processed requests.",
        &samples,
    );
    let [requests, tokens] = ["max_num_queued_reqs", "max_num_queued_tokens"]
        .map(|reason| labels(&[("model_name", model), ("reason", reason)]));
    counter(
        page,
        m,
        "vllm:admission_rejections",
        "Requests refused because the queue was full.",
        &[(&requests, m.rejected as f64), (&tokens, 0.0)],
    );
}

fn histograms(m: &Metrics, model: &str, base: &str, page: &mut Page<'_>) {
    let model = labels(&[("model_name", model)]);
    let mut one = |name: &str, help: &str, parts: &[&Histogram]| {
        let merged = merge(parts);
        let histogram = merged.as_ref().unwrap_or(parts[0]);
        page.histogram(name, help, &[("engine=\"0\"", &model, histogram)]);
        page.family(
            Kind::Gauge,
            &format!("{name}_created"),
            help,
            &[(base, m.started)],
        );
    };
    one(
        "vllm:request_prompt_tokens",
        "Number of prefill tokens of a request.",
        &[&m.prompt_tokens],
    );
    one(
        "vllm:request_generation_tokens",
        "Number of generated tokens.",
        &[&m.generation_tokens],
    );
    one(
        "vllm:iteration_tokens_total",
        "Tokens per engine step.",
        &[&m.iteration_tokens],
    );
    one(
        "vllm:request_max_num_generation_tokens",
        "Most generated tokens asked.",
        &[&m.generation_tokens],
    );
    one("vllm:request_params_n", "The n of requests.", &[&m.choices]);
    one(
        "vllm:request_params_max_tokens",
        "The max_tokens of requests.",
        &[&m.max_tokens],
    );
    let [a, b] = &m.first_token;
    one(
        "vllm:time_to_first_token_seconds",
        "Time to first token in seconds.",
        &[a, b],
    );
    one(
        "vllm:inter_token_latency_seconds",
        "Time between tokens in seconds.",
        &[&m.inter_token],
    );
    let [a, b] = &m.time_per_token;
    one(
        "vllm:request_time_per_output_token_seconds",
        "Mean time per output token.",
        &[a, b],
    );
    let [a, b] = &m.latency;
    one(
        "vllm:e2e_request_latency_seconds",
        "Request latency in seconds.",
        &[a, b],
    );
    one(
        "vllm:request_queue_time_seconds",
        "Time spent waiting.",
        &[&m.queue],
    );
    one(
        "vllm:request_inference_time_seconds",
        "Time spent running.",
        &[&m.inference],
    );
    one(
        "vllm:request_prefill_time_seconds",
        "Time spent in prefill.",
        &[&m.prefill],
    );
    one(
        "vllm:request_decode_time_seconds",
        "Time spent in decode.",
        &[&m.decode],
    );
    one(
        "vllm:request_num_preemptions",
        "Preemptions of a request.",
        &[&m.preemptions],
    );
    one(
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens computed.",
        &[&m.uncached_tokens],
    );
}

fn merge(parts: &[&Histogram]) -> Option<Histogram> {
    match parts {
        [a, b] => Some(a.merged(b)),
        _ => None,
    }
}

fn cache_config(config: &EngineConfig, page: &mut Page<'_>) {
    let model = config.step_model();
    let (size, blocks) = (model.block_size.to_string(), model.num_blocks.to_string());
    let tokens = (u64::from(model.block_size) * u64::from(model.num_blocks)).to_string();
    let labels = labels(&[
        ("block_size", &size),
        ("cache_dtype", "auto"),
        ("effective_attention_block_size", &size),
        ("enable_prefix_caching", "True"),
        ("engine", "0"),
        ("gpu_memory_utilization", "0.92"),
        ("hash_block_size", "None"),
        ("is_attention_free", "False"),
        ("kv_cache_size_tokens", &tokens),
        ("num_cpu_blocks", "None"),
        ("num_gpu_blocks", &blocks),
        ("num_gpu_blocks_override", "None"),
        ("prefix_caching_hash_algo", "sha256"),
        ("sliding_window", "None"),
    ]);
    page.family(
        Kind::Gauge,
        "vllm:cache_config_info",
        "Information of the LLMEngine CacheConfig",
        &[(&labels, 1.0)],
    );
}

/// Names that 0.10 had and later versions dropped.
pub(super) fn render_legacy(m: &Metrics, config: &EngineConfig, page: &mut Page<'_>) {
    let base = labels(&[("engine", "0"), ("model_name", config.base_model())]);
    let c = &m.counters;
    page.family(
        Kind::Gauge,
        "vllm:gpu_cache_usage_perc",
        "GPU KV-cache usage.",
        &[(&base, m.gauges.kv_use)],
    );
    for (name, value) in [
        ("vllm:gpu_prefix_cache_queries", c.prompt_tokens),
        ("vllm:gpu_prefix_cache_hits", c.cached_tokens),
    ] {
        counter(
            page,
            m,
            name,
            "GPU prefix cache, in tokens.",
            &[(&base, value as f64)],
        );
    }
    let model = labels(&[("model_name", config.base_model())]);
    page.histogram(
        "vllm:time_per_output_token_seconds",
        "Time per output token in seconds.",
        &[("engine=\"0\"", &model, &m.inter_token)],
    );
}
