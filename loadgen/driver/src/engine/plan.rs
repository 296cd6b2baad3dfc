//! What will be answered, decided before the engine computes it: the texts and their lengths.

use std::sync::Arc;

use engine_model::{ContentSeed, Request, hash_tokens, token, words};

use super::{
    answer,
    ask::{Ask, Delivery, Family, TokenIds},
    config::{CacheReport, EngineConfig, Vocabulary},
    flight::{Flight, Guard, Progress},
    runner::{QueueFull, Runner, Shape, Submission, unix_seconds},
};

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
    /// The server shuts down.
    Abort,
}

/// One choice of an answer.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) prompt: usize,
    pub(super) text: String,
    /// Tokens generated for it; more than the text has if a stop string was cut off.
    pub(super) tokens: u32,
    pub(super) finish: Finish,
    /// The stop string that ended it.
    pub(super) stop: Option<String>,
}

impl Output {
    /// Leaves what was generated before the server stopped.
    pub(super) fn abort_after(&mut self, tokens: u32) {
        self.text.truncate(token::skip(&self.text, 0, tokens));
        self.tokens = tokens;
        self.finish = Finish::Abort;
        self.stop = None;
    }
}

/// Everything an answer is made of except time.
pub(super) struct Reply {
    pub(super) ask: Ask,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) vocabulary: Vocabulary,
    pub(super) cache_report: CacheReport,
    pub(super) block_size: u32,
    pub(super) fingerprint: String,
    pub(super) outputs: Vec<Output>,
    /// Length of each prompt.
    pub(super) prompt_tokens: Vec<u32>,
    /// What every chunk of its stream begins with.
    pub(super) chunk_head: String,
}

/// Token counts of an answer so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) prompt: u32,
    pub(super) cached: u32,
    pub(super) output: u32,
    /// Prompt tokens in full blocks that were not in the cache before.
    pub(super) newly_cached: u32,
}

impl Reply {
    pub(super) fn new(
        config: &EngineConfig,
        ask: Ask,
        header_id: Option<&str>,
        unique: u64,
    ) -> Self {
        let id = identify(config, &ask, header_id, unique);
        let outputs = (0..ask.prompts.len())
            .flat_map(|prompt| (0..ask.choices).map(move |choice| (prompt, choice)))
            .map(|(prompt, choice)| output(config, &ask, prompt, choice))
            .collect();
        let created = unix_seconds() as u64;
        let object = match ask.family {
            Family::Completions => "text_completion",
            Family::Chat | Family::Messages | Family::Responses => "chat.completion.chunk",
        };
        Self {
            prompt_tokens: ask.prompts.iter().map(|p| p.len() as u32).collect(),
            chunk_head: answer::head(&id, object, created, &ask.model),
            id,
            created,
            vocabulary: config.vocabulary,
            cache_report: config.cache_report,
            block_size: config.block_size.get(),
            fingerprint: format!("vllm-0.32.0-{:08x}", scramble(config.seed) as u32),
            outputs,
            ask,
        }
    }

    /// Sends every choice to the engine, and forgets prompts that the answer does not repeat: they are most
    /// of what a request weighs.
    pub(super) fn submit(&mut self, runner: &Arc<Runner>) -> Result<Guard, QueueFull> {
        let model = self.ask.model.clone();
        let flight = Arc::new(Flight::new(self.id.clone(), model, self.outputs.len()));
        let seed = content_seed(&runner.config, &self.ask);
        let mut submissions = Vec::with_capacity(self.outputs.len());
        for (index, output) in self.outputs.iter().enumerate() {
            let prompt = &self.ask.prompts[output.prompt];
            let mut generated = Vec::new();
            token::tokenize(&output.text, &mut generated);
            let request = Request {
                id: runner.next_id(),
                prompt_tokens: prompt.len() as u32,
                output_tokens: output.tokens,
                blocks: hash_tokens(seed, self.block_size, prompt, &generated),
                priority: self.ask.priority,
            };
            let shape = Shape {
                streaming: self.ask.delivery != Delivery::Whole,
                choices: self.ask.choices,
                max_tokens: self.ask.max_tokens.unwrap_or(output.tokens),
                ends_by_length: output.finish == Finish::Length,
            };
            submissions.push(Submission {
                request,
                flight: flight.clone(),
                index,
                shape,
            });
        }
        let requests = submissions.iter().map(|s| s.request.id).collect();
        runner.submit(submissions)?;
        if !self.ask.echo && self.ask.token_ids == TokenIds::Omitted {
            self.ask.prompts = Vec::new();
        }
        Ok(Guard {
            flight,
            runner: runner.clone(),
            requests,
        })
    }

    pub(super) fn totals(&self, progress: &[Progress]) -> Totals {
        let mut totals = Totals::default();
        for (i, (output, progress)) in self.outputs.iter().zip(progress).enumerate() {
            totals.output += progress.generated;
            // Choices of one prompt share it; it counts once, as the first one found it.
            if (i as u32).is_multiple_of(self.ask.choices) {
                let prompt = self.prompt_tokens[output.prompt];
                let full = (prompt - 1) / self.block_size * self.block_size;
                totals.prompt += prompt;
                totals.cached += progress.cached_tokens;
                totals.newly_cached += full.saturating_sub(progress.cached_tokens);
            }
        }
        totals
    }
}

fn content_seed(config: &EngineConfig, ask: &Ask) -> ContentSeed {
    let seed = ContentSeed::default().with(config.base_model());
    let adapter = config
        .adapters
        .contains(&ask.model)
        .then_some(ask.model.as_str());
    let seed = adapter.map_or(seed, |adapter| seed.with(adapter));
    ask.salt
        .as_deref()
        .map_or(seed, |salt| seed.with("salt").with(salt))
}

/// The id in the body: the one asked for, else one of our own.
fn identify(config: &EngineConfig, ask: &Ask, header_id: Option<&str>, unique: u64) -> String {
    let own = scramble(scramble(config.seed) ^ unique);
    if config.vocabulary.is_sglang() {
        return ask
            .id
            .clone()
            .unwrap_or_else(|| format!("{own:016x}{:016x}", scramble(own)));
    }
    let prefix = match ask.family {
        Family::Chat | Family::Messages => "chatcmpl",
        Family::Completions => "cmpl",
        Family::Responses => return ask.id.clone().unwrap_or_else(|| format!("resp_{own:016x}")),
    };
    match ask.id.as_deref().or(header_id) {
        Some(id) => format!("{prefix}-{id}"),
        None => format!("{prefix}-{own:016x}"),
    }
}

/// The text of one choice: decided by the prompt and the seeds, so that a repeated request is answered
/// with the same words whatever else the engine does.
fn output(config: &EngineConfig, ask: &Ask, prompt: usize, choice: u32) -> Output {
    let tokens = &ask.prompts[prompt];
    let content = hash_tokens(ContentSeed::default(), tokens.len() as u32, tokens, &[]);
    let content = content.first().map_or(0, |hash| hash.0);
    let seed = content ^ scramble(config.seed) ^ scramble(ask.seed ^ u64::from(choice) << 32);
    let room = config.max_model_len - tokens.len() as u32;
    let (length, finish) = match ask.max_tokens {
        Some(max) => (max.min(room), Finish::Length),
        None if ask.ignores_eos => (room, Finish::Length),
        None => match draw_length(config, seed) {
            drawn if drawn < room => (drawn, Finish::Stop),
            _ => (room, Finish::Length),
        },
    };
    let mut output = Output {
        prompt,
        text: words::text(seed, length),
        tokens: length,
        finish,
        stop: None,
    };
    cut_at_stop(&mut output, &ask.stop);
    output
}

/// A log-normal length.
fn draw_length(config: &EngineConfig, seed: u64) -> u32 {
    let mut state = seed ^ 0x5EED;
    let mut unit = || ((words::next(&mut state) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    let lengths = config.output_lengths;
    (lengths.median * (lengths.sigma * normal).exp()).clamp(1.0, 1e6) as u32
}

fn cut_at_stop(output: &mut Output, stops: &[String]) {
    let found = stops
        .iter()
        .filter_map(|s| output.text.find(s.as_str()).map(|at| (at, s)))
        .min();
    let Some((at, stop)) = found else { return };
    let end = at + stop.len();
    let mut covered = 0;
    output.tokens = 0;
    while covered < end {
        covered = token::token_end(&output.text, covered);
        output.tokens += 1;
    }
    output.text.truncate(at);
    output.finish = Finish::Stop;
    output.stop = Some(stop.clone());
}

/// Spreads a seed over all bits.
pub(super) fn scramble(seed: u64) -> u64 {
    let mut state = seed;
    words::next(&mut state)
}
