//! Events that come too late, twice, too early, or about nobody.

use super::*;

/// One endpoint with two places: an attempt that ended, one that decodes, one that prefills, and a request that waits.
struct Scene {
    bench: Bench,
    ended: BookingId,
    decoding: BookingId,
    prefilling: BookingId,
    waiting: RequestKey,
}

impl Scene {
    fn new() -> Self {
        let mut bench = Bench::with_endpoints(1, with_room(2));
        bench.feed(Input::Observed {
            endpoint: EndpointId(0),
            observation: idle_metrics(),
        });
        let mut send = |family| {
            bench.ask(&tokens(family, 1000));
            bench.last().1
        };
        let (ended, decoding) = (send(1), send(2));
        bench.pass(Duration::from_millis(150));
        bench.feed(Input::FirstToken(decoding));
        bench.feed(Input::Progress {
            booking: decoding,
            output_tokens: 40,
        });
        bench.complete(ended);
        bench.ask(&tokens(3, 1000));
        let prefilling = bench.last().1;
        let waiting = bench.ask(&tokens(4, 1000));
        assert_eq!(bench.dispatched.len(), 3);
        Self {
            bench,
            ended,
            decoding,
            prefilling,
            waiting,
        }
    }

    /// How everything goes on from here.
    fn rest(mut self) -> String {
        let bench = &mut self.bench;
        for booking in [self.decoding, self.prefilling] {
            bench.pass(Duration::from_millis(100));
            bench.complete(booking);
        }
        bench.ask(&tokens(4, 2000));
        let (_, last, ..) = bench.last();
        let last = *last;
        bench.feed(Input::FirstToken(last));
        let snapshot = bench.pool.snapshot(bench.now);
        format!("{:#?} {:#?} {snapshot:#?}", bench.dispatched, bench.refused)
    }
}

#[test]
fn what_comes_late_twice_too_early_or_about_nobody_changes_nothing() {
    let Scene {
        ended,
        decoding,
        waiting,
        bench,
        ..
    } = Scene::new();
    // The booking that the waiting request will get.
    let future = BookingId(3);
    let nobody = EndpointId(9);
    let progress = |booking, output_tokens| Input::Progress {
        booking,
        output_tokens,
    };
    let finished = |booking, end| Input::Finished { booking, end };
    let completed = AttemptEnd::Completed {
        cached_tokens: Some(0),
        output_tokens: 9,
    };
    let cases = [
        ("first token after the end", Input::FirstToken(ended)),
        ("progress after the end", progress(ended, 50)),
        ("a second end", finished(ended, completed)),
        (
            "a failure after the end",
            finished(ended, AttemptEnd::Failed),
        ),
        ("busy after the end", finished(ended, AttemptEnd::Busy)),
        (
            "the client leaves after the end",
            finished(ended, AttemptEnd::ClientClosed),
        ),
        ("a second first token", Input::FirstToken(decoding)),
        ("the same progress", progress(decoding, 40)),
        ("older progress", progress(decoding, 3)),
        ("a first token to come", Input::FirstToken(future)),
        ("progress to come", progress(future, 7)),
        ("an end to come", finished(future, AttemptEnd::Failed)),
        (
            "a key that waits arrives",
            Input::Arrive(Box::new(request(waiting, &tokens(9, 9)))),
        ),
        (
            "one that was sent is cancelled",
            Input::Cancel(bench.dispatched[1].0),
        ),
        (
            "one that nobody knows is cancelled",
            Input::Cancel(RequestKey(99)),
        ),
        (
            "a good probe of a good endpoint",
            Input::Probed {
                endpoint: EndpointId(0),
                ok: true,
            },
        ),
        (
            "a bad probe of a good endpoint",
            Input::Probed {
                endpoint: EndpointId(0),
                ok: false,
            },
        ),
        (
            "a probe of nobody",
            Input::Probed {
                endpoint: nobody,
                ok: false,
            },
        ),
        (
            "metrics of nobody",
            Input::Observed {
                endpoint: nobody,
                observation: idle_metrics(),
            },
        ),
        (
            "no metrics of nobody",
            Input::ScrapeFailed { endpoint: nobody },
        ),
        ("nobody drains", Input::Draining(nobody)),
        ("nobody leaves", Input::EndpointDown(nobody)),
    ];
    let undisturbed = Scene::new().rest();
    for (name, input) in cases {
        let mut scene = Scene::new();
        let before = scene.bench.pool.snapshot(scene.bench.now);
        let timeout = scene.bench.pool.poll_timeout();
        for _ in 0..3 {
            scene.bench.feed(input.clone());
        }
        assert_eq!(scene.bench.pool.snapshot(scene.bench.now), before, "{name}");
        assert_eq!(scene.bench.pool.poll_timeout(), timeout, "{name}");
        assert_eq!(scene.rest(), undisturbed, "{name}");
    }
}

#[test]
fn an_end_without_a_first_token_gives_everything_back() {
    for policy in Policy::ALL {
        let mut bench = Bench::with_endpoints(2, with_policy(policy));
        for end in [
            AttemptEnd::Completed {
                cached_tokens: None,
                output_tokens: 0,
            },
            AttemptEnd::ClientClosed,
            AttemptEnd::Rejected,
            AttemptEnd::Busy,
            AttemptEnd::Failed,
        ] {
            bench.ask(&tokens(1, 3000));
            let booking = bench.last().1;
            bench.end(booking, end);
            bench.feed(Input::FirstToken(booking));
            bench.feed(Input::Progress {
                booking,
                output_tokens: 10,
            });
            assert!(bench.at_rest(), "{policy} {end:?}");
            bench.pass(seconds(5.0));
        }
        assert_eq!(bench.dispatched.len(), 5, "{policy}");
    }
}

#[test]
fn progress_without_a_first_token_is_one() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    bench.ask(&tokens(1, 3000));
    let booking = bench.last().1;
    let progress = Input::Progress {
        booking,
        output_tokens: 5,
    };
    for input in [progress, Input::FirstToken(booking)] {
        bench.feed(input);
        let endpoint = &bench.pool.snapshot(bench.now).endpoints[0];
        assert_eq!((endpoint.prefilling, endpoint.pending_tokens), (0, 0));
        assert_eq!(endpoint.context_tokens, 3005);
    }
}

#[test]
fn who_is_removed_and_announced_again_at_one_instant_is_there_and_who_is_removed_last_is_not() {
    for policy in Policy::ALL {
        for is_back in [true, false] {
            let mut bench = Bench::with_endpoints(1, with_policy(policy));
            let spec = EndpointSpec::new(EndpointId(0), "engine-0");
            let (up, down) = (Input::EndpointUp(spec), Input::EndpointDown(EndpointId(0)));
            let order = if is_back { [down, up] } else { [up, down] };
            let arrive = Input::Arrive(Box::new(request(RequestKey(0), &tokens(1, 100))));
            bench.pool.handle(bench.now, arrive);
            for input in order {
                bench.pool.handle(bench.now, input);
            }
            bench.collect();
            assert_eq!(bench.dispatched.len(), usize::from(is_back), "{policy}");
            assert_eq!(bench.refused, [], "{policy}");
        }
    }
}
