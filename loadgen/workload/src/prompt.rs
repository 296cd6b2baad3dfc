//! A prompt as what matters to a cache: runs of blocks. Equal blocks stand for equal text.

/// Tokens of a whole block.
pub const BLOCK_TOKENS: u32 = 512;

/// Names one block of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

/// Consecutive blocks `first`, `first + 1`, …, all whole but the last, which may be partial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    pub first: BlockId,
    /// Tokens of all its blocks together; not zero.
    pub tokens: u32,
}

/// A prompt: its runs in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Prompt {
    runs: Box<[Run]>,
}

/// Whether a later prompt can contain the tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Answer {
    /// No prompt repeats it, or nobody knows.
    #[default]
    Nobodys,
    /// Its tokens follow those of the prompt's last run, as in the next turn of a conversation.
    Continues,
}

/// Ids of blocks that are made up lie above those of any trace: a bit says which, then group or owner, then the block.
const SHARED: u64 = 1 << 63;
const OWN: u64 = 1 << 62;
/// The longest prompt of a trace has fewer blocks than these bits count.
const BLOCK_BITS: u32 = 16;

/// The first block of the prefix that a group shares.
pub(crate) fn shared_block(group: u32) -> BlockId {
    BlockId(SHARED | u64::from(group) << BLOCK_BITS)
}

/// The first block of what belongs to one request or session alone.
pub(crate) fn own_block(owner: u64) -> BlockId {
    BlockId(OWN | owner << BLOCK_BITS)
}

impl Run {
    pub fn blocks(self) -> impl DoubleEndedIterator<Item = (BlockId, u32)> + ExactSizeIterator {
        let count = self.tokens.div_ceil(BLOCK_TOKENS);
        (0..count).map(move |index| {
            let tokens = (self.tokens - index * BLOCK_TOKENS).min(BLOCK_TOKENS);
            (BlockId(self.first.0.wrapping_add(u64::from(index))), tokens)
        })
    }
}

impl Prompt {
    /// Runs without tokens are left out.
    pub fn new(runs: impl IntoIterator<Item = Run>) -> Self {
        Self {
            runs: runs.into_iter().filter(|run| run.tokens > 0).collect(),
        }
    }

    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub fn tokens(&self) -> u32 {
        self.runs
            .iter()
            .fold(0, |sum, run| sum.saturating_add(run.tokens))
    }

    /// Its blocks in order, each with its number of tokens.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = (BlockId, u32)> {
        self.runs.iter().flat_map(|run| run.blocks())
    }
}
