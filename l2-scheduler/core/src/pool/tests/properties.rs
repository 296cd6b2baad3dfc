//! Any interleaving of events against plain bookkeeping on the side.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::endpoint::Endpoint;
use crate::plan;

#[derive(Clone, Debug)]
enum Step {
    Up {
        id: u32,
        generation: u64,
        model: u8,
    },
    Down(u32),
    Draining(u32),
    Observed {
        id: u32,
        load: u32,
        start: u32,
    },
    ScrapeFailed(u32),
    Arrive {
        prompt: u32,
        length: u32,
        model: u8,
        streaming: bool,
        ttl_ms: Option<u64>,
    },
    Cancel(usize),
    FirstToken(usize),
    Progress(usize, u64),
    Finished(usize, u8),
    Retry(usize),
    Probed(u32, bool),
    Pass(u64),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0..5u32;
    let at = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        4 => (id(), 0..2u64, 0..3u8).prop_map(|(id, generation, model)| Step::Up { id, generation, model }),
        1 => id().prop_map(Step::Down),
        1 => id().prop_map(Step::Draining),
        3 => (id(), 0..9u32, 0..2u32).prop_map(|(id, load, start)| Step::Observed { id, load, start }),
        1 => id().prop_map(Step::ScrapeFailed),
        20 => (0..6u32, 1..400u32, 0..3u8, any::<bool>(), prop::option::of(0..20_000u64))
            .prop_map(|(prompt, length, model, streaming, ttl_ms)| Step::Arrive { prompt, length, model, streaming, ttl_ms }),
        3 => at().prop_map(Step::Cancel),
        6 => at().prop_map(Step::FirstToken),
        6 => (at(), 0..500u64).prop_map(|(at, tokens)| Step::Progress(at, tokens)),
        12 => (at(), 0..5u8).prop_map(|(at, end)| Step::Finished(at, end)),
        2 => at().prop_map(Step::Retry),
        2 => (id(), any::<bool>()).prop_map(|(id, ok)| Step::Probed(id, ok)),
        8 => (0..5_000u64).prop_map(Step::Pass),
        1 => Just(Step::Drain),
    ]
}

/// What must be true, kept the obvious way.
#[derive(Default)]
struct Reference {
    /// Outcomes still owed, by key.
    owed: BTreeSet<RequestKey>,
    in_flight: BTreeMap<BookingId, (RequestKey, EndpointId)>,
    /// What was sent to a running engine, by endpoint; emptied when another engine takes its place.
    engine: BTreeMap<EndpointId, ((u64, bool), BTreeSet<BookingId>)>,
    ended: Vec<(RequestKey, EndpointId)>,
}

impl Reference {
    fn settle(&mut self, bench: &mut Bench) -> Result<(), TestCaseError> {
        for (key, booking, endpoint, decision) in bench.dispatched.drain(..) {
            prop_assert!(self.owed.remove(&key), "{key:?} had its outcome already");
            prop_assert!(self.in_flight.insert(booking, (key, endpoint)).is_none());
            let (_, sent) = self
                .engine
                .get_mut(&endpoint)
                .expect("dispatched to a known endpoint");
            sent.insert(booking);
            prop_assert!(decision.candidates.len() <= 16);
            prop_assert_eq!(&*decision.chosen, format!("engine-{}", endpoint.0));
        }
        for (key, _) in bench.refused.drain(..) {
            prop_assert!(self.owed.remove(&key), "{key:?} had its outcome already");
        }
        for booking in bench.abandoned.drain(..) {
            prop_assert!(self.in_flight.contains_key(&booking));
        }
        let snapshot = bench.pool.snapshot(bench.now);
        prop_assert_eq!(snapshot.queue_length, self.owed.len());
        prop_assert_eq!(snapshot.bookings, self.in_flight.len());
        for endpoint in &snapshot.endpoints {
            let sent = self
                .engine
                .get(&endpoint.id)
                .map_or(0, |(_, sent)| sent.len());
            prop_assert_eq!(endpoint.bookings as usize, sent);
            prop_assert!(endpoint.effective_load >= endpoint.bookings);
        }
        the_board_is_as_if_made_anew(bench)?;
        // Work conservation: a second look at the same moment finds nobody who could go.
        bench.pool.wants_plan = true;
        prop_assert!(bench.pool.poll_output().is_none(), "somebody was left");
        if bench.pool.config.policy != Policy::Planned {
            self.nobody_waits_beside_room(bench)?;
        }
        Ok(())
    }

    /// Who is bound at arrival waits only while no endpoint has room. (A retry may wait for one that is not tried yet.)
    fn nobody_waits_beside_room(&self, bench: &mut Bench) -> Result<(), TestCaseError> {
        let mut picks = Vec::new();
        let flow = bench.pool.config.flow.clone();
        bench.pool.queue.order(bench.now, &flow, 100, &mut picks);
        prop_assert_eq!(picks.len(), self.owed.len());
        for pick in picks {
            let waiting = bench.pool.queue.get(pick.place).expect("it waits");
            let open = |e: &Endpoint| {
                e.is_up()
                    && !e.health.is_quarantined()
                    && e.load.count() < e.room.places()
                    && e.serves(waiting.model)
            };
            let is_retry = !waiting.request.tried.is_empty();
            prop_assert!(is_retry || !bench.pool.endpoints.iter().any(open));
        }
        Ok(())
    }

    fn booking(&self, at: usize) -> Option<BookingId> {
        self.in_flight
            .keys()
            .nth(at % self.in_flight.len().max(1))
            .copied()
    }

    fn end(&mut self, booking: BookingId) {
        if let Some((key, endpoint)) = self.in_flight.remove(&booking) {
            if let Some((_, sent)) = self.engine.get_mut(&endpoint) {
                sent.remove(&booking);
            }
            self.ended.push((key, endpoint));
        }
    }
}

/// What is kept of endpoints from turn to turn is what a look at all of them would say now.
pub(super) fn the_board_is_as_if_made_anew(bench: &mut Bench) -> Result<(), TestCaseError> {
    let pool = &mut bench.pool;
    let now = pool.now;
    let mut scratch = std::mem::take(&mut pool.scratch);
    pool.survey(now, &mut scratch);
    for index in 0..pool.endpoints.len() as u32 {
        let kept = scratch.board.spot(index);
        let mut anew = pool.spot(now, index);
        // When it was measured tells when it has to be measured again.
        anew.holds_until = kept.holds_until;
        prop_assert_eq!(format!("{kept:?}"), format!("{anew:?}"));
    }
    let asks = [(0, 0.0, 0.0, 400), (1, 3.0, 0.4, 30_000)];
    for (band, kappa, utilisation, prompt) in asks {
        let ask = plan::Ask {
            prompt,
            tpot_s: 0.1,
            output: 300.0,
            kappa,
            utilisation,
            left_s: 4.0,
            band: Band(band),
        };
        let mut fresh = plan::Board::default();
        let all = 0..pool.endpoints.len() as u32;
        for index in all.clone() {
            fresh.push(pool.spot(now, index));
        }
        fresh.advance(now);
        let Scratch { filters, board, .. } = &mut scratch;
        filters.eligible.fill(all.clone());
        // It is no longer what the last request was shown.
        filters.retain(|_| true);
        let mut costs = Vec::new();
        for board in [board, &mut fresh] {
            board.take(std::iter::empty());
            let streams = |index: u32| pool.endpoints[index as usize].load.streams();
            board.propose(&ask, &filters.eligible, streams, 7);
            costs.push(
                all.clone()
                    .map(|index| (board.cost(index), board.toll(index)))
                    .collect::<Vec<_>>(),
            );
        }
        for (kept, anew) in costs[0].iter().zip(&costs[1]) {
            let is_close = kept.1.is_some() != anew.1.is_some()
                || (kept.0 - anew.0).abs() <= 1e-3 * (1.0 + anew.0.abs());
            prop_assert!(is_close, "{kept:?} kept, {anew:?} anew");
        }
    }
    pool.scratch = scratch;
    Ok(())
}

fn apply(bench: &mut Bench, reference: &mut Reference, step: &Step) {
    match *step {
        Step::Up {
            id,
            generation,
            model,
        } => {
            let known = reference.engine.entry(EndpointId(id)).or_default();
            if known.0 != (generation, true) {
                // Another generation; the same one may return from a pause with its attempts.
                if known.0.0 != generation {
                    known.1.clear();
                }
                known.0 = (generation, true);
            }
            bench.up(id, |spec| {
                spec.generation = generation;
                spec.models = if model == 2 {
                    Vec::new()
                } else {
                    vec![format!("m{model}")]
                };
            });
        }
        Step::Down(id) => bench.feed(Input::EndpointDown(EndpointId(id))),
        Step::Draining(id) => bench.feed(Input::Draining(EndpointId(id))),
        Step::Observed { id, load, start } => {
            let start_time_s = Some(f64::from(1000 + start * 500));
            let observation = Observation {
                running: Some(load),
                start_time_s,
                ..idle_metrics()
            };
            bench.feed(Input::Observed {
                endpoint: EndpointId(id),
                observation,
            });
        }
        Step::ScrapeFailed(id) => bench.feed(Input::ScrapeFailed {
            endpoint: EndpointId(id),
        }),
        Step::Arrive {
            prompt,
            length,
            model,
            streaming,
            ttl_ms,
        } => {
            reference.owed.insert(RequestKey(bench.next_key));
            let expires_at = ttl_ms.map(|ttl| bench.now + Duration::from_millis(ttl));
            bench.ask_with(&tokens(prompt, length), |request| {
                request.model = named(&format!("m{model}"));
                request.streaming = streaming;
                request.expires_at = expires_at;
            });
        }
        Step::Cancel(at) => {
            if let Some(key) = reference
                .owed
                .iter()
                .nth(at % reference.owed.len().max(1))
                .copied()
            {
                bench.feed(Input::Cancel(key));
            }
        }
        Step::FirstToken(at) => {
            if let Some(booking) = reference.booking(at) {
                bench.feed(Input::FirstToken(booking));
            }
        }
        Step::Progress(at, output_tokens) => {
            if let Some(booking) = reference.booking(at) {
                bench.feed(Input::Progress {
                    booking,
                    output_tokens,
                });
            }
        }
        Step::Finished(at, end) => {
            if let Some(booking) = reference.booking(at) {
                reference.end(booking);
                let end = instant::end(end);
                bench.end(booking, end);
                bench.end(booking, end);
            }
        }
        Step::Retry(at) => {
            if !reference.ended.is_empty() {
                let (key, endpoint) = reference.ended.swap_remove(at % reference.ended.len());
                reference.owed.insert(key);
                let request = Request {
                    tried: vec![endpoint],
                    model: named("m0"),
                    ..request(key, &tokens(1, 50))
                };
                bench.feed(Input::Arrive(Box::new(request)));
            }
        }
        Step::Probed(id, ok) => bench.feed(Input::Probed {
            endpoint: EndpointId(id),
            ok,
        }),
        Step::Pass(ms) => bench.pass(Duration::from_millis(ms)),
        Step::Drain => bench.feed(Input::Drain),
    }
}

fn config(policy: Policy) -> PoolConfig {
    PoolConfig {
        policy,
        ..limited(6, u64::MAX, with_room(3))
    }
}

fn log(bench: &Bench) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        bench.dispatched, bench.refused, bench.abandoned, bench.probes
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_has_one_outcome_and_every_counter_is_true(steps in prop::collection::vec(step(), 1..150), policy in 0..Policy::ALL.len()) {
        let mut bench = Bench::new(config(Policy::ALL[policy]));
        let mut reference = Reference::default();
        for step in steps {
            apply(&mut bench, &mut reference, &step);
            // News of load are looked at a little later.
            bench.pass(Duration::from_millis(10));
            bench.look_again();
            reference.settle(&mut bench)?;
        }
        while let Some(booking) = reference.booking(0) {
            reference.end(booking);
            bench.end(booking, AttemptEnd::ClientClosed);
            reference.settle(&mut bench)?;
        }
        // Nobody waits for ever.
        bench.pass(seconds(61.0));
        for (_, booking, _, _) in bench.dispatched.clone() {
            bench.end(booking, AttemptEnd::ClientClosed);
        }
        bench.pass(seconds(61.0));
        prop_assert_eq!(bench.pool.queue.len(), 0);
        for (_, booking, _, _) in bench.dispatched.clone() {
            bench.end(booking, AttemptEnd::ClientClosed);
        }
        prop_assert!(bench.at_rest());
    }

    #[test]
    fn the_same_inputs_and_seed_give_the_same_outputs(steps in prop::collection::vec(step(), 1..100), policy in 0..Policy::ALL.len()) {
        let run = || {
            let mut bench = Bench::new(config(Policy::ALL[policy]));
            let mut reference = Reference::default();
            let mut lines = Vec::new();
            for step in steps.clone() {
                apply(&mut bench, &mut reference, &step);
                lines.push(log(&bench));
                let _ = reference.settle(&mut bench);
            }
            lines
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn the_order_in_which_endpoints_come_changes_nothing(
        order in Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(),
        prompts in prop::collection::vec((0..4u32, 1..3000u32), 1..30),
    ) {
        let run = |order: &[u32]| {
            let mut bench = Bench::new(PoolConfig::default());
            for id in order {
                bench.up(*id, |_| ());
            }
            for (family, length) in &prompts {
                bench.ask(&tokens(*family, *length));
            }
            bench.dispatched.iter().map(|(_, _, endpoint, _)| *endpoint).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(&order), run(&[0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn an_idle_identical_endpoint_never_raises_the_least_cost(
        prompts in prop::collection::vec((0..4u32, 1..3000u32), 1..30), last in (0..5u32, 1..3000u32),
    ) {
        let least = |spare: bool| {
            let mut bench = Bench::with_endpoints(3, with_policy(Policy::PredictedCost));
            for (family, length) in &prompts {
                bench.ask(&tokens(*family, *length));
            }
            if spare {
                bench.up(9, |_| ());
            }
            bench.ask(&tokens(last.0, last.1));
            bench.last().3.candidates.iter().map(|candidate| candidate.score).fold(f64::INFINITY, f64::min)
        };
        prop_assert!(least(true) <= least(false) + 1e-12);
    }
}
