//! The slow and obvious reading of a page: a full parse with `prometheus-parse`, then sums over its samples.
//!
//! That parser knows no colon in a name and no brace in a label, so colons are rewritten and braces are for the tests
//! of `sample`.

use prometheus_parse::{Sample, Scrape, Value};
use proptest::prelude::*;

use crate::page::Page;

pub(super) fn agree_on_vllm(page: &[u8]) {
    let samples = samples(page);
    let found = Page::parse(page);
    let of = |name: &str| values(&samples, name, |_| true);
    assert_eq!(
        found.running.map(f64::from),
        sum(&of("vllm:num_requests_running"))
    );
    assert_eq!(
        found.waiting.map(f64::from),
        sum(&of("vllm:num_requests_waiting"))
    );
    assert_close(found.kv_use, mean(&of("vllm:kv_cache_usage_perc")));
    assert_eq!(
        found.counters.generation_tokens,
        sum(&of("vllm:generation_tokens_total"))
    );
    assert_eq!(
        found.counters.preemptions,
        sum(&of("vllm:num_preemptions_total"))
    );
    assert_eq!(
        found.start_time_s,
        of("process_start_time_seconds").first().copied()
    );
    let label = |name: &str| {
        let infos = samples
            .iter()
            .filter(|sample| sample.metric == plain("vllm:cache_config_info"));
        infos
            .filter_map(|sample| sample.labels.get(name)?.parse::<u64>().ok())
            .max()
    };
    assert_eq!(found.block_size.map(u64::from), label("block_size"));
    assert_eq!(found.num_blocks, label("num_gpu_blocks"));
}

pub(super) fn agree_on_sglang(page: &[u8]) {
    let samples = samples(page);
    let found = Page::parse(page);
    let total = |sample: &Sample| sample.labels.get("priority").is_none_or(str::is_empty);
    let of = |name: &str| values(&samples, name, total);
    assert_eq!(
        found.running.map(f64::from),
        sum(&of("sglang:num_running_reqs"))
    );
    assert_eq!(
        found.waiting.map(f64::from),
        sum(&of("sglang:num_queue_reqs"))
    );
    assert_close(
        found.kv_use,
        mean(&of("sglang:full_token_usage")).or(mean(&of("sglang:token_usage"))),
    );
    assert_eq!(
        found.kv_tokens.map(|tokens| tokens as f64),
        sum(&of("sglang:max_total_num_tokens"))
    );
    assert_eq!(
        found.block_size.map(f64::from),
        mean(&of("sglang:page_size"))
    );
    let prompts = values(&samples, "sglang:prompt_tokens_total", |_| true);
    assert_eq!(found.counters.prompt_tokens, sum(&prompts));
}

/// A page with the lines something is read from, and some more.
pub(super) fn without_buckets(page: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(page).expect("recorded as text");
    let kept = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket"));
    kept.flat_map(|line| [line.as_bytes(), b"\n"].concat())
        .collect()
}

/// The lines of a page and the labels of each in another order.
pub(super) fn shuffled(page: &'static [u8]) -> impl Strategy<Value = String> {
    let page = String::from_utf8(without_buckets(page)).expect("recorded as text");
    let lines: Vec<String> = page.lines().map(str::to_owned).collect();
    (Just(lines).prop_shuffle(), any::<u64>()).prop_map(|(lines, seed)| {
        lines
            .iter()
            .map(|line| rotated(line, seed as usize) + "\n")
            .collect()
    })
}

/// No recorded label value holds a comma inside quotes but adapter lists, which the split must not cut.
fn rotated(line: &str, by: usize) -> String {
    let Some((name, rest)) = line.split_once('{') else {
        return line.to_owned();
    };
    let (labels, value) = rest.rsplit_once('}').expect("braces close");
    let mut labels: Vec<&str> = labels
        .trim_end()
        .strip_suffix('"')
        .expect("a value ends")
        .split("\",")
        .collect();
    let by = by % labels.len();
    labels.rotate_left(by);
    format!("{name}{{{}\"}}{value}", labels.join("\","))
}

fn samples(page: &[u8]) -> Vec<Sample> {
    let text = std::str::from_utf8(page).expect("recorded as text");
    // Comments type the families; without them every sample is a plain value, which is all that is compared.
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| Ok(plain(line)));
    Scrape::parse(lines).expect("a well-formed page").samples
}

fn plain(line: &str) -> String {
    line.replacen(':', "_", 1)
}

fn values(samples: &[Sample], name: &str, keep: impl Fn(&Sample) -> bool) -> Vec<f64> {
    let family = samples
        .iter()
        .filter(|sample| sample.metric == plain(name) && keep(sample));
    family
        .filter_map(|sample| {
            if let Value::Untyped(value) = sample.value {
                Some(value)
            } else {
                None
            }
        })
        .collect()
}

fn sum(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum())
}

fn mean(values: &[f64]) -> Option<f64> {
    sum(values).map(|sum| sum / values.len() as f64)
}

fn assert_close(found: Option<f64>, expected: Option<f64>) {
    match (found, expected) {
        (Some(found), Some(expected)) => {
            assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
        }
        (found, expected) => assert_eq!(found, expected),
    }
}
