//! Endpoints that are busy, fail, or fall silent.

use super::*;

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
fn an_engine_that_works_for_others_is_busy_and_not_hung() {
    for works in [true, false] {
        let mut bench = Bench::with_endpoints(1, PoolConfig::default());
        bench.ask(&tokens(1, 400));
        bench.ask(&tokens(2, 400));
        for second in 1..=60 {
            bench.pass(seconds(1.0));
            let generated = if works { f64::from(second) } else { 1.0 };
            bench.feed(Input::Observed {
                endpoint: EndpointId(0),
                observation: Observation {
                    monotone_counter: Some(generated),
                    ..idle_metrics()
                },
            });
        }
        assert_eq!(bench.abandoned.is_empty(), works);
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
fn an_endpoint_that_left_in_quarantine_comes_back_ready() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    bench.ask(&tokens(9, 100));
    let lasting = bench.last().1;
    for attempt in 0..3 {
        bench.ask(&tokens(attempt, 100));
        let booking = bench.last().1;
        bench.end(booking, AttemptEnd::Failed);
    }
    bench.feed(Input::EndpointDown(EndpointId(0)));
    bench.up(0, |_| ());
    let endpoint = &bench.pool.snapshot(bench.now).endpoints[0];
    assert_eq!(
        (endpoint.state, endpoint.bookings),
        (EndpointState::Ready, 1)
    );
    bench.complete(lasting);
    assert!(bench.at_rest());
}
