//! Paged KV memory: reference-counted blocks, found again by content hash until they are evicted, least
//! recently released first. Grows as it is used, so an idle engine costs nothing.

use hashbrown::{HashTable, hash_table};

use crate::content::BlockHash;

#[cfg(test)]
mod tests;

/// Index of a physical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockIndex(u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Block {
    hash: BlockHash,
    users: u32,
    content: Content,
    /// Neighbours in the list of idle blocks.
    older: u32,
    newer: u32,
    /// Next physical block with the same content: two sequences may compute one prefix at the same time.
    twin: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Not full yet, or recycled: nobody can find it.
    Private,
    Published,
}

/// All KV blocks of one engine. Every block is fresh, idle (no users, maybe findable), or in use:
/// `fresh + idle + used == capacity`.
pub(crate) struct BlockPool {
    capacity: u32,
    /// Blocks ever handed out; the rest is fresh.
    blocks: Vec<Block>,
    /// First block of each published content.
    published: HashTable<u32>,
    oldest: u32,
    newest: u32,
    idle: u32,
    evictions: u64,
    /// Grows whenever a block becomes idle: a request that found no room need not look again before.
    releases: u64,
}

impl BlockPool {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            blocks: Vec::new(),
            published: HashTable::new(),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            evictions: 0,
            releases: 0,
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that can be handed out, by evicting cached content if need be.
    pub(crate) fn available(&self) -> u32 {
        self.capacity - self.blocks.len() as u32 + self.idle
    }

    pub(crate) fn used(&self) -> u32 {
        self.capacity - self.available()
    }

    /// Idle blocks whose content can still be found.
    pub(crate) fn cached_idle(&self) -> u32 {
        self.idle_blocks()
            .filter(|i| self.block(*i).content == Content::Published)
            .count() as u32
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    pub(crate) fn releases(&self) -> u64 {
        self.releases
    }

    pub(crate) fn find(&self, hash: BlockHash) -> Option<BlockIndex> {
        self.published
            .find(hash.0, |i| self.blocks[*i as usize].hash == hash)
            .map(|i| BlockIndex(*i))
    }

    pub(crate) fn is_idle(&self, index: BlockIndex) -> bool {
        self.block(index.0).users == 0
    }

    /// One more user of a block that was found.
    pub(crate) fn share(&mut self, index: BlockIndex) {
        if self.is_idle(index) {
            self.unlink(index.0);
        }
        self.blocks[index.0 as usize].users += 1;
    }

    /// A private block for one user: a fresh one, else the one idle for longest.
    pub(crate) fn allocate(&mut self) -> Option<BlockIndex> {
        if (self.blocks.len() as u32) < self.capacity {
            let index = self.blocks.len() as u32;
            let hash = BlockHash(0);
            let content = Content::Private;
            if self.blocks.len() == self.blocks.capacity() {
                // Doubling would end well above the capacity, which is known.
                let more = self
                    .blocks
                    .len()
                    .max(64)
                    .min(self.capacity as usize - self.blocks.len());
                self.blocks.reserve_exact(more);
            }
            self.blocks.push(Block {
                hash,
                users: 1,
                content,
                older: NONE,
                newer: NONE,
                twin: NONE,
            });
            return Some(BlockIndex(index));
        }
        if self.oldest == NONE {
            return None;
        }
        let index = self.oldest;
        self.unlink(index);
        self.forget(index);
        self.blocks[index as usize].users = 1;
        Some(BlockIndex(index))
    }

    /// Makes a full block findable by its content.
    pub(crate) fn publish(&mut self, index: BlockIndex, hash: BlockHash) {
        let block = &mut self.blocks[index.0 as usize];
        debug_assert!(block.users > 0, "only a block in use can have been filled");
        block.hash = hash;
        block.content = Content::Published;
        block.twin = NONE;
        let blocks = &self.blocks;
        let entry = self.published.entry(
            hash.0,
            |i| blocks[*i as usize].hash == hash,
            |i| blocks[*i as usize].hash.0,
        );
        match entry {
            hash_table::Entry::Vacant(entry) => {
                entry.insert(index.0);
            }
            hash_table::Entry::Occupied(entry) => {
                let first = *entry.get();
                self.blocks[index.0 as usize].twin = self.blocks[first as usize].twin;
                self.blocks[first as usize].twin = index.0;
            }
        }
    }

    /// One user less; without users the block is idle, and the newest of the idle ones.
    pub(crate) fn release(&mut self, index: BlockIndex) {
        let newest = self.newest;
        let block = &mut self.blocks[index.0 as usize];
        block.users -= 1;
        if block.users > 0 {
            return;
        }
        block.older = newest;
        block.newer = NONE;
        if newest == NONE {
            self.oldest = index.0;
        } else {
            self.blocks[newest as usize].newer = index.0;
        }
        self.newest = index.0;
        self.idle += 1;
        self.releases += 1;
    }

    /// Forgets all content, as when an engine's cache is reset. Blocks in use stay with their users.
    pub(crate) fn clear(&mut self) {
        self.published.clear();
        for block in &mut self.blocks {
            block.content = Content::Private;
            block.twin = NONE;
        }
    }

    fn block(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }

    fn unlink(&mut self, index: u32) {
        let Block { older, newer, .. } = *self.block(index);
        if older == NONE {
            self.oldest = newer;
        } else {
            self.blocks[older as usize].newer = newer;
        }
        if newer == NONE {
            self.newest = older;
        } else {
            self.blocks[newer as usize].older = older;
        }
        self.idle -= 1;
    }

    /// Evicts the content of a block, keeping its twins findable.
    fn forget(&mut self, index: u32) {
        let Block {
            hash,
            content,
            twin,
            ..
        } = *self.block(index);
        if content == Content::Private {
            return;
        }
        self.evictions += 1;
        self.blocks[index as usize].content = Content::Private;
        self.blocks[index as usize].twin = NONE;
        let blocks = &self.blocks;
        let Ok(mut entry) = self
            .published
            .find_entry(hash.0, |i| blocks[*i as usize].hash == hash)
        else {
            return;
        };
        let first = *entry.get();
        if first != index {
            self.drop_twin(first, index, twin);
        } else if twin == NONE {
            entry.remove();
        } else {
            *entry.get_mut() = twin;
        }
    }

    fn drop_twin(&mut self, first: u32, index: u32, next: u32) {
        let mut at = first;
        while self.block(at).twin != index {
            at = self.block(at).twin;
        }
        self.blocks[at as usize].twin = next;
    }

    fn idle_blocks(&self) -> impl Iterator<Item = u32> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let index = at;
            (index != NONE).then(|| {
                at = self.block(index).newer;
                index
            })
        })
    }
}
