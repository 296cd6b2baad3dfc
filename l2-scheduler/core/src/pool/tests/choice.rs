//! Where requests go, and what the record says of it.

use super::*;
use crate::decision::TieBreak;

#[test]
fn twenty_requests_at_once_on_a_cold_pool_spread() {
    for policy in Policy::ALL {
        let mut bench = Bench::with_endpoints(5, with_policy(policy));
        for request in 0..20 {
            bench.ask(&tokens(request, 2000));
        }
        let mut counts = [0; 5];
        for (_, _, endpoint, _) in &bench.dispatched {
            counts[endpoint.0 as usize] += 1;
        }
        let most = if policy == Policy::Random { 10 } else { 5 };
        assert!(
            counts.iter().all(|count| (1..=most).contains(count)),
            "{policy}: {counts:?}"
        );
    }
}

#[test]
fn one_system_prompt_does_not_gather_everybody() {
    let mut bench = Bench::with_endpoints(8, with_policy(Policy::PredictedCost));
    for request in 0..64 {
        let mut prompt = tokens(99, 1024);
        prompt.extend(tokens(request, 4096));
        bench.ask(&prompt);
    }
    let mut counts = [0u32; 8];
    for (_, _, endpoint, _) in &bench.dispatched {
        counts[endpoint.0 as usize] += 1;
    }
    assert!(
        counts.iter().all(|count| (5..=12).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_system_prompt_that_all_hold_does_not_decide_where_new_conversations_go() {
    let mut bench = Bench::with_endpoints(8, PoolConfig::default());
    let conversation = |family: u32| [tokens(99, 1024), tokens(family, 640)].concat();
    for family in 0..64 {
        bench.ask(&conversation(family));
    }
    for (_, booking, _, _) in std::mem::take(&mut bench.dispatched) {
        bench.feed(Input::FirstToken(booking));
        bench.complete(booking);
    }
    let mut counts = [0u32; 8];
    for family in 100..164 {
        bench.ask(&conversation(family));
        let (_, booking, endpoint, decision) = bench.last().clone();
        assert_eq!(decision.predicted.cached_tokens, 1024);
        counts[endpoint.0 as usize] += 1;
        bench.complete(booking);
    }
    assert!(
        counts.iter().all(|count| (2..=16).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_conversation_returns_to_the_engine_that_knows_it() {
    let mut bench = Bench::with_endpoints(8, PoolConfig::default());
    let mut home = Vec::new();
    for turn in 1..=5 {
        for session in 0..16u32 {
            bench.ask(&tokens(session, turn * 1000));
            let (_, booking, endpoint, decision) = bench.last().clone();
            if turn == 1 {
                home.push(endpoint);
            }
            assert_eq!(
                endpoint, home[session as usize],
                "turn {turn} of session {session}: {decision:?}"
            );
            bench.feed(Input::FirstToken(booking));
            bench.complete(booking);
            bench.pass(seconds(1.0));
        }
    }
}

#[test]
fn blocked_metrics_leave_traffic_on_own_accounting() {
    let mut bench = Bench::with_endpoints(3, with_policy(Policy::PredictedCost));
    for id in 0..3 {
        bench.feed(Input::Observed {
            endpoint: EndpointId(id),
            observation: idle_metrics(),
        });
    }
    assert_eq!(
        bench.pool.saturation(bench.now).cause,
        SaturationCause::Load
    );
    bench.pass(seconds(30.0));
    for request in 0..9 {
        bench.ask(&tokens(request, 2000));
    }
    assert_eq!((bench.dispatched.len(), bench.refused.len()), (9, 0));
    let snapshot = bench.pool.snapshot(bench.now);
    assert!(
        snapshot
            .endpoints
            .iter()
            .all(|endpoint| endpoint.bookings == 3)
    );
    assert_eq!(snapshot.saturation.cause, SaturationCause::NoData);
    for (_, booking, _, _) in std::mem::take(&mut bench.dispatched) {
        bench.feed(Input::FirstToken(booking));
    }
    assert!(bench.pool.saturation(bench.now).value < 0.1);
}

#[test]
fn an_endpoint_with_old_metrics_is_handicapped_not_removed() {
    let mut bench = Bench::with_endpoints(2, PoolConfig::default());
    bench.pass(seconds(20.0));
    bench.feed(Input::Observed {
        endpoint: EndpointId(1),
        observation: idle_metrics(),
    });
    bench.ask(&tokens(1, 100));
    assert_eq!(bench.last().2, EndpointId(1));
    assert_eq!(bench.last().3.eligible, 2);
    for request in 0..40 {
        bench.ask(&tokens(2 + request, 2000));
    }
    assert!(
        bench
            .dispatched
            .iter()
            .any(|(_, _, endpoint, _)| *endpoint == EndpointId(0))
    );
}

#[test]
fn the_second_of_two_simultaneous_picks_sees_the_first_and_scrapes_add_others() {
    let mut bench = Bench::with_endpoints(2, with_policy(Policy::LeastRequest));
    let busy = Observation {
        running: Some(3),
        ..idle_metrics()
    };
    bench.feed(Input::Observed {
        endpoint: EndpointId(0),
        observation: busy,
    });
    bench.feed(Input::Observed {
        endpoint: EndpointId(1),
        observation: idle_metrics(),
    });
    for request in 0..4 {
        bench.ask(&tokens(request, 100));
    }
    let to_first = bench
        .dispatched
        .iter()
        .filter(|(_, _, endpoint, _)| *endpoint == EndpointId(0))
        .count();
    // Three are others' on engine 0; engine 1 takes the first three of ours.
    assert!(to_first <= 1, "{to_first}");
    assert_eq!(
        bench.pool.snapshot(bench.now).endpoints[0].effective_load,
        3 + to_first as u32
    );
}

#[test]
fn a_decision_says_why() {
    let mut bench = Bench::with_endpoints(30, PoolConfig::default());
    bench.ask(&tokens(1, 4000));
    let first = bench.last().3.clone();
    assert_eq!(first.tie, Some(TieBreak::Rendezvous));
    assert_eq!((first.eligible, first.candidates.len()), (30, 16));
    let (booking, home) = (bench.last().1, bench.last().2);
    bench.feed(Input::FirstToken(booking));
    bench.complete(booking);
    bench.ask(&tokens(1, 4000));
    let (_, _, endpoint, second) = bench.last().clone();
    assert_eq!(endpoint, home);
    assert_eq!(second.tie, None);
    assert_eq!(second.candidates[0].endpoint, second.chosen);
    assert_eq!(
        second.runner_up.as_ref(),
        Some(&second.candidates[1].endpoint)
    );
    assert!(
        second.margin.is_some_and(|margin| margin > 0.1),
        "{:?}",
        second.margin
    );
    assert!(
        second.candidates[1..]
            .windows(2)
            .all(|pair| pair[0].score <= pair[1].score)
    );
    assert_eq!(
        (
            second.predicted.cached_tokens,
            second.predicted.uncached_tokens
        ),
        (3999, 1)
    );
    assert!(
        serde_json::to_string(&second).is_ok_and(|json| json.contains("\"policy\":\"planned\""))
    );
}

#[test]
fn a_slow_engine_gets_less_once_it_is_known_to_be_slow() {
    let mut bench = Bench::with_endpoints(3, PoolConfig::default());
    let mut late = [0u32; 3];
    for round in 0..400u32 {
        bench.ask(&tokens(round, 3000));
        let (_, booking, endpoint, _) = bench.last().clone();
        if round >= 200 {
            late[endpoint.0 as usize] += 1;
        }
        // Engine 2 takes four times as long.
        bench.pass(Duration::from_millis(if endpoint.0 == 2 {
            600
        } else {
            150
        }));
        bench.feed(Input::FirstToken(booking));
        bench.complete(booking);
    }
    assert!(late[2] <= 10, "{late:?}");
    assert!(late[0] > 50 && late[1] > 50, "{late:?}");
}

#[test]
fn a_scrape_that_shows_our_own_requests_adds_nothing() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    let effective = |bench: &Bench| bench.pool.snapshot(bench.now).endpoints[0].effective_load;
    let mut bookings = Vec::new();
    for family in 0..4 {
        bench.ask(&tokens(family, 100));
        bookings.push(bench.last().1);
    }
    bench.feed(Input::FirstToken(bookings[0]));
    bench.feed(Input::FirstToken(bookings[1]));
    for (running, waiting, expected) in [(2, 2, 4), (4, 0, 4), (0, 0, 4), (5, 1, 6), (2, 6, 8)] {
        let observation = Observation {
            running: Some(running),
            waiting: Some(waiting),
            ..idle_metrics()
        };
        bench.feed(Input::Observed {
            endpoint: EndpointId(0),
            observation,
        });
        assert_eq!(
            effective(&bench),
            expected,
            "{running} running, {waiting} waiting"
        );
    }
    bench.complete(bookings[0]);
    assert_eq!(effective(&bench), 7, "own completions count at once");
}
