//! A least-recently-used set of blocks in which the tail of a prompt goes before its head.

use rustc_hash::FxHashMap;

use crate::prompt::{BlockId, Prompt};

/// Blocks held, in order of their last use. A map from block to its place in a linked list kept in a vector.
#[derive(Debug)]
pub struct Lru {
    places: FxHashMap<BlockId, usize>,
    nodes: Vec<Node>,
    newest: usize,
    oldest: usize,
    capacity: usize,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    block: BlockId,
    newer: usize,
    older: usize,
}

const NONE: usize = usize::MAX;

impl Lru {
    /// Room for `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Self {
            places: FxHashMap::default(),
            nodes: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
        }
    }

    /// How many blocks of the prompt are held, from its first one on without a gap.
    pub fn matched(&self, prompt: &Prompt) -> u64 {
        prompt
            .blocks()
            .take_while(|(block, _)| self.places.contains_key(block))
            .count() as u64
    }

    /// Uses every block of the prompt, the last one first, so that heads outlive their tails.
    pub fn insert(&mut self, prompt: &Prompt) {
        for (block, _) in prompt.blocks().rev() {
            self.touch(block);
        }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn touch(&mut self, block: BlockId) {
        if self.capacity == 0 {
            return;
        }
        let place = match self.places.get(&block) {
            Some(&place) => {
                self.unlink(place);
                place
            }
            None => self.room_for(block),
        };
        self.link_newest(place);
    }

    /// A place that is in no list: a fresh one, or the oldest block's.
    fn room_for(&mut self, block: BlockId) -> usize {
        let node = Node {
            block,
            newer: NONE,
            older: NONE,
        };
        let place = if self.nodes.len() < self.capacity {
            self.nodes.push(node);
            self.nodes.len() - 1
        } else {
            let place = self.oldest;
            self.unlink(place);
            self.places.remove(&self.nodes[place].block);
            self.nodes[place] = node;
            place
        };
        self.places.insert(block, place);
        place
    }

    fn unlink(&mut self, place: usize) {
        let Node { newer, older, .. } = self.nodes[place];
        match self.nodes.get_mut(newer) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, place: usize) {
        let before = self.newest;
        self.nodes[place].newer = NONE;
        self.nodes[place].older = before;
        match self.nodes.get_mut(before) {
            Some(node) => node.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }
}
