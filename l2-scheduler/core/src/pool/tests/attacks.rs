//! What broke it once: absurd numbers, crafted bands and quotas, debts that outlive their reason.

use super::*;
use crate::flow::{Aging, BandConfig, Quota, QuotaRate, Refuse, WtuCost};
use crate::{EndpointLoad, LoadVector, PeerId, Scope};

fn patient() -> BandConfig {
    BandConfig {
        ttl: seconds(900.0),
        ttft: Some(seconds(600.0)),
        refuse: Refuse::Never,
        ..BandConfig::default()
    }
}

fn with_flow(flow: FlowConfig) -> PoolConfig {
    let mut config = PoolConfig {
        flow,
        ..PoolConfig::default()
    };
    config.health.hang_floor = seconds(3_600.0);
    config
}

/// Shows the pool what its engine can do.
fn learn(bench: &mut Bench) {
    for at in 0..10 {
        bench.ask(&tokens(1 + at, 100));
        let booking = bench.last().1;
        bench.now += Duration::from_millis(20);
        bench.feed(Input::FirstToken(booking));
        bench.complete(booking);
    }
}

/// One endpoint, and flows that get a WTU a second after a burst.
fn with_flow_quota(burst_wtu: u64) -> Bench {
    let rate = QuotaRate {
        wtu_per_s: 1,
        burst_wtu,
    };
    let flow_quota = Quota {
        rate: Some(rate),
        ..Quota::default()
    };
    let flow = FlowConfig {
        flow_quota,
        ..FlowConfig::default()
    };
    Bench::with_endpoints(1, with_flow(flow))
}

#[test]
fn absurd_numbers_of_peers_and_engines_are_bounded() {
    for (tokens_said, count) in [(u64::MAX, u32::MAX), (5, u32::MAX), (u64::MAX, 1)] {
        let mut bench = Bench::with_endpoints(1, PoolConfig::default());
        learn(&mut bench);
        let lie = EndpointLoad {
            endpoint: "engine-0".into(),
            prefilling: count,
            pending_tokens: tokens_said,
            pending_double_area: tokens_said,
            pending_context: tokens_said,
            decoding: count,
            decoding_context: tokens_said,
            slack: [count; 8],
        };
        for peer in 0..64 {
            bench.feed(Input::PeerLoad {
                peer: PeerId(peer),
                vector: LoadVector {
                    endpoints: vec![lie.clone()],
                    ..LoadVector::default()
                },
            });
        }
        bench.feed(Input::Observed {
            endpoint: EndpointId(0),
            observation: Observation {
                waiting: Some(u32::MAX),
                running: Some(u32::MAX),
                ..idle_metrics()
            },
        });
        let key = bench.ask(&tokens(99, 100));
        bench.pass(seconds(1.0));
        assert!(bench.pool.snapshot(bench.now).endpoints[0].effective_load > 0);
        assert!(bench.refusal(key).is_some(), "nobody can make it there");
    }
}

#[test]
fn an_absurd_answer_teaches_nothing_absurd() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    bench.ask(&tokens(1, 2000));
    let booking = bench.last().1;
    bench.complete(booking);
    bench.ask(&tokens(1, 2000));
    let booking = bench.last().1;
    let end = AttemptEnd::Completed {
        cached_tokens: Some(u64::MAX / 10 + 1),
        output_tokens: u64::MAX,
    };
    bench.end(booking, end);
    bench.ask_with(&tokens(5, 2000), |request| {
        request.fairness = FairnessId::new("other").expect("a valid name");
        request.output_bound = 0;
    });
    assert!(bench.last().3.turn.expected_output <= 300.0);
    assert_eq!(bench.pool.endpoints[0].phantom_hits, 0);
}

#[test]
fn a_large_request_is_not_starved_by_small_ones_under_a_quota_of_its_band() {
    let quota = Quota {
        in_flight_wtu: Some(1000),
        ..Quota::default()
    };
    let band = BandConfig { quota, ..patient() };
    let bands = [(Band(0), band)].into_iter().collect();
    let mut bench = Bench::with_endpoints(
        1,
        with_flow(FlowConfig {
            bands,
            ..FlowConfig::default()
        }),
    );
    let small = |bench: &mut Bench| {
        bench.ask_with(&tokens(2, 100), |request| {
            request.fairness = FairnessId::new("small").expect("a valid name");
        })
    };
    let mut sent = 0;
    let start = |bench: &mut Bench, sent: &mut usize| {
        while *sent < bench.dispatched.len() {
            let booking = bench.dispatched[*sent].1;
            bench.feed(Input::FirstToken(booking));
            *sent += 1;
        }
    };
    small(&mut bench);
    small(&mut bench);
    start(&mut bench, &mut sent);
    let large = bench.ask(&tokens(1, 1500));
    let mut done = 0;
    for _ in 0..200 {
        small(&mut bench);
        bench.pass(seconds(0.1));
        start(&mut bench, &mut sent);
        if done + 1 < bench.dispatched.len() {
            let booking = bench.dispatched[done].1;
            bench.complete(booking);
            done += 1;
        }
        if bench
            .dispatched
            .iter()
            .any(|dispatched| dispatched.0 == large)
        {
            return assert!(done < 10, "{done} went before it");
        }
        // With nothing else in flight a request larger than the quota goes.
        if done + 1 == bench.dispatched.len() && done > 0 {
            let booking = bench.dispatched[done].1;
            bench.complete(booking);
            done += 1;
        }
    }
    unreachable!("it never went");
}

#[test]
fn bands_that_nobody_named_share_one_promise_and_the_highest_is_served() {
    let flow = FlowConfig {
        other_bands: patient(),
        ..FlowConfig::default()
    };
    let mut bench = Bench::with_endpoints(1, with_flow(flow));
    let put = |bench: &mut Bench, band: i32| {
        bench.ask_with(&tokens(2 + band.unsigned_abs(), 2000), |request| {
            request.band = Band(band);
        })
    };
    for band in 0..=25 {
        for _ in 0..10 {
            put(&mut bench, band);
        }
    }
    let (mut top, mut all) = (0, 0);
    while all < 600 {
        bench.pass(seconds(0.25));
        let (_, booking, _, decision) = bench.dispatched[all].clone();
        all += 1;
        top += usize::from(decision.turn.band == 25);
        bench.feed(Input::FirstToken(booking));
        put(&mut bench, decision.turn.band);
        bench.complete(booking);
    }
    assert!(
        top * 10 > all * 9,
        "{top} of {all} went to the highest band"
    );
}

#[test]
fn a_head_that_costs_more_than_can_be_saved_up_does_not_block_its_bands_share() {
    let cost = WtuCost {
        uncached: 100_000_000,
        ..WtuCost::default()
    };
    let mut bands = BTreeMap::new();
    let starvation = crate::flow::Starvation::Share(0.3);
    bands.insert(
        Band(0),
        BandConfig {
            starvation,
            ..patient()
        },
    );
    let flow = FlowConfig {
        cost,
        bands,
        other_bands: patient(),
        ..FlowConfig::default()
    };
    let mut bench = Bench::with_endpoints(1, with_flow(flow));
    let put = |bench: &mut Bench, band: i32, prompt: u64| {
        bench.ask_with(&tokens(2, 16), |request| {
            request.band = Band(band);
            request.prompt_tokens = prompt;
        })
    };
    for _ in 0..10 {
        put(&mut bench, 5, 2_000);
    }
    let large = put(&mut bench, 0, 20_000);
    let mut all = 0;
    while all < 200 {
        bench.pass(seconds(1.0));
        let (key, booking, _, _) = bench.dispatched[all].clone();
        all += 1;
        if key == large {
            return;
        }
        bench.feed(Input::FirstToken(booking));
        put(&mut bench, 5, 2_000);
        bench.complete(booking);
    }
    unreachable!("it never went");
}

#[test]
fn bands_and_flows_that_are_idle_are_forgotten() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    for number in 0..3_000 {
        bench.ask_with(&tokens(1, 100), |request| {
            request.band = Band(number % 1_000);
            request.fairness = FairnessId::new(format!("flow-{number}")).expect("a valid name");
        });
        let booking = bench.last().1;
        bench.complete(booking);
    }
    assert!(bench.pool.queue.tiers().is_empty());
    assert_eq!(bench.pool.queue.flows().count(), 0);
}

#[test]
fn prompts_without_measure_overflow_no_sum() {
    let mut bench = Bench::with_endpoints(1, with_policy(Policy::PredictedCost));
    for _ in 0..40 {
        bench.ask_with(&tokens(1, 100), |request| {
            request.prompt_tokens = u64::MAX;
            request.output_bound = u64::MAX;
        });
    }
    assert!(bench.dispatched.len() > 1);
    for (_, booking, ..) in std::mem::take(&mut bench.dispatched) {
        bench.feed(Input::FirstToken(booking));
        bench.complete(booking);
    }
    assert!(bench.pool.saturation(bench.now).value.is_finite());
}

#[test]
fn debts_in_ever_new_bands_are_not_kept_forever() {
    let mut bench = with_flow_quota(1_000);
    for number in 0..1_000 {
        bench.ask_with(&tokens(1, 100), |request| request.band = Band(number));
        let booking = bench.last().1;
        bench.complete(booking);
        assert!(bench.pool.queue.tiers().len() <= 65);
    }
    assert_eq!(bench.pool.queue.tiers().len(), 64);
}

#[test]
fn nobody_is_displaced_for_a_request_that_stays_out_anyway() {
    let limits = Limits {
        requests: 100,
        bytes: 1000,
    };
    let other_bands = BandConfig {
        ceiling: 2.0,
        ..BandConfig::default()
    };
    let mut config = with_flow(FlowConfig {
        pool_limits: limits,
        other_bands,
        ..FlowConfig::default()
    });
    config.engine.depth = 1;
    let mut bench = Bench::with_endpoints(1, config);
    bench.ask_with(&tokens(1, 100), |request| request.band = Band(100));
    for _ in 0..9 {
        bench.ask_with(&tokens(2, 100), |request| request.band = Band(-1));
    }
    let large = bench.ask_with(&tokens(3, 100), |request| request.bytes = 1001);
    assert_eq!(
        bench.refusal(large).map(|refusal| refusal.kind),
        Some(RefusalKind::QueueFull(Scope::Pool))
    );
    assert_eq!(bench.pool.queue.len(), 9);
}

#[test]
fn whom_waiting_has_raised_is_refused_no_sooner() {
    let served = |aging: Aging| {
        let band = BandConfig {
            aging,
            ttl: seconds(600.0),
            ..BandConfig::default()
        };
        let bands = [2, 1, 0, -1].map(|priority| (Band(priority), band.clone()));
        let mut config = with_flow(FlowConfig {
            bands: bands.into_iter().collect(),
            other_bands: BandConfig {
                ceiling: 2.0,
                ..band
            },
            ..FlowConfig::default()
        });
        config.engine.room = 1;
        // A second endpoint of another model keeps the pool from being saturated.
        let mut bench = Bench::with_endpoints(1, config);
        bench.up(1, |spec| spec.models = vec!["x".into()]);
        learn(&mut bench);
        bench.ask_with(&tokens(1, 100), |request| request.band = Band(2));
        let stream = bench.last().1;
        bench.feed(Input::FirstToken(stream));
        let low = bench.ask_with(&tokens(2, 100), |request| {
            request.band = Band(-1);
            request.targets.ttft = Some(seconds(20.0));
        });
        bench.pass(seconds(60.0));
        bench.complete(stream);
        bench.pass(seconds(1.0));
        bench
            .dispatched
            .iter()
            .any(|dispatched| dispatched.0 == low)
    };
    assert!(served(Aging::Off));
    assert!(served(Aging::Every(seconds(5.0))));
}

#[test]
fn a_stall_is_measured_by_what_running_streams_want() {
    for tpot_s in [0.1, 2.0] {
        let low = BandConfig {
            max_stall: Some(seconds(4.0)),
            tpot: seconds(tpot_s),
            ttft: Some(seconds(1.0)),
            ..BandConfig::default()
        };
        let bands = [(Band(-1), low)].into_iter().collect();
        let mut bench = Bench::with_endpoints(
            1,
            with_flow(FlowConfig {
                bands,
                ..FlowConfig::default()
            }),
        );
        learn(&mut bench);
        bench.ask(&tokens(1, 100));
        let stream = bench.last().1;
        bench.feed(Input::FirstToken(stream));
        let before = bench.dispatched.len();
        bench.ask_with(&tokens(2, 100_000), |request| request.band = Band(-1));
        bench.pass(seconds(20.0));
        assert_eq!(bench.dispatched.len(), before, "TPOT {tpot_s}");
    }
}

#[test]
fn a_debt_to_a_quota_is_not_forgotten_because_others_come_and_go() {
    let mut bench = with_flow_quota(100);
    let ask = |bench: &mut Bench| {
        let before = bench.dispatched.len();
        let key = bench.ask(&tokens(1, 200));
        (key, bench.dispatched.len() > before)
    };
    assert!(ask(&mut bench).1);
    let booking = bench.last().1;
    bench.complete(booking);
    let (key, went) = ask(&mut bench);
    assert!(!went, "over its quota");
    bench.feed(Input::Cancel(key));
    for number in 0..9_000 {
        bench.ask_with(&tokens(2, 10), |request| {
            request.fairness = FairnessId::new(format!("flow-{number}")).expect("a valid name");
            request.output_bound = 1;
        });
        let booking = bench.last().1;
        bench.complete(booking);
    }
    assert!(!ask(&mut bench).1, "no time has passed");
}

#[test]
fn a_flow_over_its_quota_has_one_timer_however_often_it_asks() {
    let mut bench = with_flow_quota(20_000);
    bench.ask(&tokens(1, 60_000));
    let booking = bench.last().1;
    bench.feed(Input::FirstToken(booking));
    for number in 0..2_000 {
        let key = bench.ask_with(&tokens(1, 16), |request| {
            request.prompt_tokens = 1_000 + number;
        });
        bench.feed(Input::Cancel(key));
    }
    assert!(bench.pool.quota_timers.len() <= 1);
}

#[test]
fn absurd_sizes_under_the_plan_overflow_no_sum_and_leave_nothing_behind() {
    let sizes = [
        (0, 0, 0),
        (u32::MAX, u64::MAX, u64::MAX),
        (u32::MAX, 1, 1),
        (1, u64::MAX, 0),
        (0, u64::MAX, u64::MAX),
    ];
    for (block_size, num_blocks, kv_tokens) in sizes {
        for (default_capacity_tokens, batch_tokens) in [(0, 0), (1, 1), (u64::MAX, u32::MAX)] {
            let mut config = PoolConfig::default();
            config.residency.default_capacity_tokens = default_capacity_tokens;
            config.engine.batch_tokens = batch_tokens;
            config.health.hang_floor = seconds(1e9);
            config.peers.every = Some(seconds(0.1));
            let mut bench = Bench::with_endpoints(5, config);
            for id in 0..5 {
                bench.feed(Input::Observed {
                    endpoint: EndpointId(id),
                    observation: Observation {
                        block_size: Some(block_size),
                        num_blocks: Some(num_blocks),
                        kv_tokens: Some(kv_tokens),
                        kv_use: Some(1.0),
                        ..idle_metrics()
                    },
                });
            }
            let most = u64::MAX;
            for round in 0..4u32 {
                for (at, (prompt, bound)) in (0..).zip([
                    (0, 0),
                    (1, most),
                    (1 << 24, most),
                    (most, most),
                    (1 << 24, 1),
                ]) {
                    let lie = EndpointLoad {
                        endpoint: named(&format!("engine-{}", at % 5)),
                        prefilling: u32::MAX,
                        pending_tokens: most,
                        pending_double_area: most,
                        pending_context: most,
                        decoding: u32::MAX,
                        decoding_context: most,
                        slack: [u32::MAX; 8],
                    };
                    bench.ask_with(&tokens(10 * round + at, 100), |request| {
                        request.prompt_tokens = prompt;
                        request.output_bound = bound;
                        request.streaming = at % 2 == 0;
                        request.targets.tpot = Some(if at == 1 {
                            Duration::ZERO
                        } else {
                            Duration::MAX
                        });
                    });
                    if round == 2 {
                        bench.feed(Input::PeerLoad {
                            peer: PeerId(u64::from(at)),
                            vector: LoadVector {
                                extent: crate::Extent::Changed,
                                endpoints: vec![lie],
                                ..LoadVector::default()
                            },
                        });
                    }
                    for (_, booking, ..) in bench
                        .dispatched
                        .split_off(bench.dispatched.len().saturating_sub(1))
                    {
                        bench.feed(Input::Progress {
                            booking,
                            output_tokens: most,
                        });
                        bench.end(
                            booking,
                            AttemptEnd::Completed {
                                cached_tokens: Some(most),
                                output_tokens: most,
                            },
                        );
                    }
                }
                bench.pass(seconds(0.3));
            }
            for _ in 0..40 {
                bench.pass(seconds(60.0));
                for (_, booking, ..) in std::mem::take(&mut bench.dispatched) {
                    bench.feed(Input::FirstToken(booking));
                    bench.complete(booking);
                }
            }
            let context = (block_size, num_blocks, kv_tokens, default_capacity_tokens);
            assert!(bench.at_rest(), "{context:?}");
            assert_eq!(bench.pool.unstored.kept(), 0, "{context:?}");
            let value = bench.pool.saturation(bench.now).value;
            assert!((0.0..=1.0).contains(&value), "{context:?}: {value}");
        }
    }
}
