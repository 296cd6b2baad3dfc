//! Which prompt prefixes which endpoint holds.

mod blocks;

pub use blocks::{Block, BlockHasher, Chunking, Seed};
