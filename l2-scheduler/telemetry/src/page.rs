//! A metrics page in the `vLLM` or `SGLang` vocabulary, read by one scan over its lines. Pure.
//!
//! Only the families a scheduler needs are parsed; every other line costs a look at its name. Each family stands
//! alone: a malformed line empties its own family (half a sum is worse than none) and leaves the others usable. A last
//! line without its line end may be cut, so it is not read.

mod sglang;
mod total;
mod vllm;

#[cfg(test)]
mod tests;

use memchr::memchr_iter;
use scheduler_core::Observation;

use crate::sample::{Sample, name};
use total::Total;

pub use vllm::FILTER;

/// What one page said. Every field is absent when the page did not say it, or said it unusably.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// Whose metric names the page uses; `None` if it has neither's.
    pub vocabulary: Option<Vocabulary>,
    /// Requests queued in the engine, summed over data-parallel engines.
    pub waiting: Option<u32>,
    /// Requests in the running batch, summed over data-parallel engines.
    pub running: Option<u32>,
    /// Share of the KV cache held by live requests, 0 to 1, mean over data-parallel engines.
    pub kv_use: Option<f64>,
    /// Tokens in one KV block (`vLLM`) or page (`SGLang`).
    pub block_size: Option<u32>,
    /// KV blocks of the whole endpoint, all data-parallel engines together.
    pub num_blocks: Option<u64>,
    /// KV capacity of the whole endpoint in tokens.
    pub kv_tokens: Option<u64>,
    /// Longest prompt and answer together, in tokens.
    pub max_context: Option<u32>,
    /// Whether the engine re-uses prefixes at all.
    pub prefix_caching: Option<bool>,
    /// False while any engine behind the endpoint sleeps.
    pub awake: Option<bool>,
    /// Adapters at work.
    pub adapters: Option<Adapters>,
    /// Start of the engine's process, seconds since the epoch.
    pub start_time_s: Option<f64>,
    pub counters: Counters,
}

/// The two vocabularies known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vocabulary {
    Vllm,
    Sglang,
}

/// Adapters the engine reports, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adapters {
    pub running: Vec<String>,
    pub waiting: Vec<String>,
}

/// Counters since the engine started. They only grow; one that fell tells of a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    pub prompt_tokens: Option<f64>,
    pub generation_tokens: Option<f64>,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: Option<f64>,
    pub preemptions: Option<f64>,
}

impl Page {
    /// Reads a page. Never fails: what is unusable is absent.
    pub fn parse(page: &[u8]) -> Self {
        let mut reader = Reader::default();
        let mut start = 0;
        for end in memchr_iter(b'\n', page) {
            reader.line(&page[start..end]);
            start = end + 1;
        }
        reader.finish()
    }

    /// Whether the page tells the load of the engine, which is what a scrape is for.
    pub fn has_load(&self) -> bool {
        self.waiting.is_some() || self.running.is_some() || self.kv_use.is_some()
    }
}

impl From<Page> for Observation {
    fn from(page: Page) -> Self {
        Self {
            waiting: page.waiting,
            running: page.running,
            kv_use: page.kv_use,
            block_size: page.block_size,
            num_blocks: page.num_blocks,
            kv_tokens: page.kv_tokens,
            max_context: page.max_context,
            start_time_s: page.start_time_s,
            monotone_counter: page.counters.generation_tokens,
            // The page names the base model at most, not the adapters loaded beside it.
            models: None,
        }
    }
}

/// Reads a page into an observation.
pub fn parse(page: &[u8]) -> Observation {
    Page::parse(page).into()
}

#[derive(Default)]
struct Reader {
    vocabulary: Option<Vocabulary>,
    start_time: Total,
    vllm: vllm::Families,
    sglang: sglang::Families,
}

impl Reader {
    fn line(&mut self, line: &[u8]) {
        match line.first() {
            Some(b'v') => {
                if let Some(family) = name(line).strip_prefix(b"vllm:") {
                    self.vocabulary.get_or_insert(Vocabulary::Vllm);
                    self.vllm.line(family, line);
                }
            }
            Some(b's') => {
                if let Some(family) = name(line).strip_prefix(b"sglang:") {
                    self.vocabulary.get_or_insert(Vocabulary::Sglang);
                    self.sglang.line(family, line);
                }
            }
            Some(b'p') if name(line) == b"process_start_time_seconds" => {
                self.start_time
                    .add(Sample::parse(line).map(|sample| sample.value));
            }
            Some(_) | None => {}
        }
    }

    fn finish(self) -> Page {
        let start_time_s = self.start_time.largest().filter(|&seconds| seconds > 0.0);
        let mut page = match self.vocabulary {
            Some(Vocabulary::Vllm) => self.vllm.finish(),
            Some(Vocabulary::Sglang) => self.sglang.finish(),
            None => Page::default(),
        };
        page.start_time_s = start_time_s;
        page
    }
}
