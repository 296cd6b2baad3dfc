//! Sets of holders, each stored once. Blocks along a prompt and prompts of one kind share them.

use hashbrown::HashTable;

/// Number of an interned set; 0 is the empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetId(pub(super) u32);

impl SetId {
    pub(super) const EMPTY: Self = Self(0);
    /// Numbers must fit the bits a table slot has for them.
    const LIMIT: usize = 1 << 22;
}

const FEW: usize = 6;

/// Up to six holders in line, more as bits: a difference of two large sets costs a few words.
#[derive(Clone, Debug)]
enum Members {
    Few { len: u8, ids: [u32; FEW] },
    Many(Box<[u64]>),
}

#[derive(Debug)]
struct Set {
    members: Members,
    /// Sum of the members' own hashes, so one member more or less costs one addition.
    hash: u64,
    /// Blocks that point here.
    blocks: u32,
}

#[derive(Debug)]
pub(super) struct Sets {
    interned: Vec<Set>,
    by_hash: HashTable<u32>,
    free: Vec<u32>,
    heap_bytes: usize,
    /// No block joins a new set beyond this; leaving one must always succeed.
    max_bytes: usize,
    scratch: Vec<u64>,
    /// The last step taken in each direction. Neighbouring blocks take the same one.
    last_with: Step,
    last_without: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    from: SetId,
    holder: u32,
    to: SetId,
}

const NO_STEP: Step = Step {
    from: SetId(u32::MAX),
    holder: u32::MAX,
    to: SetId::EMPTY,
};

impl Sets {
    pub(super) fn new(max_bytes: usize) -> Self {
        let empty = Set {
            members: Members::Few {
                len: 0,
                ids: [0; FEW],
            },
            hash: 0,
            blocks: 0,
        };
        Self {
            interned: vec![empty],
            by_hash: HashTable::new(),
            free: Vec::new(),
            heap_bytes: 0,
            max_bytes,
            scratch: Vec::new(),
            last_with: NO_STEP,
            last_without: NO_STEP,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.interned.capacity() * size_of::<Set>()
            + self.by_hash.allocation_size()
            + self.free.capacity() * 4
            + self.heap_bytes
    }

    /// Moves one block from `from` to the set with `holder` added. `None` when that would be one set too many.
    pub(super) fn add(&mut self, from: SetId, holder: u32) -> Option<SetId> {
        let to = if (self.last_with.from, self.last_with.holder) == (from, holder) {
            self.last_with.to
        } else {
            let hash = self.interned[from.0 as usize]
                .hash
                .wrapping_add(member_hash(holder));
            self.load(from);
            set_bit(&mut self.scratch, holder, true);
            let live = self.interned.len() - self.free.len();
            let may_grow = live < SetId::LIMIT / 4 * 3
                && live * size_of::<Set>() + self.heap_bytes < self.max_bytes;
            self.intern(hash, may_grow)?
        };
        self.last_with = Step { from, holder, to };
        self.move_block(from, to);
        Some(to)
    }

    /// Moves one block from `from` to the set with `holder` taken out.
    pub(super) fn remove(&mut self, from: SetId, holder: u32) -> SetId {
        let to = if (self.last_without.from, self.last_without.holder) == (from, holder) {
            self.last_without.to
        } else {
            let hash = self.interned[from.0 as usize]
                .hash
                .wrapping_sub(member_hash(holder));
            self.load(from);
            set_bit(&mut self.scratch, holder, false);
            self.intern(hash, true)
                .expect("a quarter of the numbers is kept for sets that blocks shrink to")
        };
        self.last_without = Step { from, holder, to };
        self.move_block(from, to);
        to
    }

    /// Calls `lost` for every member of `from` that is not in `to`.
    pub(super) fn for_each_lost(&self, from: SetId, to: SetId, mut lost: impl FnMut(u32)) {
        let kept = &self.interned[to.0 as usize].members;
        match &self.interned[from.0 as usize].members {
            Members::Few { len, ids } => {
                for &id in &ids[..usize::from(*len)] {
                    if !kept.contains(id) {
                        lost(id);
                    }
                }
            }
            Members::Many(words) => {
                for (at, &word) in words.iter().enumerate() {
                    let mut rest = word & !kept.word(at);
                    while rest != 0 {
                        lost(at as u32 * 64 + rest.trailing_zeros());
                        rest &= rest - 1;
                    }
                }
            }
        }
    }

    /// The members of `id` as bits into the scratch space.
    fn load(&mut self, id: SetId) {
        self.scratch.clear();
        match &self.interned[id.0 as usize].members {
            Members::Few { len, ids } => {
                for &holder in &ids[..usize::from(*len)] {
                    set_bit(&mut self.scratch, holder, true);
                }
            }
            Members::Many(words) => self.scratch.extend_from_slice(words),
        }
    }

    /// The number of the set in the scratch space, which may be a new one.
    fn intern(&mut self, hash: u64, may_grow: bool) -> Option<SetId> {
        while self.scratch.last() == Some(&0) {
            self.scratch.pop();
        }
        if self.scratch.is_empty() {
            return Some(SetId::EMPTY);
        }
        let (sets, scratch) = (&self.interned, &self.scratch);
        let same = |id: &u32| {
            sets[*id as usize].hash == hash && sets[*id as usize].members.equals(scratch)
        };
        if let Some(id) = self.by_hash.find(hash, same) {
            return Some(SetId(*id));
        }
        if !may_grow {
            return None;
        }
        let members = Members::from_words(&self.scratch);
        self.heap_bytes += members.heap_bytes();
        let set = Set {
            members,
            hash,
            blocks: 0,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.interned[id as usize] = set;
                id
            }
            None if self.interned.len() < SetId::LIMIT => {
                self.interned.push(set);
                (self.interned.len() - 1) as u32
            }
            None => return None,
        };
        let sets = &self.interned;
        self.by_hash
            .insert_unique(hash, id, |id| sets[*id as usize].hash);
        Some(SetId(id))
    }

    fn move_block(&mut self, from: SetId, to: SetId) {
        self.interned[to.0 as usize].blocks += 1;
        if from == SetId::EMPTY {
            return;
        }
        let set = &mut self.interned[from.0 as usize];
        set.blocks -= 1;
        if set.blocks == 0 {
            let hash = set.hash;
            self.heap_bytes -= set.members.heap_bytes();
            set.members = Members::Few {
                len: 0,
                ids: [0; FEW],
            };
            if let Ok(entry) = self.by_hash.find_entry(hash, |id| *id == from.0) {
                entry.remove();
            }
            self.free.push(from.0);
            // The number may come back with other members.
            for step in [&mut self.last_with, &mut self.last_without] {
                if step.from == from || step.to == from {
                    *step = NO_STEP;
                }
            }
        }
    }
}

impl Members {
    fn from_words(words: &[u64]) -> Self {
        let len: u32 = words.iter().map(|word| word.count_ones()).sum();
        if len as usize > FEW {
            return Self::Many(words.into());
        }
        let mut ids = [0; FEW];
        for (slot, id) in ids.iter_mut().zip(bits(words)) {
            *slot = id;
        }
        Self::Few {
            len: len as u8,
            ids,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Few { .. } => 0,
            Self::Many(words) => size_of_val(&**words),
        }
    }

    fn contains(&self, id: u32) -> bool {
        match self {
            Self::Few { len, ids } => ids[..usize::from(*len)].contains(&id),
            Self::Many(words) => words
                .get(id as usize / 64)
                .is_some_and(|word| word >> (id % 64) & 1 == 1),
        }
    }

    fn word(&self, at: usize) -> u64 {
        match self {
            Self::Few { len, ids } => {
                let inside = ids[..usize::from(*len)]
                    .iter()
                    .filter(|id| **id as usize / 64 == at);
                inside.fold(0, |word, id| word | 1 << (id % 64))
            }
            Self::Many(words) => words.get(at).copied().unwrap_or(0),
        }
    }

    fn equals(&self, words: &[u64]) -> bool {
        match self {
            Self::Few { len, ids } => ids[..usize::from(*len)].iter().copied().eq(bits(words)),
            Self::Many(own) => **own == *words,
        }
    }
}

fn bits(words: &[u64]) -> impl Iterator<Item = u32> + '_ {
    words.iter().enumerate().flat_map(|(at, &word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(at as u32 * 64 + bit)
        })
    })
}

fn set_bit(words: &mut Vec<u64>, id: u32, value: bool) {
    let at = id as usize / 64;
    if at >= words.len() {
        words.resize(at + 1, 0);
    }
    let bit = 1 << (id % 64);
    if value {
        words[at] |= bit;
    } else {
        words[at] &= !bit;
    }
}

fn member_hash(holder: u32) -> u64 {
    super::hash_bytes(0x2545_f491_4f6c_dd1d, &holder.to_le_bytes())
}
