//! What is offered: requests in order of time, with everything that no run changes computed once.

use std::ops::Range;
use std::time::Duration;

use engine_model::{BlockHash, ContentSeed, hash_trace_blocks};
use governance_context::Band;
use rustc_hash::FxHashSet;
use scheduler_core::Targets;
use scheduler_core::residency::Block;
use workload::{Answer, BLOCK_TOKENS, Planned};

/// One request as its client sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub planned: Planned,
    pub band: Band,
    /// What the client wants; the defaults where absent.
    pub targets: Targets,
}

impl From<Planned> for Offer {
    fn from(planned: Planned) -> Self {
        Self {
            planned,
            band: Band(0),
            targets: Targets::default(),
        }
    }
}

/// Requests in order of time, ready to be replayed any number of times.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub(crate) entries: Vec<Entry>,
    blocks: Vec<Block>,
    contents: Vec<BlockHash>,
}

/// One request without what only its blocks say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Nanoseconds since the start.
    pub(crate) at: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) tenant: u32,
    pub(crate) band: Band,
    pub(crate) targets: Targets,
    /// What a cache would hold of it that never forgets, of everything sent before.
    pub(crate) best_cached: u32,
    blocks: Span,
    contents: Span,
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl Load {
    /// The offers must be in order of time.
    pub fn new(offers: impl IntoIterator<Item = Offer>) -> Self {
        let mut load = Self::default();
        let mut ids = Vec::new();
        let mut seen = FxHashSet::default();
        for offer in offers {
            load.push(&offer, &mut ids, &mut seen);
        }
        load
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Share of all prompt tokens that one cache would find that never forgets.
    pub fn infinite_cache_hit_ratio(&self) -> f64 {
        let (mut cached, mut all) = (0, 0);
        for entry in &self.entries {
            cached += u64::from(entry.best_cached);
            all += u64::from(entry.prompt_tokens);
        }
        cached as f64 / (all as f64).max(1.0)
    }

    pub(crate) fn blocks(&self, entry: &Entry) -> &[Block] {
        &self.blocks[entry.blocks.range()]
    }

    pub(crate) fn contents(&self, entry: &Entry) -> &[BlockHash] {
        &self.contents[entry.contents.range()]
    }

    fn push(&mut self, offer: &Offer, ids: &mut Vec<u64>, seen: &mut FxHashSet<BlockHash>) {
        let planned = &offer.planned;
        let prompt_tokens = planned.prompt.tokens().max(1);
        ids.clear();
        ids.extend(planned.prompt.blocks().map(|(id, _)| id.0));
        let named = match planned.answer {
            Answer::Nobodys => prompt_tokens,
            Answer::Continues => prompt_tokens.saturating_add(planned.output_tokens),
        };
        continue_ids(ids, named.div_ceil(BLOCK_TOKENS));
        let contents = hash_trace_blocks(
            ContentSeed::default(),
            BLOCK_TOKENS,
            ids,
            BLOCK_TOKENS,
            named,
        );
        let whole = (prompt_tokens / BLOCK_TOKENS) as usize;
        let found = contents[..whole]
            .iter()
            .take_while(|block| seen.contains(block))
            .count() as u32;
        seen.extend(&contents);
        let entry = Entry {
            at: nanoseconds(planned.at),
            prompt_tokens,
            output_tokens: planned.output_tokens,
            tenant: planned.tenant,
            band: offer.band,
            targets: offer.targets,
            // The last token is always computed, so the block it ends is.
            best_cached: (found * BLOCK_TOKENS)
                .min((prompt_tokens - 1) / BLOCK_TOKENS * BLOCK_TOKENS),
            blocks: self.span_of_blocks(&contents[..whole]),
            contents: Span {
                start: self.contents.len(),
                end: self.contents.len() + contents.len(),
            },
        };
        self.contents.extend_from_slice(&contents);
        self.entries.push(entry);
    }

    /// What the scheduler hashes itself: the prompt's whole blocks. That equal content has equal hashes is all that
    /// counts, so they are the engine's.
    fn span_of_blocks(&mut self, contents: &[BlockHash]) -> Span {
        let start = self.blocks.len();
        let blocks = contents.iter().zip(1..).map(|(content, count)| Block {
            hash: content.0,
            end_tokens: count * BLOCK_TOKENS,
        });
        self.blocks.extend(blocks);
        Span {
            start,
            end: self.blocks.len(),
        }
    }
}

/// Names the blocks that an answer fills behind the prompt's last.
fn continue_ids(ids: &mut Vec<u64>, count: u32) {
    while ids.len() < count as usize {
        let next = ids.last().map_or(0, |last| last.wrapping_add(1));
        ids.push(next);
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
