//! The index against a list per holder and a walk block by block.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LARGE: usize = 1 << 30;

fn tokens(ids: &[u32]) -> Vec<Block> {
    let mut hasher = BlockHasher::new(Seed::new("m", None, "d"), Chunking::Tokens { size: 1 });
    hasher.tokens(ids);
    hasher.finish()
}

fn text(pieces: &[&str]) -> Vec<Block> {
    let mut hasher = BlockHasher::new(Seed::new("m", None, "d"), Chunking::default());
    for piece in pieces {
        if *piece == "|" {
            hasher.boundary();
        } else {
            hasher.text(piece.as_bytes());
        }
    }
    hasher.finish()
}

fn matches(index: &Residency, blocks: &[Block]) -> BTreeMap<Holder, usize> {
    let mut found = BTreeMap::new();
    index.lookup(blocks, |holder, depth| {
        assert!(
            found.insert(holder, depth).is_none(),
            "a holder is reported once"
        );
    });
    found
}

fn common(a: &[Block], b: &[Block]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn equal_prefixes_give_equal_blocks_and_nothing_else_does() {
    let long = "x".repeat(1000);
    let base = text(&[
        &long,
        "|",
        "tail of the first turn, long enough to be a block of its own, yes",
    ]);
    assert_eq!(base.len(), 5);
    for (other, blocks) in [
        (text(&["y", "|", &long]), 0),
        (
            text(&[
                &long,
                "|",
                "another tail that is long enough to be a block as well, of course",
            ]),
            4,
        ),
        // Split differently: the same message.
        (
            text(&[
                "xxxx",
                &long[4..],
                "|",
                "tail of the first turn, long enough to be a block of its own, yes",
            ]),
            5,
        ),
        // The next turn of the conversation.
        (
            text(&[
                &long,
                "|",
                "tail of the first turn, long enough to be a block of its own, yes",
                "|",
                &long,
            ]),
            5,
        ),
        // The same text with the boundary elsewhere.
        (
            text(&[
                &long,
                "tail of the first turn, long enough to be a block of its own, yes",
                "|",
            ]),
            3,
        ),
    ] {
        assert_eq!(common(&base, &other), blocks);
    }
}

#[test]
fn chains_differ_by_model_adapter_and_cache_domain() {
    let seeds = [
        ("m", None, "d"),
        ("n", None, "d"),
        ("m", Some("a"), "d"),
        ("m", Some(""), "d"),
        ("m", None, "e"),
    ];
    let mut firsts: Vec<u64> = seeds
        .iter()
        .map(|(model, adapter, domain)| {
            let mut hasher = BlockHasher::new(
                Seed::new(model, *adapter, domain),
                Chunking::Tokens { size: 2 },
            );
            hasher.tokens(&[1, 2, 3]);
            let blocks = hasher.finish();
            assert_eq!(blocks.len(), 1, "the partial block is dropped");
            blocks[0].hash
        })
        .collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), seeds.len());
}

#[test]
fn tiny_messages_do_not_each_become_a_block() {
    let turns: Vec<&str> = (0..2000).flat_map(|_| ["hi", "|"]).collect();
    let blocks = text(&turns);
    assert!(
        blocks.len() <= 2000 * 2 / MIN_TEXT_BLOCK_BYTES + 1,
        "{} blocks",
        blocks.len()
    );
}
const MIN_TEXT_BLOCK_BYTES: usize = 64;

#[test]
fn every_one_of_forty_holders_of_a_hot_prefix_is_known() {
    let mut index = Residency::new(LARGE, 7);
    let system: Vec<u32> = (0..32).collect();
    let holders: Vec<Holder> = (0..40).map(|_| index.add_holder(10_000)).collect();
    for (at, holder) in holders.iter().enumerate() {
        let mut prompt = system.clone();
        prompt.push(1000 + at as u32);
        index.insert(*holder, &tokens(&prompt));
    }
    let mut prompt = system;
    prompt.push(1007);
    let found = matches(&index, &tokens(&prompt));
    assert_eq!(found.len(), 40);
    assert_eq!(found.values().filter(|depth| **depth == 32).count(), 39);
    assert_eq!(found[&holders[7]], 33);
}

#[test]
fn capacity_counts_tokens_and_tails_go_before_heads() {
    let mut index = Residency::new(LARGE, 7);
    let holder = index.add_holder(8);
    let (old, new) = (tokens(&[1, 2, 3, 4, 5, 6]), tokens(&[9, 8, 7, 6]));
    index.insert(holder, &old);
    index.insert(holder, &new);
    assert_eq!(index.resident_tokens(holder), 8);
    assert_eq!(matches(&index, &old)[&holder], 4);
    assert_eq!(matches(&index, &new)[&holder], 4);
    index.set_capacity(holder, 5);
    assert_eq!(matches(&index, &old)[&holder], 1);
    let too_long = tokens(&[4; 12]);
    index.insert(holder, &too_long);
    assert_eq!(matches(&index, &too_long)[&holder], 5);
}

#[test]
fn blocks_of_any_size_count_their_own_tokens() {
    let mut index = Residency::new(LARGE, 7);
    let holder = index.add_holder(100);
    for (first, size) in [(1, 16), (2, 64)] {
        let mut hasher = BlockHasher::new(Seed::new("m", None, "d"), Chunking::Tokens { size });
        hasher.tokens(&vec![first; 64]);
        index.insert(holder, &hasher.finish());
    }
    // 64 + 64 tokens do not fit into 100; three of the four small blocks had to go.
    assert_eq!((index.resident_tokens(holder), index.pairs()), (96, 3));
}

#[test]
fn a_removed_holder_leaves_no_trace_for_its_successor() {
    let mut index = Residency::new(LARGE, 7);
    let holder = index.add_holder(100_000);
    let prompts: Vec<Vec<Block>> = (0..100)
        .map(|at| tokens(&(0..100).map(|t| at * 1000 + t).collect::<Vec<_>>()))
        .collect();
    for prompt in &prompts {
        index.insert(holder, prompt);
    }
    index.remove_holder(holder);
    let successor = index.add_holder(100_000);
    assert_ne!(
        successor, holder,
        "blocks of the old one are still being taken out"
    );
    assert!(!matches(&index, &prompts[0]).contains_key(&successor));
    for _ in 0..200 {
        index.insert(successor, &prompts[0]);
    }
    assert_eq!(index.pairs(), 100);
    assert_eq!(index.add_holder(1), holder);
}

#[test]
fn memory_stays_under_its_cap() {
    let cap = 1 << 20;
    let mut index = Residency::new(cap, 7);
    let holders: Vec<Holder> = (0..50).map(|_| index.add_holder(u64::MAX)).collect();
    for round in 0..4_000u32 {
        let prompt: Vec<u32> = (0..40).map(|at| round * 40 + at).collect();
        index.insert(holders[(round * 7 % 50) as usize], &tokens(&prompt));
        assert!(
            index.bytes() <= cap,
            "{} bytes after {round} prompts",
            index.bytes()
        );
    }
    assert!(index.pairs() > 10_000, "{} pairs", index.pairs());
}

/// Per holder the hashes in order of use, oldest first.
#[derive(Default)]
struct Reference {
    caches: BTreeMap<Holder, (u64, Vec<(u64, u64)>)>,
}

impl Reference {
    fn insert(&mut self, holder: Holder, blocks: &[Block]) {
        let (capacity, order) = self.caches.get_mut(&holder).expect("known");
        let fits = blocks
            .iter()
            .take_while(|block| u64::from(block.end_tokens) <= *capacity)
            .count();
        for at in (0..fits).rev() {
            let tokens = blocks[at].end_tokens
                - if at == 0 {
                    0
                } else {
                    blocks[at - 1].end_tokens
                };
            order.retain(|(hash, _)| *hash != blocks[at].hash);
            order.push((blocks[at].hash, u64::from(tokens)));
        }
        self.shrink(holder);
    }

    fn shrink(&mut self, holder: Holder) {
        let (capacity, order) = self.caches.get_mut(&holder).expect("known");
        while order.iter().map(|(_, tokens)| tokens).sum::<u64>() > *capacity {
            order.remove(0);
        }
    }

    fn matches(&self, blocks: &[Block]) -> BTreeMap<Holder, usize> {
        let depth = |order: &Vec<(u64, u64)>| {
            blocks
                .iter()
                .take_while(|block| order.iter().any(|(hash, _)| *hash == block.hash))
                .count()
        };
        self.caches
            .iter()
            .map(|(holder, (_, order))| (*holder, depth(order)))
            .filter(|(_, depth)| *depth > 0)
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, Vec<u32>),
    Capacity(usize, u64),
    Restart(usize),
}

fn prompt() -> impl Strategy<Value = Vec<u32>> {
    // Few symbols: prompts share prefixes of every length.
    prop::collection::vec(0..3u32, 1..24)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..9usize, prompt()).prop_map(|(at, ids)| Step::Insert(at, ids)),
        1 => (0..9usize, 0..60u64).prop_map(|(at, capacity)| Step::Capacity(at, capacity)),
        1 => (0..9usize).prop_map(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_equals_a_naive_scan(steps in prop::collection::vec(step(), 1..120), probes in prop::collection::vec(prompt(), 12)) {
        let mut index = Residency::new(LARGE, 7);
        let mut reference = Reference::default();
        let mut holders: Vec<Holder> = (0..9).map(|_| index.add_holder(40)).collect();
        for holder in &holders {
            reference.caches.insert(*holder, (40, Vec::new()));
        }
        for (round, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(at, ids) => {
                    index.insert(holders[at], &tokens(&ids));
                    reference.insert(holders[at], &tokens(&ids));
                }
                Step::Capacity(at, capacity) => {
                    index.set_capacity(holders[at], capacity);
                    reference.caches.get_mut(&holders[at]).expect("known").0 = capacity;
                    reference.shrink(holders[at]);
                }
                Step::Restart(at) => {
                    index.remove_holder(holders[at]);
                    reference.caches.remove(&holders[at]);
                    holders[at] = index.add_holder(40);
                    reference.caches.insert(holders[at], (40, Vec::new()));
                }
            }
            let probe = tokens(&probes[round % probes.len()]);
            let mut found = matches(&index, &probe);
            found.retain(|holder, _| reference.caches.contains_key(holder));
            prop_assert_eq!(found, reference.matches(&probe));
        }
        for (holder, (_, order)) in &reference.caches {
            prop_assert_eq!(index.resident_tokens(*holder), order.iter().map(|(_, tokens)| tokens).sum::<u64>());
        }
        for holder in holders {
            index.remove_holder(holder);
        }
        let last = index.add_holder(1);
        while index.pairs() > 0 {
            index.insert(last, &[]);
        }
        prop_assert_eq!(index.sets.bytes() > 0, true);
    }
}
