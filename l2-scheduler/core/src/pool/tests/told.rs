//! What schedulers tell each other of prompts: only while somebody is there, and never more than a cache can hold.

use super::*;
use crate::peers::SentPrompt;
use crate::{LoadVector, PeerId};

/// Tokens an endpoint's cache holds.
const CAPACITY: u64 = 50_000;

fn bench() -> Bench {
    let mut config = PoolConfig::default();
    config.residency.default_capacity_tokens = CAPACITY;
    config.residency.max_bytes = 1 << 20;
    config.peers.every = Some(seconds(0.1));
    Bench::with_endpoints(2, config)
}

fn tell(bench: &mut Bench, endpoint: &str, blocks: Vec<(u64, u32)>) {
    let endpoint = named(endpoint);
    let vector = LoadVector {
        sent: vec![SentPrompt { endpoint, blocks }],
        ..LoadVector::default()
    };
    let peer = PeerId(1);
    bench.feed(Input::PeerLoad { peer, vector });
}

/// Pairs in the index, and tokens in the cache of the first endpoint.
fn known(bench: &Bench) -> (usize, u64) {
    let snapshot = bench.pool.snapshot(bench.now);
    (snapshot.index_pairs, snapshot.endpoints[0].resident_tokens)
}

#[test]
fn crafted_prompts_of_others_take_no_more_than_honest_ones() {
    let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bench = bench();
    let nothing = known(&bench);
    for (what, blocks) in [
        ("no block adds a token", vec![(1, 0), (2, 0), (3, 9)]),
        ("an end before all", vec![(1, u32::MAX)]),
    ] {
        tell(&mut bench, "engine-0", blocks);
        assert_eq!(known(&bench), nothing, "{what}");
    }
    tell(
        &mut bench,
        "engine-0",
        vec![(1, 16), (2, 32), (3, 32), (4, 48)],
    );
    assert_eq!(known(&bench), (2, 32), "up to where it stands still");
    tell(
        &mut bench,
        "engine-0",
        vec![(5, 16), (5, 32), (6, 48), (7, 40)],
    );
    assert_eq!(known(&bench), (4, 64), "a block twice is there once");
    tell(&mut bench, "nowhere", vec![(8, 16)]);
    assert_eq!(known(&bench), (4, 64));
    for round in 0..20 {
        let blocks = (1..20_000).map(|at| (spread(round << 32 | u64::from(at)), at));
        tell(&mut bench, "engine-0", blocks.collect());
        let snapshot = bench.pool.snapshot(bench.now);
        assert!(snapshot.index_pairs <= 8192 * (round as usize + 1) + 4);
        assert!(snapshot.endpoints[0].resident_tokens <= CAPACITY);
        assert!(snapshot.index_bytes <= 1 << 20);
    }
    bench.feed(Input::EndpointDown(EndpointId(0)));
    tell(&mut bench, "engine-0", vec![(9, 16)]);
    bench.ask(&tokens(1, 500));
    assert_eq!(bench.last().2, EndpointId(1));
}

#[test]
fn nobody_is_told_once_all_others_are_gone() {
    let mut bench = bench();
    let told = |bench: &mut Bench, family: u32| {
        bench.ask(&tokens(family, 160));
        bench.complete(bench.last().1);
        let peers = bench.pool.snapshot(bench.now).peers;
        (peers, bench.pool.whole_load(bench.now).sent.len())
    };
    assert_eq!(told(&mut bench, 1), (0, 0), "nobody was ever heard");
    tell(&mut bench, "engine-0", Vec::new());
    assert_eq!(told(&mut bench, 2), (1, 1));
    bench.pass(seconds(9.9));
    assert_eq!(told(&mut bench, 3), (1, 1));
    bench.pass(seconds(0.1));
    assert_eq!(told(&mut bench, 4), (0, 0));
}

#[test]
fn what_waits_to_be_stored_is_not_found_on_the_engine_that_comes_after() {
    let mut bench = bench();
    // Told without a further event: all but the first still wait.
    let blocks = |family: u32| {
        let seed = Seed::new("m", None, "d");
        let mut hasher = BlockHasher::new(seed, Chunking::Tokens { size: 16 });
        hasher.tokens(&tokens(family, 24_000));
        hasher.finish()
    };
    let prompt = |family: u32| SentPrompt {
        endpoint: named("engine-0"),
        blocks: blocks(family)
            .iter()
            .map(|block| (block.hash, block.end_tokens))
            .collect(),
    };
    let vector = LoadVector {
        sent: (0..4).map(prompt).collect(),
        ..LoadVector::default()
    };
    let peer = PeerId(1);
    let now = bench.now;
    bench.pool.handle(now, Input::PeerLoad { peer, vector });
    bench.pool.handle(now, Input::Draining(EndpointId(1)));
    assert_eq!(known(&bench).0, 1_500, "one with one event");
    let mut spec = EndpointSpec::new(EndpointId(0), "engine-0");
    spec.generation = 1;
    bench.pool.handle(now, Input::EndpointUp(spec));
    for _ in 0..10 {
        bench.pool.handle_timeout(now);
    }
    bench.up(2, |_| ());
    for family in 0..4 {
        bench.ask_with(&[], |request| {
            request.prompt_tokens = 24_000;
            request.blocks = blocks(family);
        });
        let held = bench.last().3.candidates.iter();
        assert!(
            held.map(|candidate| candidate.cached_tokens)
                .all(|held| held == 0)
        );
        bench.complete(bench.last().1);
    }
}
