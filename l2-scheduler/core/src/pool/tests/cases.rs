//! Named situations, each a story with its expected end.

use super::*;
use crate::decision::TieBreak;

fn cached(bench: &Bench) -> u32 {
    bench.last().3.predicted.cached_tokens
}

#[test]
fn requests_longer_than_any_reaper_still_count() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    bench.ask(&tokens(1, 500));
    let booking = bench.last().1;
    bench.feed(Input::FirstToken(booking));
    for minute in 1..=60 {
        bench.pass(seconds(60.0));
        bench.feed(Input::Progress {
            booking,
            output_tokens: minute * 100,
        });
    }
    let snapshot = bench.pool.snapshot(bench.now);
    assert_eq!((snapshot.bookings, snapshot.endpoints[0].bookings), (1, 1));
    assert_eq!(snapshot.endpoints[0].context_tokens, 500 + 6000);
    bench.complete(booking);
    assert!(bench.at_rest());
}

#[test]
fn a_flapping_endpoint_never_makes_a_counter_negative_and_loses_its_residency() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    let prompt = tokens(1, 1600);
    bench.ask(&prompt);
    let old = bench.last().1;
    bench.feed(Input::EndpointDown(EndpointId(0)));
    assert_eq!(
        bench.pool.snapshot(bench.now).endpoints[0].state,
        EndpointState::Gone
    );
    // Back as the same engine: the attempt counts on, the cache does not.
    bench.up(0, |_| ());
    assert_eq!(bench.pool.snapshot(bench.now).endpoints[0].bookings, 1);
    bench.ask(&prompt);
    assert_eq!(cached(&bench), 0);
    let same = bench.last().1;
    // Back as another engine: neither does.
    bench.up(0, |spec| spec.generation = 1);
    assert_eq!(bench.pool.snapshot(bench.now).endpoints[0].bookings, 0);
    bench.ask(&prompt);
    assert_eq!(cached(&bench), 0);
    let new = bench.last().1;
    for booking in [old, same] {
        bench.feed(Input::FirstToken(booking));
        bench.feed(Input::Progress {
            booking,
            output_tokens: 5,
        });
        bench.end(booking, AttemptEnd::Failed);
        assert_eq!(bench.pool.snapshot(bench.now).endpoints[0].bookings, 1);
    }
    bench.feed(Input::EndpointDown(EndpointId(0)));
    bench.end(new, AttemptEnd::ClientClosed);
    bench.end(new, AttemptEnd::ClientClosed);
    assert!(bench.at_rest());
    assert!(bench.pool.snapshot(bench.now).endpoints.is_empty());
    assert_eq!(bench.pool.poll_timeout(), None);
}

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
    let mut bench = Bench::with_endpoints(8, PoolConfig::default());
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
fn an_engine_that_restarts_under_its_name_has_no_phantom_hits() {
    let restarts = [
        Observation {
            start_time_s: Some(2000.0),
            ..idle_metrics()
        },
        Observation {
            monotone_counter: Some(3.0),
            ..idle_metrics()
        },
    ];
    for restart in restarts {
        let mut bench = Bench::with_endpoints(1, PoolConfig::default());
        let before = Observation {
            monotone_counter: Some(500.0),
            ..idle_metrics()
        };
        bench.feed(Input::Observed {
            endpoint: EndpointId(0),
            observation: before,
        });
        let prompt = tokens(1, 1600);
        bench.ask(&prompt);
        bench.ask(&prompt);
        assert_eq!(cached(&bench), 1599);
        bench.feed(Input::Observed {
            endpoint: EndpointId(0),
            observation: restart,
        });
        bench.ask(&prompt);
        assert_eq!(cached(&bench), 0);
    }
}

#[test]
fn hits_that_never_happen_empty_the_cache_we_imagined() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    let prompt = tokens(1, 1600);
    let mut predicted = Vec::new();
    for _ in 0..5 {
        bench.ask(&prompt);
        predicted.push(cached(&bench));
        let booking = bench.last().1;
        bench.end(
            booking,
            AttemptEnd::Completed {
                cached_tokens: Some(0),
                output_tokens: 1,
            },
        );
    }
    assert_eq!(predicted, [0, 1599, 1599, 1599, 0]);
}

#[test]
fn a_hot_prefix_held_by_forty_endpoints_is_known_at_all_forty() {
    let mut bench = Bench::with_endpoints(40, with_policy(Policy::RoundRobin));
    let prompt = tokens(1, 512);
    for _ in 0..41 {
        bench.ask(&prompt);
    }
    let decision = &bench.last().3;
    assert_eq!(decision.eligible, 40);
    assert!(
        decision
            .candidates
            .iter()
            .all(|candidate| candidate.cached_tokens == 511)
    );
    assert_eq!(bench.pool.snapshot(bench.now).index_pairs, 40 * 32);
}

#[test]
fn capacity_is_counted_in_tokens_whatever_the_block_size() {
    for (block_size, num_blocks) in [(16, 1000), (64, 250), (1, 16_000)] {
        let mut bench = Bench::with_endpoints(1, PoolConfig::default());
        let metrics = Observation {
            block_size: Some(block_size),
            num_blocks: Some(num_blocks),
            ..idle_metrics()
        };
        bench.feed(Input::Observed {
            endpoint: EndpointId(0),
            observation: metrics,
        });
        for family in 0..4 {
            bench.ask(&tokens(family, 8000));
        }
        assert_eq!(
            bench.pool.snapshot(bench.now).endpoints[0].resident_tokens,
            16_000
        );
    }
}

#[test]
fn tiny_blocks_and_many_prompts_stay_under_the_cap_of_the_index() {
    let cap = 1 << 20;
    let config = PoolConfig {
        residency: ResidencyConfig {
            max_bytes: cap,
            default_capacity_tokens: u64::MAX,
        },
        ..PoolConfig::default()
    };
    let mut bench = Bench::with_endpoints(4, config);
    for family in 0..2000 {
        bench.ask(&tokens(family, 640));
        let booking = bench.last().1;
        bench.complete(booking);
        assert!(bench.pool.snapshot(bench.now).index_bytes <= cap);
    }
}

#[test]
fn ten_thousand_clients_leave_and_every_gauge_returns_to_zero() {
    let mut bench = Bench::with_endpoints(4, with_room(8));
    let mut chance = Rng::new(27);
    for round in 0..10_000u32 {
        let key = bench.ask(&tokens(round % 50, 64 + round % 300));
        bench.pass(Duration::from_millis(chance.next() % 10));
        if chance.next().is_multiple_of(3) {
            bench.feed(Input::Cancel(key));
        }
        while bench.dispatched.len() > 16
            || (chance.next().is_multiple_of(2) && !bench.dispatched.is_empty())
        {
            let at = (chance.next() % bench.dispatched.len() as u64) as usize;
            let (_, booking, _, _) = bench.dispatched.swap_remove(at);
            if chance.next().is_multiple_of(2) {
                bench.feed(Input::FirstToken(booking));
                bench.feed(Input::Progress {
                    booking,
                    output_tokens: 7,
                });
            }
            bench.end(booking, AttemptEnd::ClientClosed);
        }
    }
    while let Some((_, booking, _, _)) = bench.dispatched.pop() {
        bench.end(booking, AttemptEnd::ClientClosed);
    }
    assert!(bench.at_rest());
    assert_eq!(bench.pool.poll_timeout(), None);
}

#[test]
fn a_stopped_worker_is_noticed_by_its_silence_and_gets_nothing_new() {
    for (policy, streaming) in [(Policy::PredictedCost, true), (Policy::RoundRobin, true)] {
        let mut bench = Bench::with_endpoints(4, with_policy(policy));
        let mut unanswered = 0;
        let mut sent_late = 0;
        let mut open: Vec<(BookingId, EndpointId, u64)> = Vec::new();
        // 40 requests a second, each 10 tokens 50 ms apart; engine 0 stops after two seconds but looks healthy.
        for tick in 0..240u64 {
            let stopped = tick >= 40;
            for _ in 0..2 {
                bench.ask_with(&tokens(tick as u32, 400), |request| {
                    request.streaming = streaming;
                });
                let (_, booking, endpoint, _) = bench.last().clone();
                open.push((booking, endpoint, 0));
                if stopped && endpoint == EndpointId(0) && tick > 40 + 100 {
                    sent_late += 1;
                }
            }
            bench.pass(Duration::from_millis(50));
            for id in 0..4 {
                bench.feed(Input::Observed {
                    endpoint: EndpointId(id),
                    observation: idle_metrics(),
                });
            }
            let abandoned: Vec<BookingId> = bench.abandoned.drain(..).collect();
            open.retain(|(booking, _, _)| !abandoned.contains(booking));
            for booking in abandoned {
                bench.end(booking, AttemptEnd::Failed);
            }
            open.retain_mut(|(booking, endpoint, tokens)| {
                if stopped && *endpoint == EndpointId(0) {
                    return true;
                }
                *tokens += 1;
                bench.feed(Input::Progress {
                    booking: *booking,
                    output_tokens: *tokens,
                });
                if *tokens == 10 {
                    bench.complete(*booking);
                }
                *tokens < 10
            });
        }
        assert_eq!(
            bench.pool.snapshot(bench.now).endpoints[0].state,
            EndpointState::Quarantined,
            "{policy}"
        );
        assert!(bench.probes.contains(&EndpointId(0)) && !bench.probes.contains(&EndpointId(1)));
        assert_eq!(
            sent_late, 0,
            "{policy}: sent to the stopped worker long after"
        );
        for (_, endpoint, tokens) in &open {
            unanswered += u32::from(*endpoint == EndpointId(0) && *tokens == 0);
        }
        assert_eq!(
            unanswered, 0,
            "{policy}: given up, so that the shell can send them elsewhere"
        );
        bench.feed(Input::Probed {
            endpoint: EndpointId(0),
            ok: true,
        });
        assert_eq!(
            bench.pool.snapshot(bench.now).endpoints[0].state,
            EndpointState::Ready
        );
    }
}

#[test]
fn an_answer_that_comes_whole_may_take_its_time() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    bench.ask_with(&tokens(1, 400), |request| {
        request.streaming = false;
        request.output_bound = 1000;
    });
    bench.pass(seconds(60.0));
    assert!(bench.abandoned.is_empty());
    bench.pass(seconds(600.0));
    assert_eq!(bench.abandoned.len(), 1);
}

#[test]
fn an_engine_whose_speed_is_only_guessed_gets_more_time() {
    for (answered, expected) in [(0, 0), (8, 1)] {
        let mut bench = Bench::with_endpoints(1, PoolConfig::default());
        for family in 0..answered {
            bench.ask(&tokens(family, 400));
            let booking = bench.last().1;
            bench.pass(seconds(0.1));
            bench.feed(Input::FirstToken(booking));
            bench.complete(booking);
        }
        bench.ask(&tokens(99, 400));
        bench.pass(seconds(3.0));
        assert_eq!(bench.abandoned.len(), expected, "after {answered} answers");
        bench.pass(seconds(20.0));
        assert_eq!(bench.abandoned.len(), 1);
    }
}

#[test]
fn one_stream_that_pauses_is_no_hang_but_two_are() {
    for (streams, expected) in [(1, EndpointState::Ready), (2, EndpointState::Quarantined)] {
        let mut bench = Bench::with_endpoints(1, PoolConfig::default());
        for family in 0..streams {
            bench.ask(&tokens(family, 400));
            let booking = bench.last().1;
            bench.feed(Input::FirstToken(booking));
        }
        bench.pass(seconds(60.0));
        assert_eq!(
            bench.pool.snapshot(bench.now).endpoints[0].state,
            expected,
            "{streams} streams"
        );
        assert!(
            bench.abandoned.is_empty(),
            "what has begun cannot be sent elsewhere"
        );
    }
}

#[test]
fn four_hundreds_never_count_against_an_endpoint() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    for request in 0..120 {
        bench.ask(&tokens(request, 100));
        let booking = bench.last().1;
        bench.end(booking, AttemptEnd::Rejected);
    }
    let before = bench.dispatched.len();
    for request in 0..50 {
        bench.ask(&tokens(request, 100));
        let booking = bench.last().1;
        bench.complete(booking);
    }
    assert_eq!(bench.dispatched.len() - before, 50);
    assert!(bench.refused.is_empty());
}

#[test]
fn busy_is_back_pressure_and_no_failure() {
    let mut bench = Bench::with_endpoints(2, with_policy(Policy::RoundRobin));
    for request in 0..8 {
        bench.ask(&tokens(request, 100));
    }
    let (key, booking, _, _) = bench.dispatched[0].clone();
    // Engine 0 refuses one of its four: it gets no fourth for a while, and the refused one goes to engine 1.
    bench.end(booking, AttemptEnd::Busy);
    let retry = Box::new(Request {
        tried: vec![EndpointId(0)],
        ..request(key, &tokens(0, 100))
    });
    bench.feed(Input::Arrive(retry));
    assert_eq!(bench.last().2, EndpointId(1));
    let snapshot = bench.pool.snapshot(bench.now);
    assert_eq!(
        (snapshot.endpoints[0].room, snapshot.endpoints[0].state),
        (3, EndpointState::Ready)
    );
    bench.ask(&tokens(20, 100));
    bench.ask(&tokens(21, 100));
    assert_eq!(bench.dispatched[9].2, EndpointId(1));
    assert_eq!(bench.dispatched[10].2, EndpointId(1));
    bench.pass(seconds(10.0));
    assert_eq!(bench.pool.snapshot(bench.now).endpoints[0].room, 256);
}

#[test]
fn a_lone_busy_endpoint_makes_requests_wait_not_fail() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    let key = bench.ask(&tokens(1, 100));
    let booking = bench.last().1;
    bench.end(booking, AttemptEnd::Busy);
    bench.feed(Input::Arrive(Box::new(Request {
        tried: vec![EndpointId(0)],
        ..request(key, &tokens(1, 100))
    })));
    assert_eq!(bench.dispatched.len(), 1);
    bench.pass(seconds(0.3));
    assert_eq!((bench.dispatched.len(), bench.refused.len()), (2, 0));
}

#[test]
fn failures_in_a_row_quarantine_and_a_probe_restores() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    for attempt in 0..3 {
        bench.ask(&tokens(attempt, 100));
        let booking = bench.last().1;
        bench.end(booking, AttemptEnd::Failed);
    }
    let waiting = bench.ask(&tokens(9, 100));
    assert_eq!(bench.dispatched.len(), 3);
    bench.pass(seconds(1.1));
    assert_eq!(bench.probes.len(), 1);
    bench.feed(Input::Probed {
        endpoint: EndpointId(0),
        ok: false,
    });
    bench.pass(seconds(2.1));
    assert_eq!(bench.probes.len(), 2);
    bench.feed(Input::Probed {
        endpoint: EndpointId(0),
        ok: true,
    });
    assert_eq!(bench.last().0, waiting);
    bench.pass(seconds(1.0));
    assert_eq!(bench.probes.len(), 2, "nothing left to probe");
}

#[test]
fn an_endpoint_that_cannot_be_scraped_either_gets_no_second_chance() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    for _ in 0..3 {
        bench.feed(Input::ScrapeFailed {
            endpoint: EndpointId(0),
        });
    }
    bench.ask(&tokens(1, 100));
    assert_eq!(
        bench.dispatched.len(),
        1,
        "failed scrapes alone are no outage"
    );
    let booking = bench.last().1;
    bench.end(booking, AttemptEnd::Failed);
    assert_eq!(
        bench.pool.snapshot(bench.now).endpoints[0].state,
        EndpointState::Quarantined
    );
}

#[test]
fn blocked_metrics_leave_traffic_on_own_accounting() {
    let mut bench = Bench::with_endpoints(3, PoolConfig::default());
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
    assert!(snapshot.saturation.value < 0.1);
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
fn a_full_model_does_not_block_another() {
    let mut bench = Bench::new(with_room(1));
    bench.up(0, |spec| spec.models = vec!["a".into()]);
    bench.up(1, |spec| spec.models = vec!["b".into()]);
    for model in ["a", "a", "a", "b"] {
        bench.ask_with(&tokens(1, 100), |request| request.model = named(model));
    }
    let names: Vec<_> = bench
        .dispatched
        .iter()
        .map(|(key, _, endpoint, _)| (key.0, endpoint.0))
        .collect();
    assert_eq!(names, [(0, 0), (3, 1)]);
    assert_eq!(bench.pool.snapshot(bench.now).queue_length, 2);
    let (_, booking, _, _) = bench.dispatched[0];
    bench.complete(booking);
    assert_eq!(bench.last().0, RequestKey(1), "first come first served");
    assert_eq!(bench.last().3.queue_position, 0);
}

#[test]
fn each_way_out_of_the_queue_has_its_own_reason() {
    let queue = QueueConfig {
        requests: 2,
        bytes: 1000,
        ..QueueConfig::default()
    };
    let mut bench = Bench::new(PoolConfig {
        queue,
        ..with_room(1)
    });
    let early = bench.ask(&tokens(1, 100));
    bench.up(0, |spec| {
        spec.models = vec!["m".into()];
        spec.max_context = Some(1000);
    });
    assert_eq!(bench.last().0, early, "it waited for the first endpoint");
    let own_limit = bench.ask_with(&tokens(1, 100), |request| {
        request.expires_at = Some(Timestamp(3_000_000_000));
    });
    let large = bench.ask_with(&tokens(1, 100), |request| request.bytes = 901);
    let leaves = bench.ask(&tokens(1, 100));
    let third = bench.ask(&tokens(1, 100));
    let unknown = bench.ask_with(&tokens(1, 100), |request| request.model = named("other"));
    let long = bench.ask(&tokens(1, 1000));
    bench.feed(Input::Cancel(leaves));
    let patient = bench.ask(&tokens(1, 100));
    let busy_with = bench.dispatched[0].1;
    for second in 1..=70 {
        bench.feed(Input::Progress {
            booking: busy_with,
            output_tokens: second,
        });
        bench.pass(seconds(1.0));
    }
    bench.feed(Input::Drain);
    let late = bench.ask(&tokens(1, 100));
    let expected = [
        (own_limit, "queue_expired", RefusalKind::QueueExpired),
        (large, "queue_full", RefusalKind::QueueFull),
        (leaves, "client_closed", RefusalKind::ClientClosed),
        (third, "queue_full", RefusalKind::QueueFull),
        (
            unknown,
            "no_endpoint",
            RefusalKind::NoEndpoint(EmptiedBy::Model),
        ),
        (
            long,
            "no_endpoint",
            RefusalKind::NoEndpoint(EmptiedBy::Context),
        ),
        (patient, "queue_expired", RefusalKind::QueueExpired),
        (late, "shutting_down", RefusalKind::ShuttingDown),
    ];
    assert_eq!(bench.refused.len(), expected.len());
    for (key, code, kind) in expected {
        let refusal = bench.refusal(key).expect(code);
        assert_eq!((refusal.kind, refusal.kind.code()), (kind, code));
        assert_eq!(
            refusal.retry_after.is_none(),
            kind == RefusalKind::ClientClosed
        );
    }
    assert_eq!(
        bench.refusal(own_limit).map(|refusal| refusal.waited),
        Some(seconds(2.0))
    );
}

#[test]
fn without_an_endpoint_a_request_waits_a_while_and_is_told_why() {
    for (state, expected) in [
        ("none", EmptiedBy::Pool),
        ("draining", EmptiedBy::Draining),
        ("quarantined", EmptiedBy::Quarantine),
    ] {
        let mut bench = Bench::new(PoolConfig::default());
        if state != "none" {
            bench.up(0, |_| ());
        }
        if state == "draining" {
            bench.feed(Input::Draining(EndpointId(0)));
        }
        if state == "quarantined" {
            for attempt in 0..3 {
                bench.ask(&tokens(attempt, 100));
                let booking = bench.last().1;
                bench.end(booking, AttemptEnd::Failed);
            }
        }
        let key = bench.ask(&tokens(5, 100));
        bench.pass(seconds(14.0));
        assert_eq!(bench.refusal(key), None, "{state}");
        bench.pass(seconds(2.0));
        assert_eq!(
            bench.refusal(key).map(|refusal| refusal.kind),
            Some(RefusalKind::NoEndpoint(expected))
        );
        assert_eq!(
            bench.pool.saturation(bench.now).cause,
            SaturationCause::NoEndpoint
        );
    }
}

#[test]
fn retry_after_grows_with_the_backlog_and_shrinks_with_the_rate() {
    let wait = |backlog: u32, per_second: u32| {
        let queue = QueueConfig {
            requests: backlog as usize,
            ..QueueConfig::default()
        };
        let mut bench = Bench::with_endpoints(
            1,
            PoolConfig {
                queue,
                ..with_room(1)
            },
        );
        for _ in 0..per_second * 10 {
            bench.ask(&tokens(1, 100));
            let booking = bench.last().1;
            bench.complete(booking);
        }
        for _ in 0..=backlog + 1 {
            bench.ask(&tokens(1, 100));
        }
        bench.refused[0]
            .1
            .retry_after
            .expect("queue_full says when")
            .as_secs_f64()
    };
    for (backlog, rate, least) in [
        (100, 10, 10.0),
        (100, 50, 2.0),
        (1000, 50, 20.0),
        (2000, 1, 60.0),
        (3, 50, 1.0),
    ] {
        let seconds = wait(backlog, rate);
        assert!(
            seconds >= least && seconds <= least * 1.55,
            "{backlog} waiting, {rate}/s: {seconds}"
        );
    }
}

#[test]
fn a_retry_avoids_what_failed_and_goes_first() {
    let mut bench = Bench::with_endpoints(2, with_room(1));
    bench.ask(&tokens(1, 100));
    bench.ask(&tokens(2, 100));
    let waiting = bench.ask(&tokens(3, 100));
    let (key, booking, endpoint, _) = bench.dispatched[0].clone();
    let other = bench.dispatched[1].1;
    bench.end(booking, AttemptEnd::Failed);
    assert_eq!(bench.last().0, waiting, "its place is used at once");
    bench.feed(Input::Arrive(Box::new(Request {
        tried: vec![endpoint],
        ..request(key, &tokens(1, 100))
    })));
    let later = bench.ask(&tokens(4, 100));
    bench.complete(other);
    assert_eq!(bench.last().0, key);
    assert_ne!(bench.last().2, endpoint);
    let (_, booking, _, _) = bench.dispatched[2].clone();
    bench.complete(booking);
    assert_eq!(bench.last().0, later);
}

#[test]
fn a_tried_endpoint_is_better_than_none() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    bench.ask_with(&tokens(1, 100), |request| {
        request.tried = vec![EndpointId(0)];
    });
    assert_eq!(bench.dispatched.len(), 1);
}

#[test]
fn the_whole_answer_should_fit_where_that_is_possible() {
    let mut bench = Bench::new(PoolConfig::default());
    bench.up(0, |spec| spec.max_context = Some(1000));
    bench.up(1, |spec| spec.max_context = Some(4000));
    for _ in 0..4 {
        bench.ask_with(&tokens(1, 800), |request| request.output_bound = 500);
        assert_eq!(
            (bench.last().2, bench.last().3.filtered.context),
            (EndpointId(1), 1)
        );
    }
    bench.feed(Input::EndpointDown(EndpointId(1)));
    bench.ask_with(&tokens(1, 800), |request| request.output_bound = 500);
    assert_eq!(
        bench.last().2,
        EndpointId(0),
        "the engine decides what it makes of the bound"
    );
}

#[test]
fn models_an_engine_reports_count_where_none_are_configured() {
    let mut bench = Bench::new(PoolConfig::default());
    bench.up(0, |_| ());
    let reported = Observation {
        models: Some(vec!["m".into(), "m-lora".into()]),
        ..idle_metrics()
    };
    bench.feed(Input::Observed {
        endpoint: EndpointId(0),
        observation: reported,
    });
    bench.ask_with(&tokens(1, 100), |request| request.model = named("m-lora"));
    assert_eq!(bench.dispatched.len(), 1);
    let unknown = bench.ask_with(&tokens(1, 100), |request| request.model = named("n"));
    assert_eq!(
        bench.refusal(unknown).map(|refusal| refusal.kind),
        Some(RefusalKind::NoEndpoint(EmptiedBy::Model))
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
        serde_json::to_string(&second)
            .is_ok_and(|json| json.contains("\"policy\":\"predicted-cost\""))
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
