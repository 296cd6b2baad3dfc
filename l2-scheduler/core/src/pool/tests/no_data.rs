//! Metrics that do not come stop nobody; own accounting stands in, and the pool says so.

use super::*;

const TICK: Duration = Duration::from_millis(100);
const ENGINES: u32 = 3;

#[test]
fn ten_seconds_without_metrics_stop_and_refuse_nobody() {
    for policy in Policy::ALL {
        for says_so in [true, false] {
            let mut bench = Bench::with_endpoints(ENGINES, with_policy(policy));
            let mut counts = [0; ENGINES as usize];
            for tick in 0..200 {
                let is_blocked = (50..150).contains(&tick);
                for id in 0..ENGINES {
                    let endpoint = EndpointId(id);
                    if !is_blocked {
                        bench.feed(Input::Observed {
                            endpoint,
                            observation: idle_metrics(),
                        });
                    } else if says_so {
                        bench.feed(Input::ScrapeFailed { endpoint });
                    }
                }
                // Requests that may be shed at saturation too.
                let key = bench.ask_with(&tokens(tick, 200), |request| {
                    request.band = Band(if tick % 2 == 0 { 0 } else { -1 });
                });
                assert_eq!(bench.last().0, key, "{policy} at {tick}: it goes at once");
                let snapshot = bench.pool.snapshot(bench.now);
                let saturation = snapshot.saturation;
                // The last metrics came at 49 and count for five seconds.
                let expected = if (100..150).contains(&tick) {
                    counts[bench.last().2.0 as usize] += 1;
                    SaturationCause::NoData
                } else {
                    SaturationCause::Load
                };
                assert_eq!(saturation.cause, expected, "{policy} at {tick}");
                assert!(saturation.value > 0.0 && saturation.value < 0.1);
                for endpoint in &snapshot.endpoints {
                    assert_eq!(endpoint.effective_load, endpoint.bookings);
                }
                finish_older(&mut bench);
                bench.pass(TICK);
            }
            assert_eq!(bench.refused, [], "{policy}");
            assert!(
                counts.iter().all(|count| *count >= 5),
                "{policy} {counts:?}"
            );
        }
    }
}

/// The latest is left to prefill, the one before to decode; what is older ends.
fn finish_older(bench: &mut Bench) {
    let sent: Vec<BookingId> = bench.dispatched.iter().map(|sent| sent.1).collect();
    let mut back = sent.iter().rev().skip(1);
    if let Some(booking) = back.next() {
        bench.feed(Input::FirstToken(*booking));
    }
    if let Some(booking) = back.next() {
        bench.complete(*booking);
    }
}

#[test]
fn metrics_count_until_they_are_too_old_and_any_that_come_count_again() {
    for (stale_after, policy) in [(5.0, Policy::Planned), (1.5, Policy::LeastRequest)] {
        let mut config = with_policy(policy);
        config.engine.stale_after = seconds(stale_after);
        let mut bench = Bench::with_endpoints(ENGINES, config);
        let observe = |bench: &mut Bench, id: u32, running: u32| {
            bench.feed(Input::Observed {
                endpoint: EndpointId(id),
                observation: Observation {
                    running: Some(running),
                    ..idle_metrics()
                },
            });
        };
        let seen = |bench: &Bench| {
            let snapshot = bench.pool.snapshot(bench.now);
            let loads: Vec<u32> = snapshot
                .endpoints
                .iter()
                .map(|endpoint| endpoint.effective_load)
                .collect();
            (snapshot.saturation.cause, loads)
        };
        assert_eq!(seen(&bench), (SaturationCause::NoData, vec![0, 0, 0]));
        (0..ENGINES).for_each(|id| observe(&mut bench, id, 10 + id));
        bench.pass(seconds(stale_after));
        assert_eq!(seen(&bench), (SaturationCause::Load, vec![10, 11, 12]));
        bench.pass(Duration::from_nanos(1));
        assert_eq!(seen(&bench), (SaturationCause::NoData, vec![0, 0, 0]));
        observe(&mut bench, 1, 4);
        assert_eq!(seen(&bench), (SaturationCause::Load, vec![0, 4, 0]));
        bench.feed(Input::EndpointDown(EndpointId(1)));
        assert_eq!(
            seen(&bench),
            (SaturationCause::NoData, vec![0, 0]),
            "metrics of one that left say nothing of the others"
        );
    }
}
