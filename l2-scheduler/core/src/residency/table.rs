//! Block hash to the set of its holders and its size in tokens: open addressing, 12 bytes a slot.
//!
//! Cut into parts so that growing one moves a thousandth of the blocks: no request waits for a rehash of all.

use super::sets::{SetId, Sets};

const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 10;
const TOKEN_BITS: u32 = 10;
const MAX_TOKENS: u32 = (1 << TOKEN_BITS) - 1;
const FIRST_SLOTS: usize = 8;

/// The key in halves keeps the slot at 12 bytes. A slot whose set is empty is vacant.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: [u32; 2],
    set_and_tokens: u32,
}

impl Slot {
    fn new(key: u64, set: SetId, tokens: u32) -> Self {
        Self {
            key: [key as u32, (key >> 32) as u32],
            set_and_tokens: set.0 << TOKEN_BITS | tokens,
        }
    }

    fn key(self) -> u64 {
        u64::from(self.key[0]) | u64::from(self.key[1]) << 32
    }

    fn set(self) -> SetId {
        SetId(self.set_and_tokens >> TOKEN_BITS)
    }

    fn tokens(self) -> u32 {
        self.set_and_tokens & MAX_TOKENS
    }
}

#[derive(Clone, Debug, Default)]
struct Part {
    slots: Box<[Slot]>,
    len: u32,
}

#[derive(Debug)]
pub(super) struct Table {
    parts: Vec<Part>,
    slots: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            parts: vec![Part::default(); PARTS],
            slots: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        PARTS * size_of::<Part>() + self.slots * size_of::<Slot>()
    }

    pub(super) fn get(&self, key: u64) -> SetId {
        let part = &self.parts[part_of(key)];
        part.find(key)
            .map_or(SetId::EMPTY, |at| part.slots[at].set())
    }

    /// Loads what the other functions will look at; see [`super::PREFETCH`].
    pub(super) fn peek(&self, key: u64) -> u32 {
        let part = &self.parts[part_of(key)];
        part.slots.get(part.home(key)).map_or(0, |slot| slot.key[0])
    }

    /// Adds a holder to a block and returns the tokens the block counts (those it was first stored with). `None` when
    /// no set can be made.
    pub(super) fn add(
        &mut self,
        sets: &mut Sets,
        key: u64,
        tokens: u32,
        holder: u32,
    ) -> Option<u32> {
        let part = &mut self.parts[part_of(key)];
        if let Some(at) = part.find(key) {
            let slot = part.slots[at];
            part.slots[at] = Slot::new(key, sets.add(slot.set(), holder)?, slot.tokens());
            return Some(slot.tokens());
        }
        let set = sets.add(SetId::EMPTY, holder)?;
        let before = part.slots.len();
        if (part.len as usize + 1) * 8 > before * 7 {
            part.resize((before * 5 / 4).max(before + FIRST_SLOTS));
        }
        let tokens = tokens.min(MAX_TOKENS);
        part.insert_new(Slot::new(key, set, tokens));
        self.slots = self.slots + part.slots.len() - before;
        Some(tokens)
    }

    /// Takes a holder from a block, and the block when it was the last; returns the tokens the block counts.
    pub(super) fn take(&mut self, sets: &mut Sets, key: u64, holder: u32) -> u32 {
        let part = &mut self.parts[part_of(key)];
        let Some(at) = part.find(key) else { return 0 };
        let slot = part.slots[at];
        let set = sets.remove(slot.set(), holder);
        if set == SetId::EMPTY {
            let before = part.slots.len();
            part.remove(at);
            self.slots = self.slots + part.slots.len() - before;
        } else {
            part.slots[at] = Slot::new(key, set, slot.tokens());
        }
        slot.tokens()
    }
}

fn part_of(key: u64) -> usize {
    (key >> (64 - PART_BITS)) as usize
}

impl Part {
    fn home(&self, key: u64) -> usize {
        ((u128::from(key << PART_BITS) * self.slots.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            0
        } else {
            at + 1
        }
    }

    fn find(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        while self.slots[at].set() != SetId::EMPTY {
            if self.slots[at].key() == key {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn insert_new(&mut self, slot: Slot) {
        let mut at = self.home(slot.key());
        while self.slots[at].set() != SetId::EMPTY {
            at = self.next(at);
        }
        self.slots[at] = slot;
        self.len += 1;
    }

    /// Empties a slot and moves later ones of the same run back, so that no search ends too early.
    fn remove(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = self.next(at);
            let slot = self.slots[at];
            if slot.set() == SetId::EMPTY {
                break;
            }
            let home = self.home(slot.key());
            let stays = if gap <= at {
                gap < home && home <= at
            } else {
                gap < home || home <= at
            };
            if !stays {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = Slot::default();
        self.len -= 1;
        if self.slots.len() > FIRST_SLOTS && (self.len as usize) * 2 < self.slots.len() {
            self.resize((self.len as usize * 5 / 4).max(FIRST_SLOTS));
        }
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(
            &mut self.slots,
            vec![Slot::default(); slots].into_boxed_slice(),
        );
        self.len = 0;
        for slot in old.into_iter().filter(|slot| slot.set() != SetId::EMPTY) {
            self.insert_new(slot);
        }
    }
}
