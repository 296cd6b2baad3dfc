//! Rows of the acceptance matrix that a pool answers alone.

use super::*;

/// A pool whose only endpoint is closed by a prompt that never ends its prefill.
fn closed() -> Bench {
    let mut config = PoolConfig::default();
    config.engine.depth = 1;
    let mut bench = Bench::with_endpoints(1, config);
    bench.ask(&tokens(1, 100));
    bench
}

#[test]
fn t15_a_request_whose_time_ends_as_it_could_go_has_one_outcome() {
    // Either order of the same two events at the same nanosecond.
    for end_first in [true, false] {
        let mut bench = closed();
        let end = bench.now + seconds(5.0);
        let key = bench.ask_with(&tokens(2, 100), |request| request.expires_at = Some(end));
        let busy_with = bench.dispatched[0].1;
        bench.now = end;
        let completed = Input::Finished {
            booking: busy_with,
            end: AttemptEnd::Completed {
                cached_tokens: None,
                output_tokens: 1,
            },
        };
        if end_first {
            bench.pool.handle(bench.now, completed);
            bench.pool.handle_timeout(bench.now);
        } else {
            bench.pool.handle_timeout(bench.now);
            bench.pool.handle(bench.now, completed);
        }
        bench.collect();
        let sent = bench.dispatched.iter().filter(|sent| sent.0 == key).count();
        let refused = bench
            .refused
            .iter()
            .filter(|(other, _)| *other == key)
            .count();
        assert_eq!((sent, refused), (0, 1), "its time was over");
        assert_eq!(
            bench.refusal(key).map(|refusal| refusal.kind),
            Some(RefusalKind::QueueExpired)
        );
        assert!(bench.at_rest());
    }
}

#[test]
fn t15_one_nanosecond_earlier_it_goes() {
    let mut bench = closed();
    let end = bench.now + seconds(5.0);
    let key = bench.ask_with(&tokens(2, 100), |request| request.expires_at = Some(end));
    let busy_with = bench.dispatched[0].1;
    bench.now = Timestamp(end.0 - 1);
    bench.complete(busy_with);
    assert_eq!(bench.last().0, key);
    bench.now = end + seconds(1.0);
    bench.pool.handle_timeout(bench.now);
    bench.collect();
    assert_eq!(
        bench.refusal(key),
        None,
        "what was sent does not expire here"
    );
}

#[test]
fn t10_engines_come_and_go_and_news_comes_late_and_nobody_is_lost_or_sent_to_the_dead() {
    let mut bench = Bench::with_endpoints(3, PoolConfig::default());
    let mut chance = Rng::new(10);
    let mut asked = 0;
    let mut ended = 0;
    let mut gone = [false; 3];
    for round in 0..600_u64 {
        bench.ask(&tokens(
            round as u32 % 40,
            200 + (chance.next() % 4000) as u32,
        ));
        asked += 1;
        let id = (chance.next() % 3) as usize;
        match chance.next() % 12 {
            0 => {
                gone[id] = true;
                bench.feed(Input::EndpointDown(EndpointId(id as u32)));
            }
            1 => {
                gone[id] = true;
                bench.feed(Input::Draining(EndpointId(id as u32)));
            }
            2 | 3 => {
                gone[id] = false;
                bench.up(id as u32, |spec| spec.generation = round);
            }
            // Metrics from before, of whichever engine now has the name.
            4 | 5 => bench.feed(Input::Observed {
                endpoint: EndpointId(id as u32),
                observation: Observation {
                    running: Some(50),
                    start_time_s: Some((round / 100) as f64 * 1000.0),
                    ..idle_metrics()
                },
            }),
            _ => {}
        }
        let before = bench.dispatched.len();
        bench.pass(Duration::from_millis(chance.next() % 200));
        for (_, _, endpoint, _) in &bench.dispatched[before..] {
            assert!(!gone[endpoint.0 as usize], "sent to one that is gone");
        }
        // Ends of some, late and in any order; some of them of engines that are no more.
        while bench.dispatched.len() > 12 {
            let at = (chance.next() % bench.dispatched.len() as u64) as usize;
            let (_, booking, _, _) = bench.dispatched.swap_remove(at);
            bench.feed(Input::FirstToken(booking));
            bench.end(booking, AttemptEnd::ClientClosed);
            // A message about it that comes after its end changes nothing.
            bench.feed(Input::FirstToken(booking));
            ended += 1;
        }
    }
    for id in 0..3 {
        bench.up(id, |spec| spec.generation = 10_000);
    }
    for _ in 0..400 {
        bench.pass(seconds(1.0));
        while let Some((_, booking, _, _)) = bench.dispatched.pop() {
            bench.end(booking, AttemptEnd::ClientClosed);
            ended += 1;
        }
    }
    assert_eq!(
        ended + bench.refused.len(),
        asked,
        "everybody had one outcome"
    );
    assert!(bench.at_rest());
}
