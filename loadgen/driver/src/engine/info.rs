//! Facts an engine tells about itself and its tokens.

use std::fmt::Write;

use engine_model::token::detokenize;
use serde_json::json;

use super::{
    answer::Json,
    ask::Tokenize,
    config::{EngineConfig, Task},
    plan::scramble,
    runner::{Runner, unix_seconds},
};

pub(super) fn models(config: &EngineConfig) -> String {
    let created = unix_seconds() as u64;
    let adapters = config
        .adapters
        .iter()
        .map(|name| (name, Some(config.base_model())));
    let all = config
        .models
        .iter()
        .map(|name| (name, None))
        .chain(adapters);
    let mut s = String::from("{\"object\":\"list\",\"data\":[");
    for (i, (name, parent)) in all.enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let parent_json = parent.map_or("null".to_owned(), |p| Json(p).to_string());
        let id = Json(name);
        if config.vocabulary.is_sglang() {
            let _ = write!(
                s,
                "{comma}{{\"id\":{id},\"object\":\"model\",\"created\":{created},\"owned_by\":\"sglang\",\
                 \"root\":{id},\"parent\":{parent_json},\"max_model_len\":{}}}",
                config.max_model_len
            );
            continue;
        }
        let limit = parent.map_or(config.max_model_len.to_string(), |_| "null".to_owned());
        let permission = scramble(config.seed ^ i as u64);
        let _ = write!(
            s,
            "{comma}{{\"id\":{id},\"object\":\"model\",\"created\":{created},\"owned_by\":\"vllm\",\"root\":{id},\
             \"parent\":{parent_json},\"max_model_len\":{limit},\"permission\":[{{\"id\":\
             \"modelperm-{permission:016x}\",\"object\":\"model_permission\",\"created\":{created},\
             \"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,\
             \"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,\
             \"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}"
        );
    }
    s.push_str("]}");
    s
}

pub(super) fn tokenized(config: &EngineConfig, asked: &Tokenize) -> String {
    let (tokens, count) = (&asked.tokens, asked.tokens.len());
    let limit = config.max_model_len;
    if config.vocabulary.is_sglang() {
        return json!({"tokens": tokens, "count": count, "max_model_len": limit}).to_string();
    }
    let strings: Option<Vec<String>> = asked
        .strings
        .then(|| tokens.iter().map(|t| detokenize(&[*t])).collect());
    json!({"count": count, "max_model_len": limit, "tokens": tokens, "token_strs": strings})
        .to_string()
}

pub(super) fn model_info(config: &EngineConfig) -> String {
    let model = config.base_model();
    json!({
        "model_path": model,
        "served_model_name": model,
        "tokenizer_path": model,
        "is_generation": config.task != Task::Embed,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": null,
        "tool_call_parser": null,
        "disaggregation_mode": "null",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": "simulated",
        "architectures": ["SimulatedForCausalLM"],
    })
    .to_string()
}

pub(super) fn server_info(config: &EngineConfig) -> String {
    let (name, model) = (config.base_model(), config.step_model());
    let tokens = u64::from(model.block_size) * u64::from(model.num_blocks);
    json!({
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": name,
        "context_length": config.max_model_len,
        "page_size": model.block_size,
        "dp_size": 1,
        "tp_size": 1,
        "max_running_requests": model.max_sequences,
        "max_total_tokens": tokens,
        "kv_events": null,
        "version": "0.5.23",
        "status": "ready",
        "disaggregation_mode": "null",
        "enable_metrics": true,
        "enable_cache_report": true,
        "enable_priority_scheduling": false,
        "schedule_policy": "fcfs",
        "max_total_num_tokens": tokens,
        "kv_events_config": null,
        "load_publish_endpoint": null,
        "chunked_prefill_size": model.max_batched_tokens,
        "enable_dp_attention": false,
    })
    .to_string()
}

pub(super) fn loads(runner: &Runner) -> String {
    let config = &runner.config;
    let model = config.step_model();
    let gauges = runner.metrics().gauges;
    let total = u64::from(model.block_size) * u64::from(model.num_blocks);
    let used = u64::from(gauges.kv_used_blocks) * u64::from(model.block_size);
    let now = unix_seconds();
    json!({
        "timestamp": rfc3339(now),
        "version": "0.5.23",
        "accelerator": null,
        "num_accelerators": 1,
        "loads": [{
            "timestamp": now,
            "dp_rank": 0,
            "num_running_reqs": gauges.running,
            "num_waiting_reqs": gauges.waiting,
            "num_waiting_uncached_tokens": 0,
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": total,
            "max_running_requests": model.max_sequences,
            "token_usage": gauges.kv_use,
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": 0,
            "total_prefill_busy_us": 0,
            "decode_moments": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            "memory": {
                "weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": total,
            },
            "disaggregation": {
                "mode": "null",
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0,
                "decode_transfer_queue_reqs": 0,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0,
                "kv_transfer_latency_ms": 0.0,
            },
            "queues": {
                "waiting": gauges.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
            },
        }],
    })
    .to_string()
}

/// UTC with microseconds, as Python prints it.
fn rfc3339(unix: f64) -> String {
    let seconds = unix as i64;
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to civil date, counting from March so that the leap day ends a year.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let micros = ((unix - unix.floor()) * 1e6) as u32;
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{micros:06}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (unix, text) in [
            (0.0, "1970-01-01T00:00:00.000000+00:00"),
            (951_782_400.5, "2000-02-29T00:00:00.500000+00:00"),
            (1_795_987_978.25, "2026-11-29T21:32:58.250000+00:00"),
        ] {
            assert_eq!(rfc3339(unix), text);
        }
    }
}
