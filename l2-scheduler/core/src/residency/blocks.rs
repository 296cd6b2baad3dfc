//! Prompt content to chained block hashes: equal prefixes of prompts give equal prefixes of hashes.
//!
//! The hash is our own, never the engine's, and routing only: a collision sends one request to a worse endpoint.

/// Blocks of one request are bounded: what lies behind the last is not matched.
const MAX_BLOCKS: usize = 32_768;
/// A message shorter than this does not end a block, so tiny messages cannot flood the index.
const MIN_TEXT_BLOCK: usize = 64;
const MAX_CHUNK: usize = 1024;
/// The index keeps ten bits for the tokens of a block.
const MAX_BLOCK_TOKENS: u16 = 512;

/// One block of a prompt: the chained hash of everything up to its end, and how many tokens that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Hash of the whole prefix up to and including this block.
    pub hash: u64,
    /// Tokens from the start of the prompt to the end of this block (an estimate in text mode).
    pub end_tokens: u32,
}

/// What separates chains that must never match: the same text for another model, adapter or cache domain.
#[derive(Clone, Copy, Debug)]
pub struct Seed(u64);

impl Seed {
    /// Seed of the chains of one model, adapter and cache domain.
    pub fn new(model: &str, adapter: Option<&str>, cache_domain: &str) -> Self {
        let with_model = hash_bytes(0x9e37_79b9_7f4a_7c15, model.as_bytes());
        let with_adapter = match adapter {
            Some(adapter) => hash_bytes(with_model, adapter.as_bytes()),
            None => mix(with_model, ABSENT),
        };
        Self(hash_bytes(with_adapter, cache_domain.as_bytes()))
    }
}

/// How content is cut into blocks.
#[derive(Clone, Copy, Debug)]
pub enum Chunking {
    /// Text in pieces of this many bytes (64 to 1,024), cut anew at message boundaries.
    Text {
        /// Bytes per block.
        bytes: u16,
        /// Average bytes per token, for the estimate (at least 2).
        bytes_per_token: f32,
    },
    /// Token ids in blocks of this many; a last partial block is dropped, as engines do.
    Tokens {
        /// Tokens per block (1 to 512).
        size: u16,
    },
}

impl Default for Chunking {
    fn default() -> Self {
        Self::Text {
            bytes: 256,
            bytes_per_token: 4.0,
        }
    }
}

/// Builds the blocks of one request from pieces of text, token ids and message boundaries in prompt order. How the
/// content of one message is split into pieces changes nothing.
#[derive(Debug)]
pub struct BlockHasher {
    chain: u64,
    chunking: Chunking,
    chunk_bytes: usize,
    pending: Vec<u8>,
    bytes: u64,
    blocks: Vec<Block>,
}

impl BlockHasher {
    /// A hasher for one request.
    pub fn new(seed: Seed, chunking: Chunking) -> Self {
        let chunk_bytes = match chunking {
            Chunking::Text { bytes, .. } => usize::from(bytes).clamp(MIN_TEXT_BLOCK, MAX_CHUNK),
            Chunking::Tokens { size } => usize::from(size.clamp(1, MAX_BLOCK_TOKENS)) * 4,
        };
        Self {
            chain: seed.0,
            chunking,
            chunk_bytes,
            pending: Vec::with_capacity(chunk_bytes),
            bytes: 0,
            blocks: Vec::new(),
        }
    }

    /// Text of the current message. In token mode text cannot be placed exactly and is hashed by its bytes.
    pub fn text(&mut self, mut text: &[u8]) {
        if !self.pending.is_empty() {
            let taken = text.len().min(self.chunk_bytes - self.pending.len());
            self.pending.extend_from_slice(&text[..taken]);
            text = &text[taken..];
            if self.pending.len() == self.chunk_bytes {
                self.close_pending();
            }
        }
        let mut chunks = text.chunks_exact(self.chunk_bytes);
        for chunk in &mut chunks {
            self.push(hash_bytes(self.chain, chunk), chunk.len());
        }
        self.pending.extend_from_slice(chunks.remainder());
    }

    /// Token ids of the prompt.
    pub fn tokens(&mut self, ids: &[u32]) {
        for id in ids {
            self.text(&id.to_le_bytes());
        }
    }

    /// The end of a message.
    pub fn boundary(&mut self) {
        if let Chunking::Text { .. } = self.chunking {
            if self.pending.len() >= MIN_TEXT_BLOCK {
                self.close_pending();
            }
            self.chain = mix(self.chain, BOUNDARY);
        }
    }

    /// The blocks of everything fed so far.
    pub fn finish(mut self) -> Vec<Block> {
        if matches!(self.chunking, Chunking::Text { .. }) && self.pending.len() >= MIN_TEXT_BLOCK {
            self.close_pending();
        }
        self.blocks
    }

    fn close_pending(&mut self) {
        let hash = hash_bytes(self.chain, &self.pending);
        let length = self.pending.len();
        self.pending.clear();
        self.push(hash, length);
    }

    fn push(&mut self, hash: u64, length: usize) {
        self.chain = hash;
        self.bytes += length as u64;
        if self.blocks.len() < MAX_BLOCKS {
            let end_tokens = match self.chunking {
                Chunking::Text {
                    bytes_per_token, ..
                } => (self.bytes as f64 / f64::from(bytes_per_token.max(2.0))) as u32,
                Chunking::Tokens { .. } => (self.bytes / 4) as u32,
            };
            self.blocks.push(Block { hash, end_tokens });
        }
    }
}

const BOUNDARY: u64 = 0xd6e8_feb8_6659_fd93;
const ABSENT: u64 = 0xa076_1d64_78bd_642f;
const LANES: [u64; 4] = [
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
    0x1d8e_4e27_c47d_124f,
];

/// Both halves of the product, so every input bit reaches every output bit.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ LANES[0]) * u128::from(b ^ LANES[1]);
    (product as u64) ^ ((product >> 64) as u64)
}

/// 64-bit hash of `bytes` under `seed`: four words a round in two independent lanes, which keeps the multipliers busy.
pub(crate) fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let (mut left, mut right) = (seed ^ LANES[2], seed.rotate_left(32) ^ LANES[3]);
    let mut rounds = bytes.chunks_exact(32);
    for round in &mut rounds {
        left = mix(left ^ word(&round[0..8]), word(&round[8..16]));
        right = mix(right ^ word(&round[16..24]), word(&round[24..32]));
    }
    for rest in rounds.remainder().chunks(8) {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        left = mix(left ^ u64::from_le_bytes(padded), right);
    }
    mix(left ^ bytes.len() as u64, right)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the caller cuts eight bytes"))
}
