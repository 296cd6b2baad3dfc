//! What is remembered of engines that come, change, restart and go.

use super::*;

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
    // Beside the blocks, every attempt has an answer that takes memory.
    assert_eq!(bench.pool.snapshot(bench.now).index_pairs, 40 * 32 + 41);
}

#[test]
fn capacity_is_counted_in_tokens_whatever_the_block_size() {
    for (block_size, num_blocks) in [(16, 1000), (64, 250), (1, 16_000)] {
        let mut bench = Bench::with_endpoints(1, with_policy(Policy::PredictedCost));
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
        // Blocks of 16 do not fill what answers leave to the last token.
        let resident = bench.pool.snapshot(bench.now).endpoints[0].resident_tokens;
        assert!((15_985..=16_000).contains(&resident), "{resident}");
    }
}

/// One engine whose cache has room for three prompts of 5,000 tokens and their answers.
fn room_for_three() -> Bench {
    let config = PoolConfig {
        residency: ResidencyConfig {
            default_capacity_tokens: 16_500,
            ..ResidencyConfig::default()
        },
        // Nobody is held back.
        ..with_policy(Policy::PredictedCost)
    };
    Bench::with_endpoints(1, config)
}

/// Sends a prompt of 5,000 tokens that shares nothing with those of other families, and lets it begin its answer.
fn begin(bench: &mut Bench, family: u32) -> BookingId {
    ask(bench, &tokens(family, 5_000))
}

fn ask(bench: &mut Bench, prompt: &[u32]) -> BookingId {
    bench.ask_with(prompt, |request| request.output_bound = 10_000);
    let booking = bench.last().1;
    bench.feed(Input::FirstToken(booking));
    booking
}

/// Whether all of a prompt is believed to be cached: what pushes it out takes no more than it needs, from the tail.
fn is_whole(bench: &mut Bench, family: u32) -> bool {
    begin(bench, family);
    cached(bench) > 4_900
}

#[test]
fn an_engine_forgets_first_what_ended_first() {
    for first_ends_first in [true, false] {
        let mut bench = room_for_three();
        let mut running = [begin(&mut bench, 1), begin(&mut bench, 2)];
        if !first_ends_first {
            running.reverse();
        }
        for booking in running {
            bench.complete(booking);
        }
        // The third fits beside them, the fourth takes the place of one.
        let third = begin(&mut bench, 3);
        bench.complete(third);
        begin(&mut bench, 4);
        let is_whole = is_whole(&mut bench, 1);
        assert_eq!(is_whole, !first_ends_first);
    }
}

#[test]
fn answers_take_the_place_of_prompts() {
    for (answer, is_kept) in [(100, true), (4_000, false)] {
        let mut bench = room_for_three();
        // Answers of other requests teach what to expect.
        for _ in 0..200 {
            let booking = ask(&mut bench, &[1]);
            let end = AttemptEnd::Completed {
                cached_tokens: None,
                output_tokens: answer,
            };
            bench.end(booking, end);
        }
        for family in [11, 12, 13] {
            let booking = begin(&mut bench, family);
            bench.complete(booking);
        }
        assert_eq!(is_whole(&mut bench, 11), is_kept, "answers of {answer}");
    }
}

#[test]
fn what_is_kept_of_running_prompts_is_counted_and_given_back() {
    let mut bench = room_for_three();
    let ends = [
        AttemptEnd::Failed,
        AttemptEnd::ClientClosed,
        AttemptEnd::Rejected,
        AttemptEnd::Busy,
    ];
    let running: Vec<BookingId> = (0..4).map(|family| begin(&mut bench, family)).collect();
    for (booking, end) in running.into_iter().zip(ends) {
        assert_ne!(bench.pool.unstored.kept(), 0);
        bench.end(booking, end);
    }
    assert_eq!(bench.pool.unstored.kept(), 0);
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
fn an_engine_that_started_anew_holds_nothing_of_what_its_last_process_ran() {
    for end in [AttemptEnd::Failed, AttemptEnd::ClientClosed] {
        let mut bench = room_for_three();
        let observed = |started| Input::Observed {
            endpoint: EndpointId(0),
            observation: Observation {
                start_time_s: Some(started),
                ..idle_metrics()
            },
        };
        bench.feed(observed(1000.0));
        let running = [begin(&mut bench, 1), begin(&mut bench, 2)];
        bench.feed(observed(2000.0));
        assert_eq!(bench.pool.unstored.kept(), 0);
        for booking in running {
            bench.end(booking, end);
        }
        assert!(!is_whole(&mut bench, 1), "{end:?}");
    }
}

#[test]
fn attempts_that_gave_no_answer_push_nothing_out() {
    for end in [
        AttemptEnd::Rejected,
        AttemptEnd::Busy,
        AttemptEnd::ClientClosed,
    ] {
        let mut bench = room_for_three();
        let kept = begin(&mut bench, 1);
        bench.complete(kept);
        for _ in 0..300 {
            bench.ask_with(&tokens(2, 100), |request| request.output_bound = 10_000);
            let booking = bench.last().1;
            bench.end(booking, end);
            bench.pass(seconds(3.0));
        }
        assert!(is_whole(&mut bench, 1), "{end:?}");
    }
}
