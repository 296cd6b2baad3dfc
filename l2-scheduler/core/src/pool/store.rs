//! Prompts on their way into the index.
//!
//! They are stored with later events, because storing a long prompt takes longer than choosing its endpoint, and its client
//! need not wait for it.

use std::collections::VecDeque;

use super::Pool;
use crate::residency::{Block, Holder};

/// Blocks stored with one event, but one whole prompt at least: half of one would be found where it is not.
const AT_ONCE: usize = 1024;
/// While more wait, they are stored at once, and what others have sent is left out.
const MOST_WAITING: usize = 1 << 16;

/// Prompts that were sent and are not in the index yet.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    prompts: VecDeque<(Holder, Vec<Block>)>,
    blocks: usize,
}

impl Unstored {
    pub(super) fn push(&mut self, holder: Holder, blocks: Vec<Block>) {
        self.blocks += blocks.len();
        self.prompts.push_back((holder, blocks));
    }

    /// Whether there is room for what others have sent.
    pub(super) fn has_room(&self) -> bool {
        self.blocks < MOST_WAITING
    }

    /// Drops what was meant for a cache that is gone: another may get its number.
    pub(super) fn forget(&mut self, holder: Holder) {
        self.prompts.retain(|(other, _)| *other != holder);
        self.blocks = self.prompts.iter().map(|(_, blocks)| blocks.len()).sum();
    }

    fn pop(&mut self) -> Option<(Holder, Vec<Block>)> {
        let prompt = self.prompts.pop_front()?;
        self.blocks -= prompt.1.len();
        Some(prompt)
    }
}

impl Pool {
    /// Puts the next of what was sent into the index.
    pub(super) fn store(&mut self) {
        let mut stored = 0;
        while stored < AT_ONCE || !self.unstored.has_room() {
            let Some((holder, blocks)) = self.unstored.pop() else {
                return;
            };
            stored += blocks.len();
            self.residency.insert(holder, &blocks);
        }
    }
}
