//! The board against the formulas of the plan written down plainly, weighing everything.

use governance_context::Band;
use proptest::prelude::*;

use super::*;
use crate::cost::{StepModel, attention_area, cost};
use crate::filters::Eligible;
use crate::policy::SLIGHT;
use crate::residency::hash_bytes;
use crate::{BookingId, Timestamp};

/// So many places are all weighed.
const WEIGHED: usize = 8;
const NOW: Timestamp = Timestamp(100_000_000_000);
const MODELS: [(f64, u32); 2] = [(9_000.0, 8192), (20_000.0, 2048)];

#[derive(Clone, Debug)]
struct Case {
    ask: Ask,
    spread: u64,
    places: Vec<(Spot, Vec<Stream>, u32)>,
}

fn stream() -> impl Strategy<Value = Stream> {
    (0.0..60.0f64, 0.0..2.0f64, 1.0..900.0f64, any::<bool>()).prop_map(
        |(seconds, pace, expected, is_seen)| Stream {
            booking: BookingId(0),
            first_at: Timestamp(NOW.0 - (seconds * 1e9) as u64),
            output: (seconds * 10.0 * pace) as u32,
            tpot_s: if expected < 50.0 { 0.03 } else { 0.1 },
            expected,
            is_seen,
            band: (seconds * 10.0) as i32 % 3,
        },
    )
}

fn place() -> impl Strategy<Value = (Spot, Vec<Stream>, u32)> {
    (
        prop::collection::vec(stream(), 0..20),
        (0..2usize, 0.5..2.0f64, 0u64..60_000, 0..3u32),
        (0u64..30_000, 0.0..3.0f64, 0.0..400_000.0f64, 0.0..0.5f64),
        (0..9000u32, any::<u64>(), prop::array::uniform8(0..3u32)),
    )
        .prop_map(
            |(streams, (class, pace, context, prefilling), load, rest)| {
                let (pending, since, kv_used, handicap_s) = load;
                let (rate, batch) = MODELS[class];
                let model = StepModel::from_prefill_rate(rate, batch);
                let pending = if prefilling > 0 { pending as f64 } else { 0.0 };
                let mut spot = Spot {
                    index: 0,
                    now: NOW,
                    holds_until: Timestamp::MAX,
                    is_ready: true,
                    name_hash: rest.1,
                    class: class as u32,
                    model,
                    pace,
                    decoding: streams.len() as f64,
                    context: context as f64,
                    over: 0.0,
                    step_s: 0.0,
                    pending_tokens: pending,
                    pending_area: pending * pending / 2.0,
                    prefilling: f64::from(prefilling),
                    front: (NOW.before(std::time::Duration::from_secs_f64(since)), 0.0),
                    front_work: (pending / 2.0, pending * pending / 8.0),
                    in_flight: 0,
                    others: 0,
                    places: 10,
                    depth: 4,
                    sharing: 1.0,
                    kv_used,
                    kv_capacity: 400_000.0,
                    handicap_s,
                    peer_slack: rest.2,
                    backlog_s: 0.0,
                    queue_s: 0.0,
                    steps_left: 0.0,
                    full_step_s: 0.0,
                    is_reserved: false,
                };
                spot.relearn(model);
                (spot, streams, rest.0)
            },
        )
}

fn case() -> impl Strategy<Value = Case> {
    (
        prop::collection::vec(place(), 1..25),
        (
            1..40_000u32,
            1.0..900.0f64,
            0.0..20.0f64,
            0.0..0.8f64,
            0.0..9.0f64,
        ),
        any::<u64>(),
        any::<bool>(),
    )
        .prop_map(
            |(mut places, (prompt, output, kappa, utilisation, left_s), spread, is_even)| {
                // Often all are alike, so that ties matter.
                if is_even {
                    let first = places[0].clone();
                    for place in &mut places {
                        let name_hash = place.0.name_hash;
                        *place = first.clone();
                        place.0.name_hash = name_hash;
                    }
                }
                for (index, (spot, _, cached)) in places.iter_mut().enumerate() {
                    spot.index = index as u32;
                    *cached = (*cached).min(prompt - 1);
                }
                Case {
                    ask: Ask {
                        prompt,
                        tpot_s: 0.1,
                        output,
                        kappa,
                        utilisation,
                        left_s,
                        band: Band((spread % 3) as i32),
                    },
                    spread,
                    places,
                }
            },
        )
}

/// Chance that a stream ends before it has made up for `behind`.
fn miss(behind: f64, gain: f64, expected: f64) -> f64 {
    if behind <= 0.0 {
        0.0
    } else {
        1.0 - (-behind / (gain * expected.max(1.0))).exp()
    }
}

fn misses(spot: &Spot, streams: &[Stream], uncached: u32, prefill_s: f64, ask: &Ask) -> f64 {
    let steps = spot.model.steps(f64::from(uncached));
    let mut sum = 0.0;
    let mut add = |count: f64, tpot_s: f64, slack: f64, before: f64, expected: f64| {
        let own = (prefill_s - tpot_s * steps).max(0.0);
        if spot.step_s < tpot_s {
            let gain = tpot_s - (spot.step_s / (1.0 - ask.utilisation)).min(0.9 * tpot_s);
            let chance = |behind| miss(behind, gain, expected);
            sum += count * (chance(before + own - slack) - chance(before - slack));
        }
    };
    let before = |tpot_s: f64| (spot.queue_s - tpot_s * spot.steps_left).max(0.0);
    for stream in streams.iter().filter(|stream| stream.band >= ask.band.0) {
        let slack = stream.slack(NOW, spot.step_s);
        let before = before(stream.tpot_s);
        add(1.0, stream.tpot_s, slack, before, stream.expected);
    }
    add(spot.prefilling, ask.tpot_s, 0.0, 0.0, ask.output);
    let slacks = [0.0, 0.125, 0.375, 0.75, 1.5, 3.0, 6.0, 16.0];
    for (count, slack) in spot.peer_slack.iter().zip(slacks) {
        add(
            f64::from(*count),
            ask.tpot_s,
            slack,
            before(ask.tpot_s),
            ask.output,
        );
    }
    sum
}

/// What the board should know of every place: seconds of prefill, and the cost with and without misses.
fn reference(case: &Case) -> Vec<(f64, f64, f64)> {
    let ask = &case.ask;
    let prefill = |(spot, _, cached): &(Spot, Vec<Stream>, u32)| {
        let uncached = ask.prompt - cached;
        let area = attention_area(uncached, *cached);
        spot.model.prefill(f64::from(uncached), area, spot.over) * spot.pace
    };
    let least = case
        .places
        .iter()
        .map(prefill)
        .fold(f64::INFINITY, f64::min);
    let price = |place: &(Spot, Vec<Stream>, u32)| {
        let (spot, streams, cached) = place;
        let prefill_s = prefill(place);
        let is_late = spot.queue_s + 1.3 * prefill_s + 0.3 > ask.left_s;
        let late_s = if is_late { 10.0 } else { 0.0 };
        let base = cost(&spot.offer(prefill_s), ask.kappa, least) + late_s;
        let misses = |stall_s| misses(spot, streams, ask.prompt - cached, stall_s, ask);
        let now = MISS_S * misses(prefill_s);
        let time_s = ask.left_s - (spot.queue_s + 1.3 * prefill_s + 0.3);
        let gain = 0.6 * (ask.tpot_s / spot.step_s - 1.0).max(0.0);
        let rested = [0.25, 0.5, 1.0, 1.5, 2.5]
            .into_iter()
            .filter(|rest_s| now > MISS_S * HOLD && *rest_s <= time_s)
            .map(|rest_s| 3.0 * rest_s + MISS_S * misses((prefill_s - gain * rest_s).max(0.0)));
        (prefill_s, base + rested.fold(now, f64::min), base)
    };
    case.places.iter().map(price).collect()
}

fn board(case: &Case) -> Board {
    let mut board = Board::default();
    for (spot, ..) in &case.places {
        board.push(spot.clone());
    }
    board.advance(NOW);
    let cached = case.places.iter().map(|place| place.2);
    board.take((0..).zip(cached));
    board
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_proposal_is_what_weighing_everything_would_propose(case in case()) {
        let expected = reference(&case);
        let mut board = board(&case);
        let mut eligible = Eligible::default();
        eligible.fill(0..case.places.len() as u32);
        let streams = |index: u32| &*case.places[index as usize].1;
        let proposal = board.propose(&case.ask, &eligible, streams, case.spread);
        let proposal = proposal.expect("there are places");
        let (prefill_s, cost, _) = expected[proposal.best as usize];
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-4 * (1.0 + a.abs());
        prop_assert!(close(prefill_s, proposal.prefill_s));
        prop_assert!(close(cost, board.cost(proposal.best)), "{} {cost}", board.cost(proposal.best));
        let soonest = expected.iter().zip(&case.places);
        let soonest = soonest.map(|((prefill_s, ..), (spot, ..))| spot.queue_s + 1.3 * prefill_s + 0.3);
        prop_assert!(close(soonest.fold(f64::INFINITY, f64::min), proposal.soonest_s));

        // Of many, only the cheapest are weighed. (One less than they are: the last may be another by rounding.)
        let mut by_base: Vec<_> = expected.iter().map(|(_, cost, base)| (*base, *cost)).collect();
        by_base.sort_by(|a, b| a.0.total_cmp(&b.0));
        let is_few = by_base.len() <= WEIGHED;
        by_base.truncate(if is_few { WEIGHED } else { WEIGHED - 1 });
        let least = by_base.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
        let limit = SLIGHT.limit(least);
        prop_assert!(cost <= limit + 1e-4 * (1.0 + limit.abs()), "{cost} of {least}");
        // Whoever is as good as the best beyond all doubt, and would win the tie, must not have been passed over.
        let rank = |index: u32| {
            let spot = &case.places[index as usize].0;
            let percent = (spot.kv_used / spot.kv_capacity * 100.0) as u32;
            let lot = hash_bytes(case.spread, &spot.name_hash.to_le_bytes());
            (percent, std::cmp::Reverse(lot), index)
        };
        let is_equal = |index: &u32| {
            expected[*index as usize].1 <= limit - 1e-4 * (1.0 + limit.abs())
        };
        let equals: Vec<u32> = eligible.indices().iter().copied().filter(is_equal).collect();
        if is_few {
            let first = equals.iter().map(|index| rank(*index)).min();
            prop_assert!(first.is_none_or(|first| rank(proposal.best) <= first));
        }
        prop_assert_eq!(board.ranking(proposal.best)[0], proposal.best);
    }

    #[test]
    fn what_one_request_was_told_of_does_not_count_for_the_next(case in case()) {
        let mut used = board(&case);
        let mut eligible = Eligible::default();
        eligible.fill(0..case.places.len() as u32);
        let streams = |index: u32| &*case.places[index as usize].1;
        used.propose(&case.ask, &eligible, streams, case.spread);
        used.take(std::iter::empty());
        let mut fresh = board(&case);
        fresh.take(std::iter::empty());
        for board in [&mut used, &mut fresh] {
            board.propose(&case.ask, &eligible, streams, case.spread);
        }
        for index in eligible.indices().iter().copied() {
            prop_assert_eq!(used.cost(index).to_bits(), fresh.cost(index).to_bits());
            prop_assert_eq!(used.toll(index), fresh.toll(index));
        }
    }
    #[test]
    fn what_streams_can_bear_is_true_as_time_passes(case in case(), seconds in 0.0..30.0f64) {
        let mut eligible = Eligible::default();
        eligible.fill(0..case.places.len() as u32);
        let streams = |index: u32| &*case.places[index as usize].1;
        let (mut kept, mut fresh) = (board(&case), board(&case));
        kept.propose(&case.ask, &eligible, streams, case.spread);
        let cached = case.places.iter().map(|place| place.2);
        for board in [&mut kept, &mut fresh] {
            board.advance(Timestamp(NOW.0 + (seconds * 1e9) as u64));
            board.take((0..).zip(cached.clone()));
            board.propose(&case.ask, &eligible, streams, case.spread);
        }
        for index in eligible.indices().iter().copied() {
            if let (Some(kept), Some(fresh)) = (kept.toll(index), fresh.toll(index)) {
                prop_assert!((kept.misses - fresh.misses).abs() < 1e-4, "{kept:?} kept, {fresh:?} anew");
            }
        }
    }
}
