//! What one attempt leaves in the cache of its engine.

use std::sync::Arc;

use super::blocks::{Block, hash_bytes};
use super::{Holder, Residency};
use crate::BookingId;

/// Tells tails from everything else that is hashed.
const TAIL: u64 = 3;
/// Tokens of one block of a tail.
const PIECE: u32 = 512;
/// Blocks of a tail, at most: what lies behind counts for nothing.
const MOST_PIECES: u32 = 1024;

/// The blocks of a prompt, and more for what else it takes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    /// Whole blocks of the prompt.
    blocks: Arc<[Block]>,
    /// The rest of the prompt, and the answer, under names that nobody will ask for: they push others out like everything
    /// else.
    tail: Arc<[Block]>,
}

impl Footprint {
    pub(crate) fn of_prompt(blocks: Vec<Block>) -> Self {
        Self {
            blocks: blocks.into(),
            ..Self::default()
        }
    }

    /// Of an attempt whose prompt and expected answer have so many `tokens`, on an engine whose blocks have `block_tokens`.
    pub(crate) fn of_attempt(
        id: BookingId,
        blocks: Vec<Block>,
        tokens: u32,
        block_tokens: u32,
    ) -> Self {
        let size = block_tokens.max(1);
        let taken = tokens.div_ceil(size).saturating_mul(size);
        let rest = taken.saturating_sub(blocks.last().map_or(0, |block| block.end_tokens));
        let pieces = rest.div_ceil(PIECE).min(MOST_PIECES);
        let name = hash_bytes(TAIL, &id.0.to_le_bytes());
        let tail = (1..=pieces).map(|piece| Block {
            hash: hash_bytes(name, &piece.to_le_bytes()),
            end_tokens: rest.min(piece * PIECE),
        });
        Self {
            blocks: blocks.into(),
            tail: tail.collect(),
        }
    }

    /// The same without the blocks of the prompt.
    pub(crate) fn tail_alone(&self) -> Self {
        Self {
            tail: Arc::clone(&self.tail),
            ..Self::default()
        }
    }

    /// How many blocks it has.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len() + self.tail.len()
    }
}

impl Residency {
    /// `holder` computes, or has just used, all of it. Engines give the end of an answer back first.
    pub(crate) fn leave(&mut self, holder: Holder, footprint: &Footprint) {
        self.insert(holder, &footprint.tail);
        self.insert(holder, &footprint.blocks);
    }

    /// `holder` has given no answer: what it would have taken pushes nobody out.
    pub(crate) fn take_back_tail(&mut self, holder: Holder, footprint: &Footprint) {
        for piece in footprint.tail.iter().rev() {
            self.take_back(holder, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_what_whole_blocks_of_the_prompt_leave_in_blocks_of_the_engine() {
        for (whole, tokens, block_tokens, tail, pieces) in [
            (512, 512, 16, 0, 0),
            (512, 513, 16, 16, 1),
            (512, 700, 1, 188, 1),
            (512, 700, 0, 188, 1),
            (512, 100, 16, 0, 0),
            (512, 4_612, 1, 4_100, 9),
            (512, u32::MAX, 16, PIECE * MOST_PIECES, 1024),
        ] {
            let blocks = vec![Block {
                hash: 7,
                end_tokens: whole,
            }];
            let left = Footprint::of_attempt(BookingId(1), blocks, tokens, block_tokens);
            assert_eq!(left.tail.last().map_or(0, |last| last.end_tokens), tail);
            assert_eq!(left.len(), 1 + pieces, "{tokens}");
            assert_eq!(left.tail_alone().len(), pieces);
        }
        let short = Footprint::of_attempt(BookingId(1), Vec::new(), 20, 16);
        assert_eq!(short.tail.last().map(|last| last.end_tokens), Some(32));
    }

    #[test]
    fn an_index_counts_every_token_of_a_tail() {
        let mut index = Residency::new(1 << 20, 1);
        let holder = index.add_holder(100_000);
        let footprint = Footprint::of_attempt(BookingId(1), Vec::new(), 9_000, 1);
        index.leave(holder, &footprint);
        assert_eq!(index.resident_tokens(holder), 9_000);
    }
}
