//! One engine as a state machine: requests in, steps out.

use std::{collections::VecDeque, time::Duration};

use rustc_hash::FxHashMap;

use crate::{
    content::BlockHash,
    kv::{BlockIndex, BlockPool},
    profile::{Batch, Profile},
    words,
};

mod schedule;
mod step;
#[cfg(test)]
mod tests;

/// Chosen by the caller; unique among live requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request as the step model sees it: lengths and content hashes, no text.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    pub prompt_tokens: u32,
    /// Tokens it generates before it ends; 0 for a request that only reads its prompt (embeddings).
    pub output_tokens: u32,
    /// Hashes of full blocks, of the prompt and as far as known of the output, from
    /// [`crate::hash_tokens`] or [`crate::hash_trace_blocks`] with this engine's block size.
    pub blocks: Box<[BlockHash]>,
    /// Smaller runs first under [`Order::Priority`], ignored otherwise.
    pub priority: i32,
}

/// In which order waiting requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    FirstCome,
    Priority,
}

/// Whether prefixes are found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCache {
    On,
    Off,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub profile: Profile,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks; one is reserved, as in vLLM.
    pub num_blocks: u32,
    /// Token budget of one step.
    pub max_batched_tokens: u32,
    /// Most sequences running at once.
    pub max_sequences: u32,
    pub order: Order,
    pub prefix_cache: PrefixCache,
    /// Relative spread of step times, uniform in `1 ± noise`; 0 for none.
    pub noise: f64,
    pub seed: u64,
}

impl Config {
    /// The defaults of a server with this profile: 16-token blocks, all the KV memory it has.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            block_size: 16,
            num_blocks: (profile.kv_tokens / 16) as u32,
            max_batched_tokens: profile.max_batched_tokens,
            max_sequences: profile.max_sequences,
            order: Order::FirstCome,
            prefix_cache: PrefixCache::On,
            noise: 0.0,
            seed: 0,
        }
    }

    /// The same memory in blocks of `block_size` tokens.
    #[must_use]
    pub fn with_block_size(mut self, block_size: u32) -> Self {
        let tokens = u64::from(self.num_blocks) * u64::from(self.block_size);
        self.block_size = block_size;
        self.num_blocks = (tokens / u64::from(block_size)) as u32;
        self
    }
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the request needs {needed} KV blocks and the engine has {capacity}")]
    NeverFits { needed: u32, capacity: u32 },
    #[error("request {} is already here", .0.0)]
    Duplicate(RequestId),
    #[error("a prompt has at least one token")]
    EmptyPrompt,
}

/// What happened in a step. `Preempted` and `Admitted` happen as it begins, the others as it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Left the queue, with this much of its prompt already in the cache.
    Admitted {
        request: RequestId,
        cached_tokens: u32,
    },
    /// Lost its memory to others and waits to be computed again.
    Preempted { request: RequestId },
    /// `new` more tokens, `total` altogether; `new == total` is the first token. `new` is 1 except in a
    /// run of several steps.
    Tokens {
        request: RequestId,
        new: u32,
        total: u32,
    },
    /// Follows the last `Tokens`.
    Finished { request: RequestId },
}

/// What was begun: one step, or several decoding steps in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub steps: u32,
    pub duration: Duration,
    /// Of the longest step, the last one.
    pub longest: Duration,
    /// Tokens computed per step.
    pub tokens: u64,
}

/// What a scrape would show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    pub running: u32,
    pub waiting: u32,
    /// Share of KV blocks held by live requests, 0 to 1.
    pub kv_use: f64,
    pub kv_used_blocks: u32,
    pub kv_blocks: u32,
}

/// Totals since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Prompt tokens of requests admitted for the first time.
    pub prompt_tokens: u64,
    /// Those found in the cache.
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub finished: u64,
    pub aborted: u64,
    pub preemptions: u64,
    /// Tokens whose KV was dropped by preemptions.
    pub preempted_tokens: u64,
    pub steps: u64,
    pub evicted_blocks: u64,
}

/// One simulated engine. Drive it with [`Engine::begin`] and [`Engine::finish`]; requests that arrive in
/// between wait for the next step, as they would on a real one.
pub struct Engine {
    config: Config,
    pool: BlockPool,
    sequences: Vec<Sequence>,
    vacant: Vec<u32>,
    slots: FxHashMap<RequestId, u32>,
    /// In order of admission. At most one sequence is partly prefilled and it is the last.
    running: Vec<u32>,
    waiting: VecDeque<u32>,
    /// Head of the queue that found no room, and the pool's release count then.
    blocked: Option<(u32, u64)>,
    current: Option<Current>,
    scheduled: Vec<Chunk>,
    events: Vec<Event>,
    counters: Counters,
    arrivals: u64,
    noise_state: u64,
    spare: Vec<BlockIndex>,
}

struct Sequence {
    request: Request,
    arrival: u64,
    /// Tokens whose KV is in memory.
    computed: u32,
    generated: u32,
    blocks: Vec<BlockIndex>,
    published: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// Had started and lost its memory.
    Preempted,
    Running,
    /// Aborted during a step; leaves when it ends.
    Aborted,
    Finished,
}

impl Sequence {
    /// Prompt and generated tokens, those that are to be computed.
    fn tokens(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    fn decodes(&self) -> bool {
        self.generated > 0 && self.computed + 1 == self.tokens()
    }
}

/// Part of a step: `tokens` of the sequence in `slot`.
#[derive(Clone, Copy)]
struct Chunk {
    slot: u32,
    tokens: u32,
}

struct Current {
    batch: Batch,
    steps: u32,
    factor: f64,
}

impl Engine {
    pub fn new(config: Config) -> Self {
        Self {
            pool: BlockPool::new(config.num_blocks.saturating_sub(1)),
            noise_state: config.seed,
            config,
            sequences: Vec::new(),
            vacant: Vec::new(),
            slots: FxHashMap::default(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            blocked: None,
            current: None,
            scheduled: Vec::new(),
            events: Vec::new(),
            counters: Counters::default(),
            arrivals: 0,
            spare: Vec::new(),
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Queues a request for the next step.
    pub fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let tokens = request.prompt_tokens + request.output_tokens.saturating_sub(1);
        let needed = tokens.div_ceil(self.config.block_size);
        let capacity = self.pool.capacity();
        if needed > capacity {
            return Err(Refused::NeverFits { needed, capacity });
        }
        if request.prompt_tokens == 0 {
            return Err(Refused::EmptyPrompt);
        }
        if self.slots.contains_key(&request.id) {
            return Err(Refused::Duplicate(request.id));
        }
        let id = request.id;
        let arrival = self.arrivals;
        self.arrivals += 1;
        let slot = self.store(Sequence {
            request,
            arrival,
            computed: 0,
            generated: 0,
            blocks: Vec::new(),
            published: 0,
            stage: Stage::New,
        });
        self.slots.insert(id, slot);
        self.enqueue(slot);
        Ok(())
    }

    /// Ends a request early; its memory is free at the end of the step in progress. Unknown ids are
    /// ignored: the request may have finished on its own.
    pub fn abort(&mut self, id: RequestId) {
        let Some(&slot) = self.slots.get(&id) else {
            return;
        };
        match self.sequence(slot).stage {
            Stage::New | Stage::Preempted => {
                self.waiting.retain(|s| *s != slot);
                self.counters.aborted += 1;
                self.remove(slot);
            }
            Stage::Running if self.current.is_some() => {
                self.sequence_mut(slot).stage = Stage::Aborted;
            }
            Stage::Running => {
                self.running.retain(|s| *s != slot);
                self.counters.aborted += 1;
                self.remove(slot);
            }
            Stage::Aborted | Stage::Finished => {}
        }
    }

    /// Forgets all cached content that is not in use, and what is in use can no longer be found.
    pub fn reset_cache(&mut self) {
        self.pool.clear();
    }

    pub fn gauges(&self) -> Gauges {
        let (kv_used_blocks, kv_blocks) = (self.pool.used(), self.pool.capacity());
        Gauges {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_use: f64::from(kv_used_blocks) / f64::from(kv_blocks.max(1)),
            kv_used_blocks,
            kv_blocks,
        }
    }

    pub fn counters(&self) -> Counters {
        Counters {
            evicted_blocks: self.pool.evictions(),
            ..self.counters
        }
    }

    /// Idle blocks whose content can still be found.
    pub fn cached_blocks(&self) -> u32 {
        self.pool.cached_idle()
    }

    /// Whether there is nothing to compute.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Whether a step was begun and not finished.
    pub fn is_stepping(&self) -> bool {
        self.current.is_some()
    }

    fn sequence(&self, slot: u32) -> &Sequence {
        &self.sequences[slot as usize]
    }

    fn sequence_mut(&mut self, slot: u32) -> &mut Sequence {
        &mut self.sequences[slot as usize]
    }

    fn store(&mut self, sequence: Sequence) -> u32 {
        if let Some(slot) = self.vacant.pop() {
            self.sequences[slot as usize] = sequence;
            return slot;
        }
        self.sequences.push(sequence);
        self.sequences.len() as u32 - 1
    }

    fn enqueue(&mut self, slot: u32) {
        if self.config.order == Order::FirstCome {
            self.waiting.push_back(slot);
            return;
        }
        let rank = |s: u32| (self.sequence(s).request.priority, self.sequence(s).arrival);
        let at = self.waiting.partition_point(|s| rank(*s) < rank(slot));
        self.waiting.insert(at, slot);
    }

    /// Gives a sequence's blocks back, the last one first, so that tails are evicted before prefixes.
    fn release_blocks(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        for index in sequence.blocks.drain(..).rev() {
            self.pool.release(index);
        }
        sequence.computed = 0;
        sequence.published = 0;
    }

    fn remove(&mut self, slot: u32) {
        self.release_blocks(slot);
        let sequence = self.sequence_mut(slot);
        sequence.request.blocks = Box::default();
        sequence.blocks = Vec::new();
        let id = sequence.request.id;
        self.slots.remove(&id);
        self.vacant.push(slot);
        if self.blocked.is_some_and(|(blocked, _)| blocked == slot) {
            self.blocked = None;
        }
    }

    fn noise_factor(&mut self) -> f64 {
        if self.config.noise <= 0.0 {
            return 1.0;
        }
        let unit = (words::next(&mut self.noise_state) >> 11) as f64 / (1_u64 << 53) as f64;
        1.0 + self.config.noise * (2.0 * unit - 1.0)
    }
}
