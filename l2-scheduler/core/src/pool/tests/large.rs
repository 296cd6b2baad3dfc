//! In a large pool no turn does what many events have left behind: it is done between them, a part at a time.

use super::properties::the_board_is_as_if_made_anew;
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

#[test]
fn what_is_kept_is_true_while_engines_come_and_go_and_change_their_class() {
    let mut bench = Bench::new(with_policy(Policy::Planned));
    let mut dice = Rng::new(3);
    let mut below = |most: u32| (dice.next() % u64::from(most)) as u32;
    let up = |bench: &mut Bench, id: u32, class: u32| {
        bench.up(id, |spec| spec.class = format!("class-{class}").into());
    };
    for id in 0..ENGINES / 2 {
        up(&mut bench, id, id % 3);
    }
    bench.ask(&tokens(0, 2000));
    let mut fewest = ENGINES;
    for _ in 0..40 {
        for _ in 0..60 {
            let (id, number) = (below(ENGINES), below(1_000));
            match below(20) {
                0 => up(&mut bench, id, number % 3),
                1 => bench.feed(Input::EndpointDown(EndpointId(id))),
                2..=9 => bench.feed(Input::Observed {
                    endpoint: EndpointId(id),
                    observation: Observation {
                        running: Some(number % 9),
                        ..idle_metrics()
                    },
                }),
                10..=15 => {
                    bench.ask(&tokens(number, 2000));
                }
                _ => teach(&mut bench),
            }
            fewest = fewest.min(bench.pool.classes[0].untold.unwrap_or(ENGINES));
        }
        the_board_is_as_if_made_anew(&mut bench).expect("what is kept is true");
    }
    assert!(fewest < ENGINES, "no lesson was ever on its way");
}
