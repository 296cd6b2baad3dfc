//! Events that have nothing to do with each other, at one instant, in any order.

use proptest::prelude::*;

use super::instant::{end, observed, peer_load};
use super::*;

/// What happens to one endpoint at the instant.
#[derive(Clone, Debug)]
enum Role {
    Observed(u32),
    ScrapeFails,
    /// Its only stream has so many tokens more.
    Progress(u64),
    /// Two streams have a few more each.
    TwoProgress(u64, u64),
    Finishes,
    Drains,
    Leaves,
    Comes,
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        (0..9u32).prop_map(Role::Observed),
        Just(Role::ScrapeFails),
        (1..60u64).prop_map(Role::Progress),
        (1..8u64, 1..8u64).prop_map(|(one, other)| Role::TwoProgress(one, other)),
        Just(Role::Finishes),
        Just(Role::Drains),
        Just(Role::Leaves),
        Just(Role::Comes),
    ]
}

/// An endpoint of a class of its own, so that what one teaches concerns no other.
fn spec(id: u32) -> EndpointSpec {
    EndpointSpec {
        class: named(&format!("class-{id}")),
        models: vec!["m".into(), format!("only-{id}")],
        ..EndpointSpec::new(EndpointId(id), &format!("engine-{id}"))
    }
}

/// Brings an endpoint to where its role can happen, and says what that is.
fn prepare(bench: &mut Bench, id: u32, role: &Role) -> Vec<Input> {
    if matches!(role, Role::Comes) {
        return vec![Input::EndpointUp(spec(id))];
    }
    bench.feed(Input::EndpointUp(spec(id)));
    let mut stream = |family: u32| {
        bench.ask_with(&tokens(family, 100), |request| {
            request.model = named(&format!("only-{id}"));
        });
        let booking = bench.last().1;
        bench.pass(Duration::from_millis(40));
        bench.feed(Input::FirstToken(booking));
        booking
    };
    let streams = [stream(100 + 2 * id), stream(101 + 2 * id)];
    let more = |booking, output_tokens| Input::Progress {
        booking,
        output_tokens,
    };
    let endpoint = EndpointId(id);
    match *role {
        Role::Observed(load) => vec![observed(id, load)],
        Role::ScrapeFails => vec![Input::ScrapeFailed { endpoint }],
        Role::Progress(tokens) => {
            bench.complete(streams[0]);
            vec![more(streams[1], tokens)]
        }
        Role::TwoProgress(one, other) => vec![more(streams[0], one), more(streams[1], other)],
        Role::Finishes => vec![Input::Finished {
            booking: streams[0],
            end: end(0),
        }],
        Role::Drains => vec![Input::Draining(endpoint)],
        Role::Leaves => vec![Input::EndpointDown(endpoint)],
        Role::Comes => Vec::new(),
    }
}

/// All that a pool does and shows when the same events come in the order of `lots`; arrivals keep theirs.
fn told(policy: usize, roles: &[Role], prompts: &[(u32, u32)], lots: &[u64]) -> String {
    let mut bench = Bench::new(PoolConfig {
        policy: Policy::ALL[policy],
        ..PoolConfig::default()
    });
    let mut events = Vec::new();
    let mut shared = Vec::new();
    for (id, role) in (0..).zip(roles) {
        events.extend(prepare(&mut bench, id, role).into_iter().map(Some));
        // What others run there would be part of a lesson.
        if !matches!(role, Role::Comes | Role::Leaves | Role::Progress(_)) {
            shared.push(id);
        }
    }
    events.extend([
        Some(peer_load(1, &shared, 3)),
        Some(peer_load(2, &shared, 5)),
    ]);
    events.extend(prompts.iter().map(|_| None));
    bench.pass(Duration::from_millis(300));
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|at| lots.get(*at).copied());
    let mut arrivals = prompts.iter();
    for at in order {
        let input = events[at].take().or_else(|| {
            let (family, length) = arrivals.next()?;
            let key = RequestKey(bench.next_key);
            bench.next_key += 1;
            Some(Input::Arrive(Box::new(Request {
                targets: Targets {
                    ttft: Some(seconds(20.0)),
                    tpot: None,
                },
                output_bound: 5,
                ..request(key, &tokens(*family, *length))
            })))
        });
        bench.pool.handle(bench.now, input.expect("an event each"));
    }
    bench.collect();
    let first = shown(&bench);
    bench.pass(seconds(1.0));
    for (family, length) in prompts {
        bench.ask(&tokens(*family, *length));
    }
    bench.pass(seconds(1.0));
    let Bench {
        dispatched,
        refused,
        abandoned,
        ..
    } = &bench;
    let last = shown(&bench);
    format!("{dispatched:#?} {refused:#?} {abandoned:?} {first:#?} {last:#?}")
}

/// All but the memory of the index, which keeps the places of caches that are gone.
fn shown(bench: &Bench) -> PoolSnapshot {
    PoolSnapshot {
        index_bytes: 0,
        ..bench.pool.snapshot(bench.now)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_that_have_nothing_to_do_with_each_other_may_come_in_any_order(
        roles in prop::collection::vec(role(), 1..6),
        prompts in prop::collection::vec((0..4u32, 1..3000u32), 1..5),
        lots in prop::collection::vec(any::<u64>(), 40),
        policy in 0..Policy::ALL.len(),
    ) {
        let (drawn, told) = (told(policy, &roles, &prompts, &lots), told(policy, &roles, &prompts, &[]));
        let mut lines = drawn.lines().zip(told.lines());
        prop_assert_eq!(lines.find(|(drawn, told)| drawn != told), None);
        prop_assert_eq!(drawn.len(), told.len());
    }
}
