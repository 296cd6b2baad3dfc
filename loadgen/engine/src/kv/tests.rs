use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The same memory, slow and obvious: a list of idle blocks and a list of published contents.
#[derive(Default)]
struct Reference {
    capacity: usize,
    users: BTreeMap<u32, u32>,
    idle: Vec<u32>,
    /// In order of publication.
    published: Vec<(u64, u32)>,
    known: u32,
}

impl Reference {
    fn find(&self, hash: u64) -> bool {
        self.published.iter().any(|(h, _)| *h == hash)
    }

    fn allocate(&mut self) -> Option<u32> {
        let index = if (self.known as usize) < self.capacity {
            self.known += 1;
            self.known - 1
        } else if self.idle.is_empty() {
            return None;
        } else {
            self.idle.remove(0)
        };
        self.published.retain(|(_, i)| *i != index);
        self.users.insert(index, 1);
        Some(index)
    }

    fn share(&mut self, index: u32) {
        self.idle.retain(|i| *i != index);
        *self.users.entry(index).or_default() += 1;
    }

    fn release(&mut self, index: u32) {
        let users = self
            .users
            .get_mut(&index)
            .expect("released blocks are in use");
        *users -= 1;
        if *users == 0 {
            self.users.remove(&index);
            self.idle.push(index);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Allocate,
    Publish(usize, u64),
    Find(u64),
    Release(usize),
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Allocate),
        4 => (any::<usize>(), 0_u64..12).prop_map(|(i, h)| Op::Publish(i, h)),
        4 => (0_u64..12).prop_map(Op::Find),
        6 => any::<usize>().prop_map(Op::Release),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #[test]
    fn memory_behaves_like_two_lists(capacity in 1_u32..10, ops in prop::collection::vec(op(), 0..120)) {
        let mut pool = BlockPool::new(capacity);
        let mut reference = Reference { capacity: capacity as usize, ..Reference::default() };
        // One entry per user; `true` once published, since a block is filled once.
        let mut held: Vec<(BlockIndex, bool)> = Vec::new();
        for op in ops {
            match op {
                Op::Allocate => {
                    let got = pool.allocate();
                    prop_assert_eq!(got.map(|i| i.0), reference.allocate());
                    held.extend(got.map(|i| (i, false)));
                }
                Op::Publish(i, hash) if !held.is_empty() => {
                    let at = i % held.len();
                    let (index, published) = held[at];
                    if !published {
                        held[at].1 = true;
                        pool.publish(index, BlockHash(hash));
                        reference.published.push((hash, index.0));
                    }
                }
                Op::Find(hash) => {
                    let found = pool.find(BlockHash(hash));
                    prop_assert_eq!(found.is_some(), reference.find(hash));
                    if let Some(index) = found {
                        prop_assert!(reference.published.contains(&(hash, index.0)));
                        pool.share(index);
                        reference.share(index.0);
                        held.push((index, true));
                    }
                }
                Op::Release(i) if !held.is_empty() => {
                    let (index, _) = held.swap_remove(i % held.len());
                    pool.release(index);
                    reference.release(index.0);
                }
                Op::Clear => {
                    pool.clear();
                    reference.published.clear();
                    for (_, published) in &mut held {
                        *published = true;
                    }
                }
                Op::Publish(..) | Op::Release(_) => {}
            }
            prop_assert_eq!(pool.idle_blocks().collect::<Vec<_>>(), reference.idle.clone());
            prop_assert_eq!(pool.used() as usize, reference.users.len());
            prop_assert_eq!(pool.available() + pool.used(), capacity);
        }
    }
}

#[test]
fn tails_that_were_released_first_are_evicted_first() {
    let mut pool = BlockPool::new(3);
    let blocks: Vec<_> = (0..3)
        .map(|_| pool.allocate().expect("room for three"))
        .collect();
    for (hash, block) in blocks.iter().enumerate() {
        pool.publish(*block, BlockHash(hash as u64));
    }
    for block in blocks.iter().rev() {
        pool.release(*block);
    }
    pool.allocate().expect("idle blocks are available");
    assert!(pool.find(BlockHash(0)).is_some());
    assert!(pool.find(BlockHash(1)).is_some());
    assert!(pool.find(BlockHash(2)).is_none(), "the tail went first");
    assert_eq!(pool.evictions(), 1);
}

#[test]
fn content_computed_twice_survives_the_eviction_of_one_copy() {
    let mut pool = BlockPool::new(2);
    let (a, b) = (
        pool.allocate().expect("first"),
        pool.allocate().expect("second"),
    );
    pool.publish(a, BlockHash(7));
    pool.publish(b, BlockHash(7));
    pool.release(a);
    pool.allocate().expect("the idle copy is evicted");
    assert_eq!(pool.find(BlockHash(7)), Some(b));
}
