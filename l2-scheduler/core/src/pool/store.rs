//! Prompts on their way into the index.
//!
//! They are stored with later events, because storing a long prompt takes longer than choosing its endpoint, and its client
//! need not wait for it. They are stored when they are sent and again when their attempt ends: an engine keeps the blocks
//! of what runs, and then forgets what ended first. What a prompt and its answer take beside whole blocks of the prompt is
//! stored too, under a name that nobody will ask for: it pushes others out like everything else.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Pool;
use crate::BookingId;
use crate::endpoint::Endpoint;
use crate::residency::{Block, Holder, hash_bytes};

/// Blocks stored with one event, but one whole prompt at least: half of one would be found where it is not.
const AT_ONCE: usize = 1024;
/// While more wait, they are stored at once, and what others have sent is left out.
const MOST_WAITING: usize = 1 << 16;

/// Blocks that are kept for the end of attempts; beyond that, the blocks of a new one are not stored again.
const MOST_KEPT: usize = 1 << 22;
/// Tokens of a block of an engine that has not said it.
const USUAL_BLOCK: u32 = 16;

/// What an attempt leaves in the cache of its engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    /// Whole blocks of the prompt.
    blocks: Arc<[Block]>,
    /// The rest of the prompt, and the answer.
    tail: Option<Block>,
}

impl Footprint {
    pub(super) fn of(blocks: Vec<Block>) -> Self {
        Self {
            blocks: blocks.into(),
            tail: None,
        }
    }

    /// Of an attempt on `endpoint` whose prompt and expected answer have so many tokens.
    pub(super) fn of_attempt(
        id: BookingId,
        blocks: Vec<Block>,
        tokens: u32,
        endpoint: &Endpoint,
    ) -> Self {
        let size = endpoint.view.block_size().unwrap_or(USUAL_BLOCK).max(1);
        let whole = blocks.last().map_or(0, |block| block.end_tokens);
        let rest = tokens
            .div_ceil(size)
            .saturating_mul(size)
            .saturating_sub(whole);
        let tail = Block {
            hash: hash_bytes(3, &id.0.to_le_bytes()),
            end_tokens: rest,
        };
        Self {
            tail: (rest > 0).then_some(tail),
            ..Self::of(blocks)
        }
    }
}

/// Prompts that were sent, or have ended, and are not in the index yet.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    prompts: VecDeque<(Holder, Footprint)>,
    blocks: usize,
    /// Blocks of prompts that run.
    kept: usize,
}

impl Unstored {
    pub(super) fn push(&mut self, holder: Holder, footprint: Footprint) {
        self.blocks += footprint.blocks.len();
        self.prompts.push_back((holder, footprint));
    }

    /// What to keep of a footprint until its attempt ends.
    pub(super) fn keep(&mut self, footprint: &Footprint) -> Footprint {
        let tail = footprint.tail;
        if self.kept + footprint.blocks.len() > MOST_KEPT {
            return Footprint {
                tail,
                ..Footprint::default()
            };
        }
        self.kept += footprint.blocks.len();
        footprint.clone()
    }

    /// The attempt of a footprint that was kept has ended.
    pub(super) fn release(&mut self, footprint: &Footprint) {
        self.kept -= footprint.blocks.len();
    }

    /// Blocks of prompts that run.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Whether there is room for what others have sent.
    pub(super) fn has_room(&self) -> bool {
        self.blocks < MOST_WAITING
    }

    /// Drops what was meant for a cache that is gone: another may get its number.
    pub(super) fn forget(&mut self, holder: Holder) {
        self.prompts.retain(|(other, _)| *other != holder);
        let blocks = self.prompts.iter().map(|(_, prompt)| prompt.blocks.len());
        self.blocks = blocks.sum();
    }

    fn pop(&mut self) -> Option<(Holder, Footprint)> {
        let prompt = self.prompts.pop_front()?;
        self.blocks -= prompt.1.blocks.len();
        Some(prompt)
    }
}

impl Pool {
    /// What an attempt has been sent for will be in the cache of its endpoint.
    pub(super) fn leave_footprint(
        &mut self,
        id: BookingId,
        index: usize,
        holder: Holder,
        blocks: Vec<Block>,
    ) {
        let Some(booking) = self.bookings.get_mut(&id) else {
            return;
        };
        let tokens = booking.context() + booking.expected_output as u64;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let footprint = Footprint::of_attempt(id, blocks, tokens, &self.endpoints[index]);
        booking.footprint = self.unstored.keep(&footprint);
        self.unstored.push(holder, footprint);
    }

    /// An attempt has ended. Until now its engine has kept all of it; but what gave no answer has no end that could push
    /// others out.
    pub(super) fn keep_footprint(&mut self, holder: Holder, left: Footprint, has_answered: bool) {
        if has_answered {
            self.unstored.push(holder, left);
        } else if let Some(tail) = left.tail {
            self.residency.take_back(holder, &tail);
        }
    }

    /// The process that ran what is in flight there is gone, and with it what the attempts would have left.
    pub(super) fn lose_footprints(&mut self, index: usize) {
        for id in self.endpoints[index].load.in_flight() {
            if let Some(booking) = self.bookings.get_mut(id) {
                let lost = std::mem::take(&mut booking.footprint);
                self.unstored.release(&lost);
            }
        }
    }

    /// Puts the next of what was sent into the index.
    pub(super) fn store(&mut self) {
        let mut stored = 0;
        while stored < AT_ONCE || !self.unstored.has_room() {
            let Some((holder, prompt)) = self.unstored.pop() else {
                return;
            };
            stored += prompt.blocks.len();
            // Engines give the end of an answer back first.
            self.residency.insert(holder, prompt.tail.as_slice());
            self.residency.insert(holder, &prompt.blocks);
        }
    }
}
