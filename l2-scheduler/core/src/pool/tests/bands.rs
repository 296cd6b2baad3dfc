//! Bands, displacement, shedding, aging, lateness, peers: what a pool does with who cannot go at once.

use super::*;
use crate::flow::{Aging, BandConfig, Refuse};
use crate::{EndpointLoad, LoadVector, PeerId, Scope};

/// A pool whose only endpoint is closed by a prompt that never ends its prefill.
fn closed(flow: FlowConfig) -> Bench {
    let mut config = PoolConfig {
        flow,
        ..PoolConfig::default()
    };
    config.engine.depth = 1;
    config.health.hang_floor = seconds(3_600.0);
    let mut bench = Bench::with_endpoints(1, config);
    bench.ask_with(&tokens(1, 100), |request| request.band = Band(100));
    assert_eq!(bench.dispatched.len(), 1);
    bench
}

fn ask_in(bench: &mut Bench, band: i32, bytes: u64) -> RequestKey {
    bench.ask_with(&tokens(2, 100), |request| {
        request.band = Band(band);
        request.bytes = bytes;
    })
}

/// Teaches the pool what its engine can do, so that it knows who is late, and closes the endpoint again.
fn learn(bench: &mut Bench) {
    let busy_with = bench.dispatched[0].1;
    bench.complete(busy_with);
    for at in 0..10 {
        bench.ask(&tokens(10 + at, 100));
        let booking = bench.last().1;
        bench.feed(Input::FirstToken(booking));
        bench.complete(booking);
    }
    bench.ask(&tokens(50, 100));
}

fn kind(bench: &Bench, key: RequestKey) -> Option<RefusalKind> {
    bench.refusal(key).map(|refusal| refusal.kind)
}

#[test]
fn a_full_pool_displaces_the_newest_below_zero_for_whoever_is_above() {
    let limits = Limits {
        requests: 3,
        bytes: 1_000,
    };
    let mut bench = closed(FlowConfig {
        pool_limits: limits,
        ..FlowConfig::default()
    });
    // An idle moment of saturation would shed them: a ceiling of one and an endpoint not yet saturated lets them wait.
    let low: Vec<_> = [-2, -1, -2]
        .map(|band| ask_in(&mut bench, band, 100))
        .into();
    let shed = low
        .iter()
        .filter(|key| kind(&bench, **key) == Some(RefusalKind::Shed))
        .count();
    assert_eq!(shed, 3, "a saturated pool takes nothing below zero");
    let first = ask_in(&mut bench, 1, 100);
    let second = ask_in(&mut bench, 0, 100);
    let third = ask_in(&mut bench, 0, 100);
    let over = ask_in(&mut bench, 5, 100);
    assert_eq!(
        kind(&bench, over),
        Some(RefusalKind::QueueFull(Scope::Pool)),
        "zero is not displaced"
    );
    for key in [first, second, third] {
        assert_eq!(kind(&bench, key), None);
    }
}

#[test]
fn one_large_request_may_displace_several_small_ones_and_nobody_above_it() {
    let mut bench = closed(FlowConfig {
        pool_limits: Limits {
            requests: 10,
            bytes: 1_000,
        },
        other_bands: BandConfig {
            // Beyond any saturation: what is below zero may wait.
            ceiling: 2.0,
            ..BandConfig::default()
        },
        ..FlowConfig::default()
    });
    let low: Vec<_> = [-1, -2, -1, -2]
        .map(|band| ask_in(&mut bench, band, 250))
        .into();
    assert!(
        low.iter().all(|key| kind(&bench, *key).is_none()),
        "all fit"
    );
    let equal = ask_in(&mut bench, -2, 250);
    assert_eq!(
        kind(&bench, equal),
        Some(RefusalKind::QueueFull(Scope::Pool))
    );
    let large = ask_in(&mut bench, 0, 600);
    assert_eq!(kind(&bench, large), None);
    let gone: Vec<bool> = low
        .iter()
        .map(|key| kind(&bench, *key) == Some(RefusalKind::Displaced))
        .collect();
    assert_eq!(
        gone,
        [false, true, true, true],
        "lowest band first, newest first"
    );
    assert!(bench.pool.snapshot(bench.now).queue_bytes <= 1_000);
}

#[test]
fn waiting_raises_a_request_one_band_at_a_time_and_never_into_the_highest() {
    let aging = BandConfig {
        aging: Aging::Every(seconds(20.0)),
        refuse: Refuse::Never,
        ..BandConfig::default()
    };
    let bands = [0, 1, 2].map(|band| (Band(band), aging.clone()));
    let mut bench = closed(FlowConfig {
        bands: bands.into_iter().collect(),
        ..FlowConfig::default()
    });
    ask_in(&mut bench, 0, 10);
    let mut seen = Vec::new();
    for second in 1..=55 {
        bench.pass(seconds(1.0));
        let snapshot = bench.pool.snapshot(bench.now);
        let waiting = snapshot.bands.iter().find(|band| band.waiting > 0);
        if let Some(band) = waiting
            && seen.last().is_none_or(|(_, last)| *last != band.band)
        {
            seen.push((second, band.band));
        }
    }
    assert_eq!(
        seen.iter().map(|(_, band)| *band).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert!(
        seen[1].0 >= 20 && seen[2].0 >= 40,
        "{seen:?}: not before its time"
    );
}

#[test]
fn a_late_request_that_may_not_be_refused_waits_behind_those_who_can_make_it() {
    let mut bench = closed(FlowConfig {
        other_bands: BandConfig {
            refuse: Refuse::Never,
            ..BandConfig::default()
        },
        ..FlowConfig::default()
    });
    learn(&mut bench);
    let busy_with = bench.last().1;
    let late = bench.ask_with(&tokens(51, 100), |request| {
        request.targets.ttft = Some(Duration::from_millis(500));
    });
    bench.pass(seconds(0.6));
    let in_time = bench.ask_with(&tokens(52, 100), |request| {
        request.targets.ttft = Some(Duration::from_millis(380));
    });
    bench.complete(busy_with);
    assert_eq!(bench.last().0, in_time);
    let booking = bench.last().1;
    bench.complete(booking);
    assert_eq!(bench.last().0, late);
    assert_eq!(kind(&bench, late), None);
}

#[test]
fn a_doomed_request_is_refused_with_the_wait() {
    let mut bench = closed(FlowConfig::default());
    learn(&mut bench);
    let doomed = bench.ask_with(&tokens(51, 100), |request| {
        request.targets.ttft = Some(Duration::from_millis(500));
    });
    bench.pass(seconds(0.6));
    let refusal = bench.refusal(doomed).expect("it cannot make it");
    assert_eq!(refusal.kind.code(), "queue_wait");
    assert!(refusal.predicted_wait.is_some() && refusal.retry_after.is_some());
    assert!(
        bench
            .pool
            .snapshot(bench.now)
            .bands
            .iter()
            .any(|band| band.overloaded)
    );
}

#[test]
fn odd_requests_are_served_or_refused_and_harm_nobody() {
    let mut bench = Bench::with_endpoints(1, PoolConfig::default());
    let key = bench.ask_with(&tokens(1, 50), |request| {
        request.band = Band(i32::MIN);
        request.weight = 0;
    });
    assert_eq!(
        bench.last().0,
        key,
        "an unknown band has the settings of the others"
    );
    let past = bench.ask_with(&tokens(2, 50), |request| {
        request.expires_at = Some(Timestamp(1));
    });
    assert_eq!(kind(&bench, past), Some(RefusalKind::QueueExpired));
    let absurd = bench.ask_with(&tokens(3, 50), |request| {
        request.targets.ttft = Some(Duration::MAX);
        request.targets.tpot = Some(Duration::ZERO);
    });
    assert_eq!(kind(&bench, absurd), None);
    // A clock that goes back stands still.
    let now = bench.now;
    bench.now = Timestamp(5);
    bench.ask(&tokens(4, 50));
    bench.now = now;
    bench.up(0, |_| ());
    bench.up(0, |_| ());
    assert_eq!(
        bench.pool.snapshot(bench.now).endpoints.len(),
        1,
        "the same endpoint twice is one"
    );
    while let Some((_, booking, _, _)) = bench.dispatched.pop() {
        bench.end(booking, AttemptEnd::ClientClosed);
    }
    bench.pass(seconds(61.0));
    while let Some((_, booking, _, _)) = bench.dispatched.pop() {
        bench.end(booking, AttemptEnd::ClientClosed);
    }
    assert!(bench.at_rest());
}

#[test]
fn a_band_that_is_removed_while_requests_wait_in_it_serves_them() {
    let mut bench = closed(FlowConfig {
        bands: [(Band(3), BandConfig::default())].into_iter().collect(),
        ..FlowConfig::default()
    });
    let key = ask_in(&mut bench, 3, 10);
    bench.feed(Input::Reconfigure(Box::default()));
    let busy_with = bench.dispatched[0].1;
    bench.complete(busy_with);
    assert_eq!(bench.last().0, key);
    let booking = bench.last().1;
    bench.complete(booking);
    assert!(bench.at_rest());
    assert!(
        bench
            .pool
            .snapshot(bench.now)
            .bands
            .iter()
            .all(|band| band.waiting + band.running == 0)
    );
}

fn load(endpoint: &str, tokens: u64) -> EndpointLoad {
    EndpointLoad {
        endpoint: endpoint.into(),
        prefilling: 1,
        pending_tokens: tokens,
        pending_double_area: tokens * tokens,
        pending_context: tokens,
        decoding: 2,
        decoding_context: 2_000,
        slack: [0, 0, 0, 2, 0, 0, 0, 0],
    }
}

#[test]
fn what_others_say_of_an_endpoint_counts_for_a_moment_and_replaces_what_they_said() {
    let mut bench = Bench::with_endpoints(2, PoolConfig::default());
    let seen = |bench: &Bench| bench.pool.snapshot(bench.now).endpoints[0].effective_load;
    let tell = |bench: &mut Bench, peer: u64, endpoints: Vec<EndpointLoad>| {
        bench.feed(Input::PeerLoad {
            peer: PeerId(peer),
            vector: LoadVector {
                endpoints,
                ..LoadVector::default()
            },
        });
    };
    let both = vec![
        load("engine-0", 8_000),
        load("engine-0", 8_000),
        load("nowhere", 1),
    ];
    tell(&mut bench, 1, both);
    assert_eq!(seen(&bench), 3, "once, and only where it is known");
    tell(&mut bench, 1, vec![load("engine-0", 8_000)]);
    assert_eq!(seen(&bench), 3, "replaced");
    tell(&mut bench, 2, vec![load("engine-0", 8_000)]);
    assert_eq!(seen(&bench), 6);
    bench.ask(&tokens(1, 500));
    assert_eq!(bench.last().2, EndpointId(1), "the loaded one is avoided");
    bench.pass(seconds(0.5));
    assert_eq!(seen(&bench), 0, "old news is dropped");
    for peer in 0..100 {
        tell(&mut bench, peer, Vec::new());
    }
    assert_eq!(bench.pool.snapshot(bench.now).peers, 64);
    assert_eq!(
        bench.pool.whole_load(bench.now).endpoints.len(),
        1,
        "our own"
    );
    bench.pass(seconds(20.0));
    assert_eq!(
        bench.pool.snapshot(bench.now).peer_silence_s,
        None,
        "they are gone"
    );
}

#[test]
fn what_a_scheduler_sends_is_found_by_the_others_where_it_went() {
    let [mut one, mut other] = [(); 2].map(|()| {
        let mut config = PoolConfig::default();
        config.peers.every = Some(seconds(0.1));
        let mut bench = Bench::with_endpoints(8, config);
        let vector = LoadVector::default();
        let peer = PeerId(1);
        bench.feed(Input::PeerLoad { peer, vector });
        bench
    });
    one.ask(&tokens(1, 4_000));
    let vector = one.pool.whole_load(one.now);
    assert_eq!(vector.sent.len(), 1);
    assert_eq!(one.pool.whole_load(one.now).sent, [], "told once");
    // Its load is over by now, its prompt is still cached.
    let vector = LoadVector {
        sent: vector.sent,
        ..LoadVector::default()
    };
    let peer = PeerId(1);
    other.feed(Input::PeerLoad { peer, vector });
    other.ask(&tokens(1, 4_000));
    assert_eq!(other.last().2, one.last().2);
    assert!(other.last().3.predicted.cached_tokens >= 3_900);
    // More than fits into one vector.
    for prompt in 2..20 {
        one.ask(&tokens(prompt, 24_000));
    }
    let told = one.pool.whole_load(one.now).sent;
    let blocks: usize = told.iter().map(|prompt| prompt.blocks.len()).sum();
    assert_eq!(blocks, 8192);
}
