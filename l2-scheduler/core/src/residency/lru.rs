//! Keys in order of use: a hash table whose slots are also a doubly linked list, 16 bytes each.

/// End of the list.
const NIL: u32 = u32::MAX;
/// In `older`: the slot is empty.
const VACANT: u32 = u32::MAX - 1;
const EMPTY_SLOT: Slot = Slot {
    key: 0,
    older: VACANT,
    newer: NIL,
};
const FIRST_SLOTS: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u64,
    older: u32,
    newer: u32,
}

/// Distinct keys, least recently touched first.
#[derive(Debug)]
pub(super) struct Lru {
    slots: Box<[Slot]>,
    len: usize,
    oldest: u32,
    newest: u32,
}

impl Lru {
    pub(super) fn new() -> Self {
        Self {
            slots: Box::default(),
            len: 0,
            oldest: NIL,
            newest: NIL,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Makes `key` the most recently used; true when it was not there.
    pub(super) fn touch(&mut self, key: u64) -> bool {
        if let Some(at) = self.find(key) {
            self.unlink(at);
            self.link_newest(at);
            return false;
        }
        if (self.len + 1) * 8 > self.slots.len() * 7 {
            self.resize((self.slots.len() * 4 / 3).max(FIRST_SLOTS));
        }
        let at = self.vacant_for(key);
        self.slots[at].key = key;
        self.link_newest(at);
        self.len += 1;
        true
    }

    /// Loads what `touch` will look at; see [`super::PREFETCH`].
    pub(super) fn peek(&self, key: u64) -> u64 {
        self.slots.get(self.home(key)).map_or(0, |slot| slot.key)
    }

    /// Keys from the least recently used on.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let slot = self.slots.get(next as usize)?;
            next = slot.newer;
            Some(slot.key)
        })
    }

    /// Takes out the least recently used key.
    pub(super) fn pop_oldest(&mut self) -> Option<u64> {
        let key = self.slots.get(self.oldest as usize)?.key;
        self.remove(key);
        Some(key)
    }

    /// Takes out `key`; false when it is not there.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let Some(at) = self.find(key) else {
            return false;
        };
        self.unlink(at);
        self.close_gap(at);
        self.len -= 1;
        if self.slots.len() > FIRST_SLOTS && self.len * 2 < self.slots.len() {
            self.resize((self.len * 4 / 3).max(FIRST_SLOTS));
        }
        true
    }

    /// Hashes are uniform, so the high half of a product spreads them over any number of slots.
    fn home(&self, key: u64) -> usize {
        ((u128::from(key) * self.slots.len() as u128) >> 64) as usize
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
        while self.slots[at].older != VACANT {
            if self.slots[at].key == key {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn vacant_for(&self, key: u64) -> usize {
        let mut at = self.home(key);
        while self.slots[at].older != VACANT {
            at = self.next(at);
        }
        at
    }

    fn link_newest(&mut self, at: usize) {
        self.slots[at].older = self.newest;
        self.slots[at].newer = NIL;
        match self.slots.get_mut(self.newest as usize) {
            Some(previous) => previous.newer = at as u32,
            None => self.oldest = at as u32,
        }
        self.newest = at as u32;
    }

    fn unlink(&mut self, at: usize) {
        let Slot { older, newer, .. } = self.slots[at];
        self.point(older, newer, newer, older);
    }

    /// Sets what the older neighbour calls newer, and what the newer neighbour calls older.
    fn point(&mut self, older: u32, newer: u32, newer_of_older: u32, older_of_newer: u32) {
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer_of_older,
            None => self.oldest = newer_of_older,
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older_of_newer,
            None => self.newest = older_of_newer,
        }
    }

    /// Empties an unlinked slot and moves later ones of the same run back, so that no search ends too early.
    fn close_gap(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = self.next(at);
            let slot = self.slots[at];
            if slot.older == VACANT {
                break;
            }
            let home = self.home(slot.key);
            // The slot may move when its home is not cyclically inside (gap, at].
            let stays = if gap <= at {
                gap < home && home <= at
            } else {
                gap < home || home <= at
            };
            if !stays {
                self.slots[gap] = slot;
                self.point(slot.older, slot.newer, gap as u32, gap as u32);
                gap = at;
            }
        }
        self.slots[gap] = EMPTY_SLOT;
    }

    /// Homes keep the order of keys, so moving slots in their order writes memory in order too; then the links follow.
    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY_SLOT; slots].into_boxed_slice());
        let mut moved = vec![NIL; old.len()];
        let occupied = || {
            old.iter()
                .enumerate()
                .filter(|(_, slot)| slot.older != VACANT)
        };
        for (from, slot) in occupied() {
            let to = self.vacant_for(slot.key);
            self.slots[to] = Slot {
                older: NIL,
                ..*slot
            };
            moved[from] = to as u32;
        }
        let follow = |link: u32| moved.get(link as usize).copied().unwrap_or(NIL);
        for (from, slot) in occupied() {
            let to = &mut self.slots[moved[from] as usize];
            (to.older, to.newer) = (follow(slot.older), follow(slot.newer));
        }
        (self.oldest, self.newest) = (follow(self.oldest), follow(self.newest));
    }
}
