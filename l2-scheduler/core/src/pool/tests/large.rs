//! In a large pool no turn does what many events have left behind: it is done between them, a part at a time.

use super::*;

const ENGINES: u32 = 600;

fn large() -> Bench {
    let mut bench = Bench::with_endpoints(ENGINES, with_policy(Policy::Planned));
    // The first turn sees them all.
    bench.ask(&tokens(0, 2000));
    bench
}

/// Ends what was sent last, by an engine twice as slow as expected.
fn teach(bench: &mut Bench) {
    let (_, booking, _, decision) = bench.last();
    let (booking, seconds) = (*booking, 2.0 * decision.predicted.ttft_s);
    bench.pass(Duration::from_secs_f64(seconds));
    bench.feed(Input::FirstToken(booking));
    bench.complete(booking);
}

/// How many endpoints go by what was learned last.
fn up_to_date(bench: &mut Bench) -> u32 {
    let model = bench.pool.classes[0].model;
    let board = &mut bench.pool.scratch.board;
    let mut count = 0;
    for index in 0..ENGINES {
        count += u32::from(board.spot(index).model == model);
    }
    count
}

#[test]
fn what_was_learned_reaches_every_endpoint_within_a_few_events() {
    let mut bench = large();
    let before = bench.pool.classes[0].model;
    let mut fewest = ENGINES;
    for round in 1..40 {
        teach(&mut bench);
        bench.ask(&tokens(round, 4000));
        fewest = fewest.min(up_to_date(&mut bench));
        // Nothing that would need a turn.
        for id in 0..3 {
            let endpoint = EndpointId(id);
            bench.feed(Input::ScrapeFailed { endpoint });
        }
        assert_eq!(up_to_date(&mut bench), ENGINES, "round {round}");
    }
    assert_ne!(bench.pool.classes[0].model, before, "something was learned");
    assert!((1..ENGINES).contains(&fewest), "a part at a time: {fewest}");
}

#[test]
fn news_of_many_endpoints_leaves_only_a_few_to_the_next_turn() {
    let mut bench = large();
    for id in 0..ENGINES {
        bench.feed(Input::Observed {
            endpoint: EndpointId(id),
            observation: Observation {
                waiting: Some(0),
                running: Some(id),
                ..idle_metrics()
            },
        });
        assert!(bench.pool.endpoints.changed() <= 32);
    }
    let now = bench.now;
    let changed: Vec<u32> = std::iter::from_fn(|| bench.pool.endpoints.next_changed()).collect();
    for index in (0..ENGINES).filter(|index| !changed.contains(index)) {
        assert_eq!(bench.pool.spot(now, index).others, index);
        assert_eq!(bench.pool.scratch.board.spot(index).others, index);
    }
}
