//! What must hold between two pools that differ in one thing.

use proptest::prelude::*;

use super::site::{Site, chosen, decide, pool, pool_of, score};
use super::*;

/// Policies whose scores say how good an endpoint is for a prompt.
const KNOWING: [Policy; 5] = [
    Policy::Planned,
    Policy::PredictedCost,
    Policy::TokenAware,
    Policy::Lmetric,
    Policy::Weighted,
];

fn site() -> impl Strategy<Value = Site> {
    let lengths = || prop::collection::vec(1..3000u32, 0..3);
    let pending = prop_oneof![Just(0), 0..5000u32, 100_000..300_000u32];
    let load = (0..4u32, 0..40u32, pending, 0..60u32);
    (load, lengths(), lengths(), 0..=100u32).prop_map(
        |((waiting, running, pending, kv), prefilling, decoding, held)| Site {
            weight: 1,
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

/// Endpoints, one of which is looked at, for a policy. Under the plan whatever prefills may hold the prompt back, so
/// nothing does.
fn scene(policies: &'static [Policy]) -> impl Strategy<Value = (Policy, Vec<Site>, usize)> {
    let sites = prop::collection::vec(site(), 1..6);
    let at = any::<prop::sample::Index>();
    (prop::sample::select(policies), sites, at).prop_map(|(policy, mut sites, at)| {
        if policy == Policy::Planned {
            for site in &mut sites {
                (site.waiting, site.pending) = (0, 0);
                site.prefilling.clear();
                site.decoding.clear();
            }
        }
        let at = at.index(sites.len());
        (policy, sites, at)
    })
}

fn decision(policy: Policy, sites: &[Site]) -> Option<Decision> {
    decide(&mut pool(with_policy(policy), 7, sites))
}

/// The endpoint scores no worse, and if it was clearly chosen it is chosen still.
fn check_no_worse(
    policy: Policy,
    before: &[Site],
    after: &[Site],
    at: usize,
) -> Result<(), TestCaseError> {
    let Some((before, after)) = decision(policy, before).zip(decision(policy, after)) else {
        return Ok(());
    };
    let (old, new) = (score(&before, at), score(&after, at));
    prop_assert!(new <= old + rounding(old), "{policy}: {old} became {new}");
    let is_tied = before.tie.is_some() || after.tie.is_some();
    if chosen(&before) == at && !is_tied {
        prop_assert_eq!(chosen(&after), at);
    }
    Ok(())
}

/// Prices of the plan are of single precision.
fn rounding(score: f64) -> f64 {
    1e-6 * (1.0 + score.abs())
}

/// Takes a part of the load away; `which` says what.
fn relieve(site: &mut Site, which: usize) {
    match which {
        0 => site.waiting /= 2,
        1 => site.running /= 2,
        2 => site.pending /= 2,
        3 => site.kv /= 2,
        4 => drop(site.prefilling.pop()),
        _ => drop(site.decoding.pop()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn more_of_the_prompt_cached_never_makes_an_endpoint_worse((policy, sites, at) in scene(&KNOWING), more in 1..=100u32) {
        let mut after = sites.clone();
        after[at].held = (after[at].held + more).min(100);
        check_no_worse(policy, &sites, &after, at)?;
    }

    #[test]
    fn less_load_never_makes_an_endpoint_worse((policy, sites, at) in scene(&KNOWING), which in 0..6usize) {
        let mut after = sites.clone();
        relieve(&mut after[at], which);
        check_no_worse(policy, &sites, &after, at)?;
    }

    #[test]
    fn an_idle_endpoint_more_never_raises_the_least_score((policy, sites, _) in scene(&KNOWING[..4])) {
        let least = |is_there: bool| {
            let mut bench = pool(with_policy(policy), 7, &sites);
            if is_there {
                bench.up(9, |spec| spec.models = vec!["m".into()]);
                bench.feed(Input::Observed { endpoint: EndpointId(9), observation: idle_metrics() });
            }
            Some(decide(&mut bench)?.candidates.iter().map(|candidate| candidate.score).fold(f64::INFINITY, f64::min))
        };
        if let Some((with, without)) = least(true).zip(least(false)) {
            prop_assert!(with <= without + rounding(without), "{policy}: {without} became {with}");
        }
    }

    #[test]
    fn the_order_in_which_endpoints_are_announced_changes_no_decision(
        (policy, sites, _) in scene(&Policy::ALL),
        lots in prop::collection::vec(any::<u64>(), 6),
        seed: u64,
    ) {
        let run = |order: &[usize]| {
            let mut bench = pool_of(with_policy(policy), seed, &sites, order);
            (0..3).for_each(|_| drop(decide(&mut bench)));
            bench.dispatched
        };
        let ascending: Vec<usize> = (0..sites.len()).collect();
        let mut drawn = ascending.clone();
        drawn.sort_by_key(|at| lots[*at]);
        prop_assert_eq!(run(&ascending), run(&drawn));
    }

    #[test]
    fn nobody_waits_while_the_pool_is_idle(steps in prop::collection::vec(traffic(), 1..120), policy in prop::sample::select(&Policy::ALL[..])) {
        let mut config = with_policy(policy);
        config.engine.depth = 2;
        let mut bench = Bench::with_endpoints(2, config);
        let mut in_flight = Vec::new();
        for step in steps {
            match step {
                Traffic::Ask { family, length, band } => {
                    bench.ask_with(&tokens(family, length), |request| request.band = Band(band));
                }
                Traffic::FirstToken(at) => {
                    if let Some(booking) = in_flight.get(at % in_flight.len().max(1)) {
                        bench.feed(Input::FirstToken(*booking));
                    }
                }
                Traffic::End(at) => {
                    if !in_flight.is_empty() {
                        let booking = in_flight.swap_remove(at % in_flight.len());
                        bench.complete(booking);
                    }
                }
                Traffic::Pass(ms) => bench.pass(Duration::from_millis(ms)),
            }
            in_flight.extend(bench.dispatched.drain(..).map(|sent| sent.1));
            let snapshot = bench.pool.snapshot(bench.now);
            prop_assert_eq!(snapshot.bookings, in_flight.len());
            let is_ready = snapshot.endpoints.iter().any(|endpoint| endpoint.state == EndpointState::Ready);
            if is_ready && in_flight.is_empty() {
                prop_assert_eq!(snapshot.queue_length, 0, "{:?}", policy);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Traffic {
    Ask { family: u32, length: u32, band: i32 },
    FirstToken(usize),
    End(usize),
    Pass(u64),
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let at = || 0..1000usize;
    let length = prop_oneof![1..500u32, 500..5_000u32, 5_000..60_000u32];
    prop_oneof![
        8 => (0..6u32, length, -1..2i32)
            .prop_map(|(family, length, band)| Traffic::Ask { family, length, band }),
        4 => at().prop_map(Traffic::FirstToken),
        8 => at().prop_map(Traffic::End),
        3 => (0..2_000u64).prop_map(Traffic::Pass),
    ]
}
