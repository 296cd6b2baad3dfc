//! Which prompt prefixes which endpoint holds: an approximate mirror of every engine's prefix cache.
//!
//! Invariant: what a holder holds is closed under prefixes. Blocks are touched tail first, so a parent is always younger
//! than its children and eviction takes tails before heads. Hence the sets of holders only shrink along a prompt, and a
//! lookup may jump instead of walking.
//!
//! Blocks count from the dispatch that will compute them. When that attempt fails they stay: the next request that
//! trusts them computes them, and what nobody asks for ages out.

mod blocks;
mod footprint;
mod lru;
mod sets;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use blocks::hash_bytes;
use blocks::mix;
pub(crate) use footprint::Footprint;

pub use blocks::{Block, BlockHasher, Chunking, Seed};
use std::hint::black_box;

use lru::Lru;
use sets::{SetId, Sets};
use table::Table;

/// One cache in the index; its number is used again after its last block is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(u32);

impl Holder {
    /// Position in dense arrays of holders.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The prefix index of a pool.
#[derive(Debug)]
pub struct Residency {
    seed: u64,
    table: Table,
    sets: Sets,
    caches: Vec<Cache>,
    unused: Vec<Holder>,
    /// Removed holders whose blocks are not yet taken out.
    dying: Vec<Holder>,
    pairs: usize,
    lru_bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Cache {
    lru: Lru,
    tokens: u64,
    capacity: u64,
}

impl Cache {
    /// About how many blocks it holds beyond its capacity, if any.
    fn blocks_over(&self) -> Option<usize> {
        let over = self
            .tokens
            .checked_sub(self.capacity)
            .filter(|over| *over > 0)?;
        let each = (self.tokens / self.lru.len().max(1) as u64).max(1);
        Some(usize::try_from(over.div_ceil(each)).unwrap_or(usize::MAX))
    }
}

/// Blocks taken out at once when the index is too big: enough to make the search for the largest cache cheap.
const EVICTION_BATCH: usize = 64;
/// How often the byte cap is checked inside one long insertion.
const CAP_CHECK: usize = 256;
/// Blocks whose memory is asked for at once. Loads that do not depend on each other overlap; one after the other each
/// would wait for main memory, which is what storing a block costs.
const PREFETCH: usize = 32;

impl Residency {
    /// An empty index that stays within `max_bytes`. Where blocks stand in its tables depends on `seed`, so that nobody who
    /// does not know it can find prompts that all want the same place.
    pub fn new(max_bytes: usize, seed: u64) -> Self {
        Self {
            seed,
            table: Table::new(),
            sets: Sets::new(max_bytes / 4),
            caches: Vec::new(),
            unused: Vec::new(),
            dying: Vec::new(),
            pairs: 0,
            lru_bytes: 0,
            max_bytes,
        }
    }

    /// A new, empty cache of `capacity` tokens.
    pub fn add_holder(&mut self, capacity: u64) -> Holder {
        let cache = Cache {
            lru: Lru::new(),
            tokens: 0,
            capacity,
        };
        if let Some(holder) = self.unused.pop() {
            self.caches[holder.index()] = cache;
            return holder;
        }
        let holder = Holder(
            u32::try_from(self.caches.len()).expect("holders are endpoints, far fewer than 2^32"),
        );
        self.caches.push(cache);
        holder
    }

    /// Forgets everything a holder holds. Its blocks leave the memory little by little; the number is not given out
    /// before the last one has, so nothing of it can be mistaken for a later holder's.
    pub fn remove_holder(&mut self, holder: Holder) {
        self.dying.push(holder);
        self.purge(EVICTION_BATCH);
    }

    /// The engine's real capacity became known or changed.
    pub fn set_capacity(&mut self, holder: Holder, tokens: u64) {
        self.caches[holder.index()].capacity = tokens;
        self.shrink_to_capacity(holder);
    }

    /// `holder` computes, or has just used, this prefix.
    pub fn insert(&mut self, holder: Holder, blocks: &[Block]) {
        self.purge(2 * blocks.len() + EVICTION_BATCH);
        let capacity = self.caches[holder.index()].capacity;
        let fits = blocks.partition_point(|block| u64::from(block.end_tokens) <= capacity);
        for (group, part) in blocks[..fits].chunks(PREFETCH).enumerate().rev() {
            let lru = &self.caches[holder.index()].lru;
            for block in part {
                let key = self.key(block);
                black_box((lru.peek(key), self.table.peek(key)));
            }
            for at in (0..part.len()).rev().map(|at| group * PREFETCH + at) {
                let start = if at == 0 {
                    0
                } else {
                    blocks[at - 1].end_tokens
                };
                self.store(
                    holder,
                    self.key(&blocks[at]),
                    blocks[at].end_tokens.saturating_sub(start),
                );
            }
            // Room is made as it is needed, so that a long prompt does not first make the tables grow.
            self.shrink_to_capacity(holder);
            if group % (CAP_CHECK / PREFETCH) == 0 {
                self.enforce_cap();
            }
        }
    }

    fn key(&self, block: &Block) -> u64 {
        mix(block.hash, self.seed)
    }

    /// Calls `found(holder, depth)` once for every holder of at least the first block, where `depth` counts the blocks
    /// it holds without a gap. Removed holders may be reported until their blocks are gone.
    pub fn lookup(&self, blocks: &[Block], mut found: impl FnMut(Holder, usize)) {
        let set_at = |at: usize| {
            blocks
                .get(at)
                .map_or(SetId::EMPTY, |block| self.table.get(self.key(block)))
        };
        let mut at = 0;
        let mut current = set_at(0);
        while current != SetId::EMPTY {
            // Gallop while nothing changes, then bisect to the first block held by fewer.
            let mut step = 1;
            let (mut same, mut other) = (at, blocks.len());
            while same + step < blocks.len() {
                if set_at(same + step) == current {
                    same += step;
                    step *= 2;
                } else {
                    other = same + step;
                    break;
                }
            }
            while other - same > 1 {
                let middle = usize::midpoint(same, other);
                if set_at(middle) == current {
                    same = middle;
                } else {
                    other = middle;
                }
            }
            let next = set_at(other);
            self.sets
                .for_each_lost(current, next, |holder| found(Holder(holder), other));
            at = other;
            current = next;
        }
    }

    /// Tokens of prefixes `holder` holds.
    pub fn resident_tokens(&self, holder: Holder) -> u64 {
        self.caches[holder.index()].tokens
    }

    /// (block, holder) pairs in memory.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Bytes in use, as allocated.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
            + self.sets.bytes()
            + self.lru_bytes
            + self.caches.capacity() * size_of::<Cache>()
    }

    fn store(&mut self, holder: Holder, hash: u64, tokens: u32) {
        let cache = &mut self.caches[holder.index()];
        let before = cache.lru.bytes();
        if cache.lru.touch(hash) {
            if let Some(tokens) = self.table.add(&mut self.sets, hash, tokens, holder.0) {
                cache.tokens += u64::from(tokens);
                self.pairs += 1;
            } else {
                // No set can be made (see `Sets::add`): the block stays unknown.
                cache.lru.remove(hash);
            }
        }
        self.lru_bytes = self.lru_bytes + cache.lru.bytes() - before;
    }

    /// `holder` will not compute this block, which no other continues.
    fn take_back(&mut self, holder: Holder, block: &Block) {
        let key = self.key(block);
        let cache = &mut self.caches[holder.index()];
        let before = cache.lru.bytes();
        if cache.lru.remove(key) {
            cache.tokens -= u64::from(self.table.take(&mut self.sets, key, holder.0));
            self.pairs -= 1;
        }
        self.lru_bytes = self.lru_bytes + cache.lru.bytes() - before;
    }

    /// Takes out the block the holder has not used for longest. False when it has none.
    fn evict(&mut self, holder: Holder) -> bool {
        let cache = &mut self.caches[holder.index()];
        let before = cache.lru.bytes();
        let Some(hash) = cache.lru.pop_oldest() else {
            return false;
        };
        self.lru_bytes = self.lru_bytes + cache.lru.bytes() - before;
        cache.tokens -= u64::from(self.table.take(&mut self.sets, hash, holder.0));
        self.pairs -= 1;
        true
    }

    fn shrink_to_capacity(&mut self, holder: Holder) {
        while let Some(most) = self.caches[holder.index()].blocks_over() {
            let group = most.min(PREFETCH);
            // A short prompt takes the place of a few blocks: no more of them are asked for than that.
            if group > 1 {
                let cache = &self.caches[holder.index()];
                for hash in cache.lru.oldest_first().take(group) {
                    black_box(self.table.peek(hash));
                }
            }
            for _ in 0..group {
                if self.caches[holder.index()].blocks_over().is_some() {
                    self.evict(holder);
                }
            }
        }
    }

    fn purge(&mut self, most: usize) {
        for _ in 0..most {
            let Some(&holder) = self.dying.last() else {
                return;
            };
            if !self.evict(holder) {
                self.dying.pop();
                let emptied = std::mem::replace(&mut self.caches[holder.index()].lru, Lru::new());
                self.lru_bytes -= emptied.bytes();
                self.unused.push(holder);
            }
        }
    }

    /// Over the cap, whoever holds most gives up what it used least recently. The margin covers one growth step.
    fn enforce_cap(&mut self) {
        while self.bytes() > self.max_bytes - self.max_bytes / 8 && self.pairs > 0 {
            if !self.dying.is_empty() {
                self.purge(EVICTION_BATCH);
                continue;
            }
            let largest = (0..self.caches.len())
                .max_by_key(|&at| self.caches[at].lru.len())
                .expect("a pair has a holder");
            let batch = EVICTION_BATCH.max(self.caches[largest].lru.len() / 64);
            for _ in 0..batch {
                self.evict(Holder(largest as u32));
            }
        }
    }
}
