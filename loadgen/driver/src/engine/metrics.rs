//! What a simulated engine counts, and the pages that show it.

use engine_model::{Counters, Gauges};

use super::{
    config::{EngineConfig, Vocabulary},
    runner::Shape,
};

mod histogram;
mod page;
mod sglang;
mod vllm;

use histogram::{Histogram, bounds};
pub(super) use page::Names;

/// Everything since the engine began.
pub(super) struct Metrics {
    /// Unix time.
    started: f64,
    /// The page a frozen exporter repeats.
    pub(super) frozen: Option<String>,
    pub(super) gauges: Gauges,
    pub(super) counters: Counters,
    /// Requests refused because the queue was full.
    pub(super) rejected: u64,
    /// Clients that left before the end.
    pub(super) disconnects: u64,
    stopped: u64,
    ended_by_length: u64,
    /// Finished requests and their tokens, without streaming and with.
    traffic: [Traffic; 2],
    first_token: [Histogram; 2],
    inter_token: Histogram,
    time_per_token: [Histogram; 2],
    latency: [Histogram; 2],
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    uncached_tokens: Histogram,
    generation_tokens: Histogram,
    max_tokens: Histogram,
    choices: Histogram,
    preemptions: Histogram,
    pub(super) iteration_tokens: Histogram,
}

#[derive(Clone, Copy, Default)]
struct Traffic {
    requests: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
}

/// A sequence that ended by itself; times in seconds.
pub(super) struct Finished {
    pub(super) shape: Shape,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) generated: u32,
    pub(super) preemptions: u32,
    pub(super) queue: f64,
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

impl Metrics {
    pub(super) fn new(started: f64) -> Self {
        let pair = |bounds| [Histogram::new(bounds), Histogram::new(bounds)];
        Self {
            started,
            frozen: None,
            gauges: Gauges::default(),
            counters: Counters::default(),
            rejected: 0,
            disconnects: 0,
            stopped: 0,
            ended_by_length: 0,
            traffic: Default::default(),
            first_token: pair(bounds::FIRST_TOKEN),
            inter_token: Histogram::new(bounds::PER_TOKEN),
            time_per_token: pair(bounds::PER_TOKEN),
            latency: pair(bounds::LATENCY),
            queue: Histogram::new(bounds::LATENCY),
            prefill: Histogram::new(bounds::LATENCY),
            decode: Histogram::new(bounds::LATENCY),
            inference: Histogram::new(bounds::LATENCY),
            prompt_tokens: Histogram::new(bounds::TOKENS),
            uncached_tokens: Histogram::new(bounds::TOKENS),
            generation_tokens: Histogram::new(bounds::TOKENS),
            max_tokens: Histogram::new(bounds::TOKENS),
            choices: Histogram::new(bounds::CHOICES),
            preemptions: Histogram::new(bounds::PREEMPTIONS),
            iteration_tokens: Histogram::new(bounds::ITERATION),
        }
    }

    pub(super) fn first_token(&mut self, streaming: bool, seconds: f64) {
        self.first_token[usize::from(streaming)].observe(seconds);
    }

    pub(super) fn next_token(&mut self, seconds: f64) {
        self.inter_token.observe(seconds);
    }

    pub(super) fn finished(&mut self, f: &Finished) {
        let kind = usize::from(f.shape.streaming);
        let traffic = &mut self.traffic[kind];
        traffic.requests += 1;
        traffic.prompt_tokens += u64::from(f.prompt_tokens);
        traffic.generated_tokens += u64::from(f.generated);
        *(if f.shape.ends_by_length {
            &mut self.ended_by_length
        } else {
            &mut self.stopped
        }) += 1;
        self.latency[kind].observe(f.queue + f.prefill + f.decode);
        if f.generated > 1 {
            self.time_per_token[kind].observe(f.decode / f64::from(f.generated - 1));
        }
        self.queue.observe(f.queue);
        self.prefill.observe(f.prefill);
        self.decode.observe(f.decode);
        self.inference.observe(f.prefill + f.decode);
        self.prompt_tokens.observe(f64::from(f.prompt_tokens));
        self.uncached_tokens
            .observe(f64::from(f.prompt_tokens - f.cached_tokens));
        self.generation_tokens.observe(f64::from(f.generated));
        self.max_tokens.observe(f64::from(f.shape.max_tokens));
        self.choices.observe(f64::from(f.shape.choices));
        self.preemptions.observe(f64::from(f.preemptions));
    }

    /// The page, or the part of it that `names` asks for.
    pub(super) fn render(&self, config: &EngineConfig, names: &Names) -> String {
        let mut page = page::Page::new(names);
        match config.vocabulary {
            Vocabulary::Vllm => vllm::render(self, config, &mut page),
            Vocabulary::VllmLegacy => {
                vllm::render(self, config, &mut page);
                vllm::render_legacy(self, config, &mut page);
            }
            Vocabulary::Sglang => sglang::render(self, config, &mut page),
        }
        page.into_text()
    }
}
