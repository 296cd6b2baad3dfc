//! `vLLM`'s families, names of 0.10 to 0.32. Series carry an `engine` label, one per data-parallel engine.

use super::total::{Total, count, large_count, share};
use super::{Adapters, Counters, Page, Vocabulary};
use crate::sample::{Labels, Malformed, Sample};

/// The sample names to ask a page for, where the engine can filter. Old names are asked for too: unknown ones cost
/// nothing.
pub const FILTER: &[&str] = &[
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:engine_sleep_state",
    "vllm:lora_requests_info",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "process_start_time_seconds",
];

#[derive(Default)]
pub(super) struct Families {
    running: Total,
    waiting: Total,
    kv_use: Total,
    /// `gpu_cache_usage_perc`, until 0.12; 0.10 has both names.
    gpu_cache_use: Total,
    awake: Total,
    prompt_tokens: Total,
    generation_tokens: Total,
    prefix_hits: Total,
    gpu_prefix_hits: Total,
    preemptions: Total,
    cache: CacheConfig,
    adapters: LatestAdapters,
}

impl Families {
    /// Takes in a line whose name is `vllm:` and `family`.
    pub(super) fn line(&mut self, family: &[u8], line: &[u8]) {
        let total = match family {
            b"num_requests_running" => &mut self.running,
            b"num_requests_waiting" => &mut self.waiting,
            b"kv_cache_usage_perc" => &mut self.kv_use,
            b"gpu_cache_usage_perc" => &mut self.gpu_cache_use,
            b"prompt_tokens_total" => &mut self.prompt_tokens,
            b"generation_tokens_total" => &mut self.generation_tokens,
            b"prefix_cache_hits_total" => &mut self.prefix_hits,
            b"gpu_prefix_cache_hits_total" => &mut self.gpu_prefix_hits,
            b"num_preemptions_total" => &mut self.preemptions,
            b"engine_sleep_state" => return self.sleep_state(line),
            b"cache_config_info" => return self.cache.add(Sample::parse(line)),
            b"lora_requests_info" => return self.adapters.add(Sample::parse(line)),
            _ => return,
        };
        total.add(Sample::parse(line).map(|sample| sample.value));
    }

    /// One series per state; `awake` is 0 while the engine sleeps.
    fn sleep_state(&mut self, line: &[u8]) {
        let awake = Sample::parse(line)
            .and_then(|sample| Ok((sample.labels.get("sleep_state")?, sample.value)));
        match awake {
            Ok((Some(b"awake"), value)) => self.awake.add(Ok(value)),
            Ok(_) => {}
            Err(Malformed) => self.awake.add(Err(Malformed)),
        }
    }

    pub(super) fn finish(self) -> Page {
        let kv_use = if self.kv_use.seen() {
            self.kv_use
        } else {
            self.gpu_cache_use
        };
        let hits = if self.prefix_hits.seen() {
            self.prefix_hits
        } else {
            self.gpu_prefix_hits
        };
        let mut page = Page {
            vocabulary: Some(Vocabulary::Vllm),
            waiting: count(self.waiting.sum()),
            running: count(self.running.sum()),
            kv_use: share(kv_use.mean()),
            awake: self.awake.smallest().map(|awake| awake > 0.0),
            adapters: self.adapters.finish(),
            counters: Counters {
                prompt_tokens: self.prompt_tokens.sum(),
                generation_tokens: self.generation_tokens.sum(),
                cached_tokens: hits.sum(),
                preemptions: self.preemptions.sum(),
            },
            ..Page::default()
        };
        self.cache.finish(&mut page);
        page
    }
}

/// `cache_config_info`: facts in labels, one series per engine, `"None"` for what is not known.
#[derive(Default)]
struct CacheConfig {
    broken: bool,
    block_size: Option<u32>,
    /// Every data-parallel engine reports the sum over all of them, so the largest is the total.
    blocks: Option<u64>,
    /// Each engine reports its own.
    tokens: Total,
    prefix_caching: Option<bool>,
}

impl CacheConfig {
    fn add(&mut self, sample: Result<Sample<'_>, Malformed>) {
        if sample
            .and_then(|sample| self.labels(sample.labels))
            .is_err()
        {
            self.broken = true;
        }
    }

    fn labels(&mut self, labels: Labels<'_>) -> Result<(), Malformed> {
        let mut tokens = None;
        for label in labels.iter() {
            match label? {
                (b"block_size", value) => {
                    self.block_size = number(value).and_then(|size| u32::try_from(size).ok());
                }
                (b"num_gpu_blocks", value) => self.blocks = self.blocks.max(number(value)),
                (b"kv_cache_size_tokens", value) => tokens = number(value),
                (b"enable_prefix_caching", b"True") => self.prefix_caching = Some(true),
                (b"enable_prefix_caching", b"False") => self.prefix_caching = Some(false),
                _ => {}
            }
        }
        self.tokens
            .add(tokens.map(|tokens| tokens as f64).ok_or(Malformed));
        Ok(())
    }

    fn finish(self, page: &mut Page) {
        if self.broken {
            return;
        }
        page.block_size = self.block_size;
        page.num_blocks = self.blocks;
        page.prefix_caching = self.prefix_caching;
        let product = self
            .blocks
            .zip(self.block_size)
            .map(|(blocks, size)| blocks.saturating_mul(u64::from(size)));
        page.kv_tokens = large_count(self.tokens.sum()).or(product);
    }
}

/// `lora_requests_info`: the value is a time, and old label sets stay, so the latest series is the truth.
#[derive(Default)]
struct LatestAdapters {
    at: f64,
    broken: bool,
    adapters: Option<Adapters>,
}

impl LatestAdapters {
    fn add(&mut self, sample: Result<Sample<'_>, Malformed>) {
        let Ok(sample) = sample else {
            self.broken = true;
            return;
        };
        if self.adapters.is_some() && sample.value < self.at {
            return;
        }
        let lists = sample
            .labels
            .get("running_lora_adapters")
            .and_then(|running| {
                let waiting = sample.labels.get("waiting_lora_adapters")?;
                Ok(Adapters {
                    running: names(running)?,
                    waiting: names(waiting)?,
                })
            });
        match lists {
            Ok(adapters) => {
                self.at = sample.value;
                self.adapters = Some(adapters);
            }
            Err(Malformed) => self.broken = true,
        }
    }

    fn finish(self) -> Option<Adapters> {
        self.adapters.filter(|_| !self.broken)
    }
}

fn names(list: Option<&[u8]>) -> Result<Vec<String>, Malformed> {
    let list = std::str::from_utf8(list.unwrap_or_default()).map_err(|_| Malformed)?;
    Ok(list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// A positive whole number in a label; `None` also for the text `None`.
fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value)
        .ok()?
        .parse()
        .ok()
        .filter(|&number: &u64| number > 0)
}
