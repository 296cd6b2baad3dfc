//! What others say of their load: the whole of it, or only what changed.

use proptest::prelude::*;

use super::*;
use crate::{EndpointLoad, Extent, PeerId};

/// What is said counts for so long.
const LIFE: Duration = Duration::from_millis(500);
const ENDPOINTS: u32 = 3;

fn load(endpoint: u32, prefilling: u32) -> EndpointLoad {
    EndpointLoad {
        endpoint: named(&format!("engine-{endpoint}")),
        prefilling,
        pending_tokens: 100 * u64::from(prefilling),
        pending_double_area: 0,
        pending_context: 0,
        decoding: 0,
        decoding_context: 0,
        slack: [0; 8],
    }
}

fn word(peer: u64, extent: Extent, loads: &[(u32, u32)]) -> Input {
    let endpoints = loads
        .iter()
        .map(|(endpoint, count)| load(*endpoint, *count));
    Input::PeerLoad {
        peer: PeerId(peer),
        vector: LoadVector {
            extent,
            endpoints: endpoints.collect(),
            ..LoadVector::default()
        },
    }
}

fn seen(bench: &Bench) -> Vec<u32> {
    let snapshot = bench.pool.snapshot(bench.now);
    let endpoints = snapshot.endpoints.iter();
    endpoints.map(|endpoint| endpoint.effective_load).collect()
}

#[test]
fn news_leaves_alone_what_it_does_not_name_and_the_next_whole_heals_what_was_lost() {
    let mut bench = Bench::with_endpoints(ENDPOINTS, PoolConfig::default());
    bench.feed(word(1, Extent::Whole, &[(0, 4), (1, 2)]));
    bench.feed(word(2, Extent::Whole, &[(0, 1)]));
    assert_eq!(seen(&bench), [5, 2, 0]);
    bench.feed(word(1, Extent::Changed, &[(1, 7), (2, 3)]));
    assert_eq!(seen(&bench), [5, 7, 3]);
    bench.feed(word(1, Extent::Changed, &[(0, 0)]));
    assert_eq!(seen(&bench), [1, 7, 3], "its own load, and nobody else's");
    // That the prefills of endpoint 1 have ended was lost.
    bench.feed(word(1, Extent::Whole, &[(2, 3)]));
    assert_eq!(seen(&bench), [1, 0, 3]);
    // Whoever was never heard may begin with news.
    bench.feed(word(3, Extent::Changed, &[(1, 1)]));
    assert_eq!(seen(&bench), [1, 1, 3]);
    bench.pass(Duration::from_millis(499));
    bench.feed(word(1, Extent::Changed, &[]));
    assert_eq!(seen(&bench), [1, 1, 3]);
    bench.pass(Duration::from_millis(1));
    assert_eq!(
        seen(&bench),
        [0; 3],
        "news does not prolong what it does not name"
    );
}

#[test]
fn only_endpoints_that_are_named_are_measured_anew() {
    let mut bench = Bench::with_endpoints(100, PoolConfig::default());
    let all: Vec<_> = (0..100).map(|endpoint| (endpoint, 1)).collect();
    bench.feed(word(1, Extent::Whole, &all));
    bench.feed(word(2, Extent::Whole, &all));
    let mut changed = |input: Input| {
        let endpoints = &mut bench.pool.endpoints;
        while endpoints.next_changed().is_some() {}
        bench.pool.handle(bench.now, input);
        let mut changed: Vec<_> =
            std::iter::from_fn(|| bench.pool.endpoints.next_changed()).collect();
        changed.sort_unstable();
        changed
    };
    assert_eq!(changed(word(1, Extent::Changed, &[(7, 2), (3, 0)])), [3, 7]);
    assert_eq!(changed(word(2, Extent::Changed, &[])), [0; 0]);
    assert_eq!(changed(word(3, Extent::Whole, &[(50, 1)])), [50]);
}

#[test]
fn who_hears_of_a_free_endpoint_looks_soon_but_not_when_all_others_do() {
    let mut config = PoolConfig::default();
    config.engine.room = 1;
    let mut bench = Bench::with_endpoints(1, config);
    bench.ask(&tokens(1, 500));
    bench.ask(&tokens(2, 500));
    let mut waits = Vec::new();
    for _ in 0..20 {
        bench.feed(word(1, Extent::Changed, &[(0, 1)]));
        let next = bench.pool.poll_timeout().expect("somebody waits");
        waits.push(next.since(bench.now));
        bench.pass(next.since(bench.now));
    }
    let [soonest, latest] = [waits.iter().min(), waits.iter().max()].map(|wait| *wait.expect("20"));
    assert!(soonest >= Duration::from_millis(5), "{soonest:?}");
    assert!(latest <= Duration::from_millis(25), "{latest:?}");
    assert!(latest >= soonest + Duration::from_millis(10), "{waits:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_said_in_whatever_order_the_latest_word_on_each_endpoint_counts(
        words in prop::collection::vec(
            (0..3u64, any::<bool>(), prop::collection::vec((0..ENDPOINTS + 1, 0..5u32), 0..4), 0..300u64),
            1..40,
        ),
    ) {
        let mut bench = Bench::with_endpoints(ENDPOINTS, PoolConfig::default());
        let mut model: BTreeMap<(u64, u32), (Timestamp, u32)> = BTreeMap::new();
        for (peer, is_whole, loads, pause) in words {
            let extent = if is_whole { Extent::Whole } else { Extent::Changed };
            if is_whole {
                model.retain(|(other, _), _| *other != peer);
            }
            for (endpoint, count) in &loads {
                model.insert((peer, *endpoint), (bench.now, *count));
            }
            bench.feed(word(peer, extent, &loads));
            for passed in [0, pause] {
                bench.pass(Duration::from_millis(passed));
                let expected = (0..ENDPOINTS).map(|endpoint| {
                    let of = model.iter().filter(|((_, other), _)| *other == endpoint);
                    let fresh = of.filter(|(_, (at, _))| bench.now.since(*at) < LIFE);
                    fresh.map(|(_, (_, count))| *count).sum::<u32>()
                });
                prop_assert_eq!(seen(&bench), expected.collect::<Vec<_>>());
            }
        }
    }
}
