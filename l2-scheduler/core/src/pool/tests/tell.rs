//! When other schedulers are told, and of what.

use proptest::prelude::*;

use super::*;
use crate::{Extent, PeerId};

/// Vectors are never closer than this.
const PAUSE: Duration = Duration::from_millis(20);
const EVERY: Duration = Duration::from_millis(100);
/// Tokens that take an engine of these tests a second.
const RATE: u32 = 10_000;

fn config() -> PoolConfig {
    let mut config = PoolConfig::default();
    config.peers.every = Some(EVERY);
    config
}

fn bench(endpoints: u32) -> Bench {
    Bench::with_endpoints(endpoints, config())
}

/// Another scheduler is there.
fn meet(bench: &mut Bench) {
    let (peer, vector) = (PeerId(1), LoadVector::default());
    bench.feed(Input::PeerLoad { peer, vector });
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Right behind a whole vector, with nothing left to tell.
fn just_told(endpoints: u32) -> Bench {
    let mut bench = bench(endpoints);
    meet(&mut bench);
    bench.pass(EVERY);
    let (at, last) = bench.told.last().expect("one in every period").clone();
    assert_eq!(last.extent, Extent::Whole);
    bench.pass((at + EVERY).since(bench.now) + millis(1));
    bench.told.clear();
    bench
}

fn times(bench: &Bench) -> Vec<Timestamp> {
    bench.told.iter().map(|(at, _)| *at).collect()
}

#[test]
fn nobody_is_told_anything_unless_the_configuration_says_so() {
    let mut bench = Bench::with_endpoints(2, PoolConfig::default());
    meet(&mut bench);
    bench.ask(&tokens(1, RATE));
    bench.pass(seconds(1.0));
    assert_eq!(bench.told, []);
}

#[test]
fn a_scheduler_without_company_speaks_once_in_a_period_whatever_it_does() {
    let mut bench = bench(4);
    for family in 0..50 {
        bench.ask(&tokens(family, RATE));
        bench.pass(millis(20));
    }
    assert!(
        (10..=11).contains(&bench.told.len()),
        "{}",
        bench.told.len()
    );
    for (_, vector) in &bench.told {
        assert_eq!(vector.extent, Extent::Whole);
        assert_eq!(vector.sent, [], "nobody follows its prompts");
    }
    let all: Vec<_> = times(&bench);
    assert!(all.windows(2).all(|pair| pair[1].since(pair[0]) == EVERY));
}

#[test]
fn a_long_prefill_is_told_at_once_and_its_end_too() {
    let mut bench = just_told(4);
    bench.pass(PAUSE);
    bench.ask(&tokens(1, RATE));
    let (_, booking, endpoint, _) = bench.last().clone();
    bench.pass(millis(0));
    let (at, vector) = bench.told.pop().expect("told at once");
    assert_eq!((at, vector.extent), (bench.now, Extent::Changed));
    let name = format!("engine-{}", endpoint.0);
    let of = |vector: &LoadVector| -> Vec<(String, u32, u64)> {
        let loads = vector.endpoints.iter();
        loads
            .map(|load| {
                (
                    load.endpoint.to_string(),
                    load.prefilling,
                    load.pending_tokens,
                )
            })
            .collect()
    };
    assert_eq!(
        of(&vector),
        [(name.clone(), 1, u64::from(RATE))],
        "no other"
    );
    assert_eq!(vector.sent.len(), 1);
    bench.pass(millis(1));
    bench.feed(Input::FirstToken(booking));
    bench.pass(millis(18));
    assert_eq!(bench.told, [], "too soon after the last");
    bench.pass(millis(1));
    let (_, vector) = bench.told.pop().expect("told after the pause");
    assert_eq!(of(&vector), [(name, 0, 0)]);
    assert_eq!(vector.sent, [], "told once");
    assert_eq!(vector.extent, Extent::Changed);
}

#[test]
fn what_is_too_small_to_matter_waits_until_it_adds_up() {
    // By tokens of each prompt: how many are sent before anybody is told.
    for (length, count) in [(31, 10), (100, 3), (310, 1), (3_000, 1)] {
        let mut bench = just_told(1);
        bench.pass(PAUSE);
        for sent in 1..=count {
            assert_eq!(bench.told, [], "{length}: {sent}");
            bench.ask(&tokens(sent, length));
            bench.pass(millis(0));
        }
        let (_, vector) = bench.told.pop().expect("it adds up");
        assert_eq!(vector.endpoints[0].prefilling, count, "{length}");
        bench.ask(&tokens(99, 31));
        bench.pass(millis(30));
        assert_eq!(bench.told, [], "{length}: what was told is not news");
    }
}

#[test]
fn a_prefill_that_is_over_before_it_was_told_is_no_news() {
    let mut bench = just_told(1);
    // Too small alone.
    for family in 0..20 {
        bench.ask(&tokens(family, 200));
        let booking = bench.last().1;
        bench.feed(Input::FirstToken(booking));
        bench.pass(millis(1));
    }
    assert_eq!(bench.told, []);
    bench.pass(millis(80));
    assert_eq!(bench.told.len(), 1, "with the whole");
    let (_, whole) = &bench.told[0];
    assert_eq!(
        (whole.extent, whole.endpoints[0].decoding),
        (Extent::Whole, 20)
    );
}

#[test]
fn news_of_endpoints_that_are_gone_is_left_out() {
    let mut bench = just_told(2);
    bench.ask(&tokens(1, RATE));
    let (_, booking, endpoint, _) = bench.last().clone();
    bench.complete(booking);
    bench.feed(Input::EndpointDown(endpoint));
    bench.pass(PAUSE);
    let (_, vector) = bench.told.pop().expect("a vector is due");
    assert_eq!(vector.endpoints, []);
}

/// The load others know, kept as a receiver keeps it.
fn hear(known: &mut BTreeMap<String, u64>, vector: &LoadVector) {
    if vector.extent == Extent::Whole {
        known.clear();
    }
    for load in &vector.endpoints {
        known.insert(load.endpoint.to_string(), load.pending_tokens);
    }
    known.retain(|_, tokens| *tokens > 0);
}

#[derive(Clone, Debug)]
enum Deed {
    Ask(u32),
    FirstToken(usize),
    End(usize),
    Pass(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => (1..5_000u32).prop_map(Deed::Ask),
        2 => (0..64usize).prop_map(Deed::FirstToken),
        2 => (0..64usize).prop_map(Deed::End),
        4 => (0..40u64).prop_map(Deed::Pass),
    ]
}

/// Seconds of prefill per token, on the quickest engine. (Paces only slow engines down.)
fn token_seconds(bench: &Bench) -> f64 {
    let classes = bench.pool.classes.iter();
    let tokens_s = classes.map(|class| class.model.work(1.0, 0.0).tokens_s);
    tokens_s.fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn vectors_keep_their_distance_and_a_whole_one_is_never_late_and_others_are_soon_right(
        deeds in prop::collection::vec(deed(), 1..120),
    ) {
        let mut bench = bench(3);
        let mut running = Vec::new();
        let mut family = 0;
        // What is told depends on the model of that time; in hindsight the quickest of all decides.
        let mut least_s = f64::INFINITY;
        for deed in deeds {
            least_s = least_s.min(token_seconds(&bench));
            // Somebody is always there.
            meet(&mut bench);
            match deed {
                Deed::Ask(length) => {
                    family += 1;
                    bench.ask(&tokens(family, length));
                }
                Deed::FirstToken(at) if !running.is_empty() => {
                    let booking: BookingId = running[at % running.len()];
                    bench.feed(Input::FirstToken(booking));
                }
                Deed::End(at) if !running.is_empty() => {
                    let booking = running.swap_remove(at % running.len());
                    bench.complete(booking);
                }
                Deed::Pass(time) => bench.pass(millis(time)),
                Deed::FirstToken(_) | Deed::End(_) => {}
            }
            running.extend(bench.dispatched.drain(..).map(|(_, booking, ..)| booking));
        }
        // Until nothing has moved for as long as it takes: a pause, and what a whole vector due within another one makes of it.
        loop {
            bench.pass(2 * PAUSE);
            if bench.dispatched.drain(..).count() == 0 {
                break;
            }
        }
        let all = times(&bench);
        prop_assert!(all.windows(2).all(|pair| pair[1].since(pair[0]) >= PAUSE));
        let wholes: Vec<_> = bench.told.iter().filter(|(_, vector)| vector.extent == Extent::Whole).collect();
        prop_assert!(wholes.windows(2).all(|pair| pair[1].0.since(pair[0].0) <= EVERY));
        let mut known = BTreeMap::new();
        for (_, vector) in &bench.told {
            hear(&mut known, vector);
        }
        for endpoint in bench.pool.endpoints.iter() {
            let pending = endpoint.load.pending_tokens();
            let told = known.get(&*endpoint.name).copied().unwrap_or(0);
            let least_s = least_s.min(token_seconds(&bench));
            let wrong_s = pending.abs_diff(told) as f64 * least_s;
            // With some to spare: the model may have been quicker for a moment.
            prop_assert!(wrong_s < 0.05, "{pending} {told}");
        }
    }
}
