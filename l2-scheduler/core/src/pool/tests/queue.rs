//! Who waits, who goes, and why somebody is refused.

use super::*;
use crate::Scope;

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
    let mut bench = Bench::new(limited(2, 1000, with_room(1)));
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
        (large, "queue_full", RefusalKind::QueueFull(Scope::Pool)),
        (leaves, "client_closed", RefusalKind::ClientClosed),
        (third, "queue_full", RefusalKind::QueueFull(Scope::Pool)),
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
        let config = limited(backlog as usize, u64::MAX, with_room(1));
        let mut bench = Bench::with_endpoints(1, config);
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
