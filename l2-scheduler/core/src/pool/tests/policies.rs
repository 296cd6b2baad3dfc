//! What every policy ranks by, against the obvious computation over the state of the pool.

use proptest::prelude::*;

use super::site::{PROMPT, Site, chosen, decide, pool, score};
use super::*;

fn site() -> impl Strategy<Value = Site> {
    let lengths = || prop::collection::vec(1..3000u32, 0..3);
    let held = prop_oneof![Just(0), Just(79), Just(80), Just(100), 0..=100u32];
    let pending = prop_oneof![Just(0), 0..5000u32, 100_000..300_000u32];
    let load = (0..4u32, 0..6u32, pending, 0..32u32);
    (1..5u32, load, lengths(), lengths(), held).prop_map(
        |(weight, (waiting, running, pending, kv), prefilling, decoding, held)| Site {
            weight,
            waiting,
            running,
            pending,
            kv,
            prefilling,
            decoding,
            held,
        },
    )
}

fn sites() -> impl Strategy<Value = Vec<Site>> {
    prop::collection::vec(site(), 1..7)
}

fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

/// Scores are as expected (infinite: more than whatever is finite), and of the least the one with the most free KV wins.
fn check(policy: Policy, sites: &[Site], expected: &[f64]) -> Result<(), TestCaseError> {
    let decision = decide(&mut pool(with_policy(policy), 7, sites)).expect("there is room");
    let most = expected.iter().copied().filter(|score| score.is_finite());
    let most = most.fold(0.0, f64::max);
    for (at, expected) in expected.iter().enumerate() {
        let seen = score(&decision, at);
        if expected.is_finite() {
            let error = (seen - expected).abs();
            prop_assert!(error <= 1e-9, "{at}: {seen} for {expected}");
        } else {
            prop_assert!(seen > most, "{at}: {seen} of {most}");
        }
    }
    let best = least(expected.iter().copied()) + 1e-9;
    let tied: Vec<usize> = (0..sites.len())
        .filter(|at| expected[*at] <= best)
        .collect();
    prop_assert!(tied.contains(&chosen(&decision)), "{decision:?}");
    if policy != Policy::LeastRequest {
        let percent = |at: usize| (sites[at].kv_use() * 100.0) as u32;
        let least_used = tied.iter().map(|at| percent(*at)).min();
        prop_assert_eq!(Some(percent(chosen(&decision))), least_used);
    }
    Ok(())
}

/// 0 for the least, 1 for the most, 0 for all where they are equal.
fn scaled(values: &[f64]) -> Vec<f64> {
    let low = least(values.iter().copied());
    let range = -least(values.iter().map(|value| -value)) - low;
    let scale = |value: &f64| {
        if range > 0.0 {
            (value - low) / range
        } else {
            0.0
        }
    };
    values.iter().map(scale).collect()
}

/// Who holds four fifths of the prompt, unless the best of them is more than 18 s of prefill behind the best of the rest.
fn token_aware(sites: &[Site], prefill_rate: f64) -> Vec<f64> {
    let holds = |site: &&Site| site.cached() * 5.0 >= f64::from(PROMPT) * 4.0;
    let warm = least(sites.iter().filter(holds).map(Site::work));
    let cold = least(sites.iter().filter(|site| !holds(site)).map(Site::work));
    let stays = warm.is_finite() && warm <= cold + 18.0 * prefill_rate;
    let worth = |site: &Site| {
        if stays && !holds(&site) {
            f64::INFINITY
        } else {
            site.work()
        }
    };
    sites.iter().map(worth).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lmetric_is_tokens_to_compute_times_requests(sites in sites()) {
        let product = |site: &Site| site.work() * (site.in_flight() + 1.0);
        check(Policy::Lmetric, &sites, &sites.iter().map(product).collect::<Vec<_>>())?;
    }

    #[test]
    fn weighted_is_two_for_the_queue_two_for_kv_and_three_for_the_prefix(sites in sites()) {
        let column = |of: fn(&Site) -> f64| scaled(&sites.iter().map(of).collect::<Vec<_>>());
        let (queue, kv, prefix) = (column(Site::in_flight), column(Site::kv_use), column(Site::cached));
        let sums: Vec<f64> = (0..sites.len()).map(|at| 2.0 * queue[at] + 2.0 * kv[at] - 3.0 * prefix[at]).collect();
        check(Policy::Weighted, &sites, &sums)?;
    }

    #[test]
    fn token_aware_is_least_work_among_the_holders_while_they_keep_up(sites in sites()) {
        check(Policy::TokenAware, &sites, &token_aware(&sites, 10_000.0))?;
    }

    #[test]
    fn least_request_is_requests_per_weight(sites in sites()) {
        let load = |site: &Site| site.in_flight() / f64::from(site.weight);
        check(Policy::LeastRequest, &sites, &sites.iter().map(load).collect::<Vec<_>>())?;
    }

    #[test]
    fn p2c_takes_the_less_loaded_of_the_drawn(sites in sites(), seed: u64) {
        let decision = decide(&mut pool(with_policy(Policy::P2c), seed, &sites)).expect("there is room");
        let load = |at: usize| sites[at].in_flight() / f64::from(sites[at].weight);
        let is_drawn = |at: &usize| (score(&decision, *at) - load(*at)).abs() < 1e-9;
        let (drawn, others): (Vec<usize>, Vec<usize>) = (0..sites.len()).partition(is_drawn);
        prop_assert!((1..=2).contains(&drawn.len()), "{decision:?}");
        prop_assert!(drawn.contains(&chosen(&decision)));
        prop_assert!(load(chosen(&decision)) <= least(drawn.iter().map(|at| load(*at))));
        let most = drawn.iter().map(|at| load(*at)).fold(0.0, f64::max);
        prop_assert!(others.iter().all(|at| score(&decision, *at) > most));
    }

    #[test]
    fn round_robin_goes_around_the_ring_of_those_there_are(steps in prop::collection::vec(ring_step(), 1..80)) {
        let mut bench = Bench::new(PoolConfig { policy: Policy::RoundRobin, ..with_room(2) });
        let mut ring = Ring::default();
        for step in steps {
            ring.take(&mut bench, &step)?;
        }
    }
}

#[test]
fn token_aware_leaves_its_holders_at_eighteen_seconds_of_prefill() {
    // Tokens before two holders of 80 blocks in a hundred and before one that holds 79; who gets the prompt.
    let cases = [
        (10_000.0, [180_016, 400_000, 0], 0),
        (10_000.0, [180_017, 400_000, 0], 2),
        (10_000.0, [400_000, 180_016, 0], 1),
        (10_000.0, [400_000, 180_017, 0], 2),
        (10_000.0, [190_016, 190_017, 10_000], 0),
        (10_000.0, [190_017, 190_017, 10_000], 2),
        (5_000.0, [91_000, 90_016, 0], 1),
        (5_000.0, [90_017, 90_017, 0], 2),
    ];
    for (prefill_rate, pending, expected) in cases {
        let mut config = with_policy(Policy::TokenAware);
        config.engine.prefill_rate = prefill_rate;
        let at = |(at, held)| Site {
            pending: pending[at as usize],
            held,
            ..Site::default()
        };
        let sites = [(0, 80), (1, 80), (2, 79)].map(at);
        let decision = decide(&mut pool(config, 7, &sites)).expect("there is room");
        assert_eq!(chosen(&decision), expected, "{prefill_rate} {pending:?}");
        let obvious = token_aware(&sites, prefill_rate);
        assert!(
            obvious[expected] <= least(obvious.iter().copied()),
            "{obvious:?}"
        );
    }
}

/// Pearson's statistic of what was seen for what was to be expected.
fn chi_square(seen: &[u32], expected: &[f64]) -> f64 {
    let part = |(seen, expected): (&u32, &f64)| (f64::from(*seen) - expected).powi(2) / expected;
    seen.iter().zip(expected).map(part).sum()
}

#[test]
fn p2c_draws_everybody_alike_and_prefers_the_less_loaded() {
    const SEEDS: u32 = 1000;
    let by_requests = [0, 1, 2, 3, 4].map(|running| Site {
        running,
        ..Site::default()
    });
    let by_weight = [5, 4, 3, 2, 1].map(|weight| Site {
        running: 4,
        weight,
        ..Site::default()
    });
    for sites in [by_requests, by_weight] {
        let (mut drawn, mut won) = ([0; 5], [0; 5]);
        for seed in 0..SEEDS {
            let mut bench = pool(with_policy(Policy::P2c), u64::from(seed), &sites);
            let decision = decide(&mut bench).expect("there is room");
            won[chosen(&decision)] += 1;
            for (at, site) in sites.iter().enumerate() {
                let load = site.in_flight() / f64::from(site.weight);
                drawn[at] += u32::from((score(&decision, at) - load).abs() < 1e-9);
            }
        }
        // Of 25 pairs nine have a given endpoint in them; the busiest wins only against itself.
        let each = f64::from(SEEDS) / 25.0;
        let expected = [9.0, 7.0, 5.0, 3.0, 1.0].map(|pairs| pairs * each);
        assert!(chi_square(&won, &expected) < 18.5, "{won:?}");
        assert!(chi_square(&drawn, &[9.0 * each; 5]) < 18.5, "{drawn:?}");
    }
}

#[test]
fn random_is_in_proportion_to_weight() {
    const SEEDS: u32 = 40;
    const ASKS: u32 = 100;
    for weights in [[1, 1, 1, 1], [1, 2, 3, 4], [7, 1, 0, 2]] {
        let mut counts = [0; 4];
        for seed in 0..SEEDS {
            let mut bench = Bench::new(with_policy(Policy::Random));
            bench.pool = Pool::new(with_policy(Policy::Random), u64::from(seed));
            for (id, weight) in (0..).zip(weights) {
                bench.up(id, |spec| spec.weight = weight);
            }
            for _ in 0..ASKS {
                bench.ask(&tokens(1, 16));
                let (_, booking, endpoint, _) = bench.last();
                counts[endpoint.0 as usize] += 1;
                let booking = *booking;
                bench.complete(booking);
            }
        }
        // A weight of nothing counts as one.
        let parts = weights.map(|weight| f64::from(weight.max(1)));
        let each = f64::from(SEEDS * ASKS) / parts.iter().sum::<f64>();
        let statistic = chi_square(&counts, &parts.map(|part| part * each));
        assert!(statistic < 16.3, "{weights:?}: {counts:?}");
    }
}

#[test]
fn equals_under_least_request_are_drawn_by_lot_and_nobody_else_is() {
    let sites = [(2, 1), (4, 2), (0, 1), (0, 4), (3, 3)].map(|(running, weight)| Site {
        weight,
        running,
        ..Site::default()
    });
    let mut counts = [0; 5];
    for seed in 0..100 {
        let mut bench = pool(with_policy(Policy::LeastRequest), seed, &sites);
        counts[chosen(&decide(&mut bench).expect("there is room"))] += 1;
    }
    assert_eq!(counts[2] + counts[3], 100, "{counts:?}");
    assert!(counts[2] >= 25 && counts[3] >= 25, "{counts:?}");
}

#[derive(Clone, Debug)]
enum RingStep {
    Up(u32),
    Down(u32),
    Draining(u32),
    /// A request, and whether it ends at once.
    Ask(bool),
    /// One of those in flight ends.
    End(usize),
}

fn ring_step() -> impl Strategy<Value = RingStep> {
    prop_oneof![
        3 => (0..6u32).prop_map(RingStep::Up),
        1 => (0..6u32).prop_map(RingStep::Down),
        1 => (0..6u32).prop_map(RingStep::Draining),
        8 => any::<bool>().prop_map(RingStep::Ask),
        2 => (0..100usize).prop_map(RingStep::End),
    ]
}

/// Who is there, who has how many, and who had the last.
#[derive(Default)]
struct Ring {
    up: std::collections::BTreeSet<u32>,
    in_flight: Vec<(u32, BookingId)>,
    last: Option<u32>,
}

impl Ring {
    fn take(&mut self, bench: &mut Bench, step: &RingStep) -> Result<(), TestCaseError> {
        match *step {
            RingStep::Up(id) => {
                self.up.insert(id);
                bench.up(id, |_| ());
            }
            RingStep::Down(id) => {
                self.up.remove(&id);
                bench.feed(Input::EndpointDown(EndpointId(id)));
            }
            RingStep::Draining(id) => {
                self.up.remove(&id);
                bench.feed(Input::Draining(EndpointId(id)));
            }
            RingStep::Ask(ends) => {
                let count = |id: u32| self.in_flight.iter().filter(|(at, _)| *at == id).count();
                let has_room = |id: &&u32| count(**id) < 2;
                let behind = self.up.iter().filter(has_room);
                let next = behind.clone().find(|id| Some(**id) > self.last);
                let Some(next) = next.or(behind.clone().next()).copied() else {
                    return Ok(());
                };
                bench.ask(&tokens(1, 100));
                let (_, booking, endpoint, _) = bench.last();
                prop_assert_eq!(endpoint.0, next, "after {:?}", self.last);
                self.last = Some(next);
                let booking = *booking;
                if ends {
                    bench.complete(booking);
                } else {
                    self.in_flight.push((next, booking));
                }
            }
            RingStep::End(at) => {
                if !self.in_flight.is_empty() {
                    let (_, booking) = self.in_flight.swap_remove(at % self.in_flight.len());
                    bench.complete(booking);
                }
            }
        }
        Ok(())
    }
}
