//! What is kept of endpoints between decisions is what they are: to announce them again before every request, which has
//! them looked at anew, changes no record.

use proptest::prelude::*;

use super::instant::{end, peer_load};
use super::*;

const ENGINES: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Ask { family: u32, length: u32 },
    Observed { id: u32, load: u32 },
    ScrapeFailed(u32),
    Peer { peer: u64, id: u32, load: u32 },
    FirstToken(usize),
    Progress(usize, u64),
    End(usize, u8),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0..ENGINES;
    let at = || 0..1000usize;
    prop_oneof![
        8 => (0..6u32, 1..6000u32).prop_map(|(family, length)| Step::Ask { family, length }),
        3 => (id(), 0..9u32).prop_map(|(id, load)| Step::Observed { id, load }),
        1 => id().prop_map(Step::ScrapeFailed),
        3 => (0..3u64, id(), 0..9u32).prop_map(|(peer, id, load)| Step::Peer { peer, id, load }),
        5 => at().prop_map(Step::FirstToken),
        4 => (at(), 0..500u64).prop_map(|(at, tokens)| Step::Progress(at, tokens)),
        5 => (at(), 0..5u8).prop_map(|(at, end)| Step::End(at, end)),
        // As long as tokens take, as vectors and lessons live, and as metrics count.
        6 => prop_oneof![0..60u64, 100..600u64, 1_000..12_000u64].prop_map(Step::Pass),
    ]
}

fn announce(id: u32) -> Input {
    Input::EndpointUp(EndpointSpec {
        class: named(&format!("class-{}", id % 2)),
        ..EndpointSpec::new(EndpointId(id), &format!("engine-{id}"))
    })
}

/// What was decided, whether or not endpoints are announced again before every request. Turns are taken, so that no number
/// decides who is next.
fn decisions(steps: &[Step], again: &[u32]) -> Vec<(RequestKey, EndpointId, Decision)> {
    let mut bench = Bench::new(PoolConfig {
        policy: Policy::RoundRobin,
        ..with_room(8)
    });
    (0..ENGINES).for_each(|id| bench.feed(announce(id)));
    let mut in_flight = Vec::new();
    let mut made = Vec::new();
    for step in steps {
        let booking = |at: usize| in_flight.get(at % in_flight.len().max(1)).copied();
        match *step {
            Step::Ask { family, length } => {
                for id in again {
                    bench.pool.handle(bench.now, announce(*id));
                }
                bench.ask(&tokens(family, length));
            }
            Step::Observed { id, load } => bench.feed(Input::Observed {
                endpoint: EndpointId(id),
                observation: Observation {
                    waiting: Some(load / 2),
                    running: Some(load),
                    kv_use: Some(f64::from(load) / 10.0),
                    ..idle_metrics()
                },
            }),
            Step::ScrapeFailed(id) => bench.feed(Input::ScrapeFailed {
                endpoint: EndpointId(id),
            }),
            Step::Peer { peer, id, load } => bench.feed(peer_load(peer, &[id], load)),
            Step::FirstToken(at) => {
                if let Some(booking) = booking(at) {
                    bench.feed(Input::FirstToken(booking));
                }
            }
            Step::Progress(at, output_tokens) => {
                if let Some(booking) = booking(at) {
                    bench.feed(Input::Progress {
                        booking,
                        output_tokens,
                    });
                }
            }
            Step::End(at, how) => {
                if let Some(booking) = booking(at) {
                    in_flight.retain(|other| *other != booking);
                    bench.end(booking, end(how));
                }
            }
            Step::Pass(ms) => bench.pass(Duration::from_millis(ms)),
        }
        for (key, booking, endpoint, decision) in bench.dispatched.drain(..) {
            in_flight.push(booking);
            made.push((key, endpoint, decision));
        }
    }
    made
}

/// Everything of a record that was measured at its endpoints, to the last bit.
fn measured(made: &[(RequestKey, EndpointId, Decision)]) -> Vec<String> {
    let of = |(key, endpoint, decision): &(RequestKey, EndpointId, Decision)| {
        let numbers: Vec<_> = decision
            .candidates
            .iter()
            .map(|seen| {
                let load = (seen.in_flight, seen.context_tokens, seen.kv_use);
                let seconds = (seen.queue_s, seen.prefill_s, seen.others_s, seen.decode_s);
                (
                    &seen.endpoint,
                    seen.cached_tokens,
                    load,
                    seconds,
                    seen.handicap_s,
                )
            })
            .collect();
        format!("{key:?} {endpoint:?} {numbers:?}")
    };
    made.iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn endpoints_announced_again_are_as_they_were(steps in prop::collection::vec(step(), 1..100)) {
        let (kept, anew) = (decisions(&steps, &[]), decisions(&steps, &[2, 0, 1]));
        let (kept, anew) = (measured(&kept), measured(&anew));
        let mut pairs = kept.iter().zip(&anew);
        prop_assert_eq!(pairs.find(|(kept, anew)| kept != anew), None);
        prop_assert_eq!(kept.len(), anew.len());
    }
}
