//! Many events at one instant, in any order, before the pool is asked what to do.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{EndpointLoad, LoadVector, PeerId};

#[derive(Clone, Debug)]
enum Event {
    Up {
        id: u32,
        generation: u64,
    },
    Down(u32),
    Draining(u32),
    Observed {
        id: u32,
        load: u32,
    },
    ScrapeFailed(u32),
    Peer {
        peer: u64,
        id: u32,
        load: u32,
    },
    Arrive {
        family: u32,
        length: u32,
        band: i32,
    },
    /// A key that waits already.
    ArriveAgain(usize),
    Cancel(usize),
    FirstToken(usize),
    Progress(usize, u64),
    Finished(usize, u8),
    Probed(u32, bool),
    Timeout,
}

fn event() -> impl Strategy<Value = Event> {
    let id = || 0..4u32;
    let at = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        3 => (id(), 0..2u64).prop_map(|(id, generation)| Event::Up { id, generation }),
        1 => id().prop_map(Event::Down),
        1 => id().prop_map(Event::Draining),
        2 => (id(), 0..9u32).prop_map(|(id, load)| Event::Observed { id, load }),
        1 => id().prop_map(Event::ScrapeFailed),
        1 => (0..3u64, id(), 0..9u32).prop_map(|(peer, id, load)| Event::Peer { peer, id, load }),
        8 => (0..6u32, 1..4000u32, -1..2i32)
            .prop_map(|(family, length, band)| Event::Arrive { family, length, band }),
        1 => at().prop_map(Event::ArriveAgain),
        1 => at().prop_map(Event::Cancel),
        4 => at().prop_map(Event::FirstToken),
        4 => (at(), 0..500u64).prop_map(|(at, tokens)| Event::Progress(at, tokens)),
        5 => (at(), 0..5u8).prop_map(|(at, end)| Event::Finished(at, end)),
        1 => (id(), any::<bool>()).prop_map(|(id, ok)| Event::Probed(id, ok)),
        1 => Just(Event::Timeout),
    ]
}

fn end(number: u8) -> AttemptEnd {
    match number {
        0 => AttemptEnd::Completed {
            cached_tokens: Some(0),
            output_tokens: 3,
        },
        1 => AttemptEnd::ClientClosed,
        2 => AttemptEnd::Rejected,
        3 => AttemptEnd::Busy,
        _ => AttemptEnd::Failed,
    }
}

/// An attempt in flight.
struct Attempt {
    endpoint: u32,
    incarnation: u32,
    uncached: u64,
    prompt: u64,
    output: u64,
    is_decoding: bool,
}

#[derive(Default)]
struct Engine {
    generation: u64,
    incarnation: u32,
    takes: bool,
}

/// Everything the pool should know, kept the obvious way.
#[derive(Default)]
struct Books {
    waiting: BTreeSet<RequestKey>,
    /// Outcomes still to come.
    owed: BTreeMap<RequestKey, u32>,
    prompts: BTreeMap<RequestKey, u64>,
    engines: BTreeMap<u32, Engine>,
    in_flight: BTreeMap<BookingId, Attempt>,
    issued: u64,
}

impl Books {
    /// Mostly one in flight; now and then one that has ended or that nobody has heard of yet.
    fn booking(&self, at: usize) -> BookingId {
        let in_flight = self
            .in_flight
            .keys()
            .nth(at / 8 % self.in_flight.len().max(1));
        match in_flight {
            Some(booking) if at % 8 > 1 => *booking,
            Some(_) | None => BookingId(at as u64 / 8 % (self.issued + 3)),
        }
    }

    fn wait(&self, at: usize) -> Option<RequestKey> {
        self.waiting
            .iter()
            .nth(at % self.waiting.len().max(1))
            .copied()
    }

    fn up(&mut self, id: u32, generation: u64) {
        let engine = self.engines.entry(id).or_insert_with(|| Engine {
            generation,
            ..Engine::default()
        });
        if engine.generation != generation {
            engine.generation = generation;
            engine.incarnation += 1;
        }
        engine.takes = true;
    }

    fn shut(&mut self, id: u32) {
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.takes = false;
        }
    }

    fn token(&mut self, booking: BookingId, output: u64) {
        if let Some(attempt) = self.in_flight.get_mut(&booking) {
            attempt.is_decoding = true;
            attempt.output = attempt.output.max(output);
        }
    }

    /// Tells the pool and the books of one event.
    fn tell(&mut self, bench: &mut Bench, event: &Event) {
        let input = match *event {
            Event::Up { id, generation } => {
                self.up(id, generation);
                let mut spec = EndpointSpec::new(EndpointId(id), &format!("engine-{id}"));
                spec.generation = generation;
                Input::EndpointUp(spec)
            }
            Event::Down(id) => {
                self.shut(id);
                Input::EndpointDown(EndpointId(id))
            }
            Event::Draining(id) => {
                self.shut(id);
                Input::Draining(EndpointId(id))
            }
            Event::Observed { id, load } => observed(id, load),
            Event::ScrapeFailed(id) => Input::ScrapeFailed {
                endpoint: EndpointId(id),
            },
            Event::Peer { peer, id, load } => peer_load(peer, &[id], load),
            Event::Arrive {
                family,
                length,
                band,
            } => {
                let key = RequestKey(bench.next_key);
                bench.next_key += 1;
                self.waiting.insert(key);
                *self.owed.entry(key).or_default() += 1;
                self.prompts.insert(key, u64::from(length));
                Input::Arrive(Box::new(Request {
                    band: Band(band),
                    ..request(key, &tokens(family, length))
                }))
            }
            Event::ArriveAgain(at) => match self.wait(at) {
                Some(key) => Input::Arrive(Box::new(request(key, &tokens(1, 10)))),
                None => return,
            },
            Event::Cancel(at) => match self.wait(at) {
                Some(key) => {
                    self.waiting.remove(&key);
                    Input::Cancel(key)
                }
                None => return,
            },
            Event::FirstToken(at) => {
                let booking = self.booking(at);
                self.token(booking, 0);
                Input::FirstToken(booking)
            }
            Event::Progress(at, output_tokens) => {
                let booking = self.booking(at);
                self.token(booking, output_tokens);
                Input::Progress {
                    booking,
                    output_tokens,
                }
            }
            Event::Finished(at, number) => {
                let booking = self.booking(at);
                self.in_flight.remove(&booking);
                Input::Finished {
                    booking,
                    end: end(number),
                }
            }
            Event::Probed(id, ok) => Input::Probed {
                endpoint: EndpointId(id),
                ok,
            },
            Event::Timeout => {
                bench.pool.handle_timeout(bench.now);
                return;
            }
        };
        bench.pool.handle(bench.now, input);
    }

    fn outcome(&mut self, key: RequestKey) -> Result<(), TestCaseError> {
        self.waiting.remove(&key);
        let owed = self.owed.entry(key).or_default();
        prop_assert!(*owed > 0, "{key:?} had its outcome already");
        *owed -= 1;
        Ok(())
    }

    /// At the instant itself nobody is sent to an endpoint that may not be trusted.
    fn check_ready(bench: &Bench) -> Result<(), TestCaseError> {
        let snapshot = bench.pool.snapshot(bench.now);
        for (_, _, endpoint, _) in &bench.dispatched {
            let shown = snapshot
                .endpoints
                .iter()
                .find(|shown| shown.id == *endpoint);
            let state = shown.map(|shown| shown.state);
            prop_assert_eq!(state, Some(EndpointState::Ready));
        }
        Ok(())
    }

    /// Compares what the pool asked for, and what it shows, with the books.
    fn compare(&mut self, bench: &mut Bench) -> Result<(), TestCaseError> {
        let snapshot = bench.pool.snapshot(bench.now);
        for (key, _) in bench.refused.drain(..) {
            self.outcome(key)?;
        }
        for (key, booking, endpoint, decision) in bench.dispatched.drain(..) {
            self.outcome(key)?;
            let engine = &self.engines[&endpoint.0];
            prop_assert!(engine.takes, "{endpoint:?} takes nothing any more");
            let attempt = Attempt {
                endpoint: endpoint.0,
                incarnation: engine.incarnation,
                uncached: u64::from(decision.predicted.uncached_tokens),
                prompt: self.prompts[&key],
                output: 0,
                is_decoding: false,
            };
            prop_assert!(booking.0 >= self.issued, "never given twice");
            self.issued = booking.0 + 1;
            self.in_flight.insert(booking, attempt);
        }
        for booking in bench.abandoned.drain(..) {
            prop_assert!(booking.0 < self.issued);
        }
        prop_assert_eq!(snapshot.queue_length, self.waiting.len());
        let owed = self.owed.values().sum::<u32>();
        prop_assert_eq!(owed as usize, self.waiting.len(), "nobody is lost");
        prop_assert_eq!(snapshot.bookings, self.in_flight.len());
        self.compare_sums(&snapshot)
    }

    fn compare_sums(&self, snapshot: &PoolSnapshot) -> Result<(), TestCaseError> {
        let mut shown = BTreeMap::new();
        for endpoint in &snapshot.endpoints {
            let sums = [
                u64::from(endpoint.bookings),
                u64::from(endpoint.prefilling),
                endpoint.pending_tokens,
                endpoint.context_tokens,
            ];
            if sums != [0; 4] {
                shown.insert(endpoint.id.0, sums);
            }
        }
        let mut expected: BTreeMap<u32, [u64; 4]> = BTreeMap::new();
        for attempt in self.in_flight.values() {
            if self.engines[&attempt.endpoint].incarnation != attempt.incarnation {
                continue;
            }
            let sums = expected.entry(attempt.endpoint).or_default();
            sums[0] += 1;
            if attempt.is_decoding {
                sums[3] += attempt.prompt + attempt.output;
            } else {
                sums[1] += 1;
                sums[2] += attempt.uncached;
            }
        }
        prop_assert_eq!(shown, expected);
        Ok(())
    }

    /// Everything ends at one instant.
    fn end_all(&mut self, bench: &mut Bench) {
        for (booking, _) in std::mem::take(&mut self.in_flight) {
            let end = AttemptEnd::ClientClosed;
            bench
                .pool
                .handle(bench.now, Input::Finished { booking, end });
        }
        bench.collect();
    }
}

fn observed(id: u32, load: u32) -> Input {
    Input::Observed {
        endpoint: EndpointId(id),
        observation: Observation {
            running: Some(load),
            waiting: Some(load / 3),
            kv_use: Some(f64::from(load) / 10.0),
            ..idle_metrics()
        },
    }
}

fn peer_load(peer: u64, ids: &[u32], load: u32) -> Input {
    let load_of = |id: &u32| EndpointLoad {
        endpoint: named(&format!("engine-{id}")),
        prefilling: load / 4,
        pending_tokens: u64::from(load) * 100,
        pending_double_area: u64::from(load) * 1000,
        pending_context: u64::from(load) * 100,
        decoding: load,
        decoding_context: u64::from(load) * 500,
        slack: [0, load, 0, 0, 0, 0, 0, 1],
    };
    Input::PeerLoad {
        peer: PeerId(peer),
        vector: LoadVector {
            endpoints: ids.iter().map(load_of).collect(),
        },
    }
}

fn config(policy: usize) -> PoolConfig {
    PoolConfig {
        policy: Policy::ALL[policy],
        ..limited(6, u64::MAX, with_room(3))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_at_one_instant_everybody_has_one_outcome_and_every_sum_is_true(
        instants in prop::collection::vec((prop::collection::vec(event(), 1..20), 0..3000u64), 1..25),
        policy in 0..Policy::ALL.len(),
    ) {
        let mut bench = Bench::new(config(policy));
        let mut books = Books::default();
        for (events, pause) in instants {
            let mut is_late = false;
            for event in &events {
                // Whoever the clock has just refused may be taken again, which is no second arrival.
                is_late |= matches!(event, Event::Timeout);
                if is_late && matches!(event, Event::ArriveAgain(_) | Event::Cancel(_)) {
                    continue;
                }
                books.tell(&mut bench, event);
            }
            bench.collect();
            Books::check_ready(&bench)?;
            books.compare(&mut bench)?;
            bench.pass(Duration::from_millis(pause));
            books.compare(&mut bench)?;
        }
        for _ in 0..2 {
            books.end_all(&mut bench);
            books.compare(&mut bench)?;
            bench.pass(seconds(61.0));
            books.compare(&mut bench)?;
        }
        books.end_all(&mut bench);
        prop_assert!(bench.at_rest());
    }

    #[test]
    fn events_that_have_nothing_to_do_with_each_other_may_come_in_any_order(
        roles in prop::collection::vec(role(), 1..6),
        prompts in prop::collection::vec((0..4u32, 1..3000u32), 1..5),
        lots in prop::collection::vec(any::<u64>(), 40),
        policy in 0..Policy::ALL.len(),
    ) {
        let (drawn, told) = (told(policy, &roles, &prompts, &lots), told(policy, &roles, &prompts, &[]));
        let mut lines = drawn.lines().zip(told.lines());
        prop_assert_eq!(lines.find(|(drawn, told)| drawn != told), None);
        prop_assert_eq!(drawn.len(), told.len());
    }
}

/// What happens to one endpoint at the instant.
#[derive(Clone, Debug)]
enum Role {
    Observed(u32),
    ScrapeFails,
    /// Its only stream has so many tokens more.
    Progress(u64),
    /// Two streams have a few more each.
    TwoProgress(u64, u64),
    Finishes,
    Drains,
    Leaves,
    Comes,
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        (0..9u32).prop_map(Role::Observed),
        Just(Role::ScrapeFails),
        (1..60u64).prop_map(Role::Progress),
        (1..8u64, 1..8u64).prop_map(|(one, other)| Role::TwoProgress(one, other)),
        Just(Role::Finishes),
        Just(Role::Drains),
        Just(Role::Leaves),
        Just(Role::Comes),
    ]
}

/// An endpoint of a class of its own, so that what one teaches concerns no other.
fn spec(id: u32) -> EndpointSpec {
    EndpointSpec {
        class: named(&format!("class-{id}")),
        models: vec!["m".into(), format!("only-{id}")],
        ..EndpointSpec::new(EndpointId(id), &format!("engine-{id}"))
    }
}

/// Brings an endpoint to where its role can happen, and says what that is.
fn prepare(bench: &mut Bench, id: u32, role: &Role) -> Vec<Input> {
    if matches!(role, Role::Comes) {
        return vec![Input::EndpointUp(spec(id))];
    }
    bench.feed(Input::EndpointUp(spec(id)));
    let mut stream = |family: u32| {
        bench.ask_with(&tokens(family, 100), |request| {
            request.model = named(&format!("only-{id}"));
        });
        let booking = bench.last().1;
        bench.pass(Duration::from_millis(40));
        bench.feed(Input::FirstToken(booking));
        booking
    };
    let streams = [stream(100 + 2 * id), stream(101 + 2 * id)];
    let more = |booking, output_tokens| Input::Progress {
        booking,
        output_tokens,
    };
    let endpoint = EndpointId(id);
    match *role {
        Role::Observed(load) => vec![observed(id, load)],
        Role::ScrapeFails => vec![Input::ScrapeFailed { endpoint }],
        Role::Progress(tokens) => {
            bench.complete(streams[0]);
            vec![more(streams[1], tokens)]
        }
        Role::TwoProgress(one, other) => vec![more(streams[0], one), more(streams[1], other)],
        Role::Finishes => vec![Input::Finished {
            booking: streams[0],
            end: end(0),
        }],
        Role::Drains => vec![Input::Draining(endpoint)],
        Role::Leaves => vec![Input::EndpointDown(endpoint)],
        Role::Comes => Vec::new(),
    }
}

/// All that a pool does and shows when the same events come in the order of `lots`; arrivals keep theirs.
fn told(policy: usize, roles: &[Role], prompts: &[(u32, u32)], lots: &[u64]) -> String {
    let mut bench = Bench::new(PoolConfig {
        policy: Policy::ALL[policy],
        ..PoolConfig::default()
    });
    let mut events = Vec::new();
    let mut shared = Vec::new();
    for (id, role) in (0..).zip(roles) {
        events.extend(prepare(&mut bench, id, role).into_iter().map(Some));
        // What others run there would be part of a lesson.
        if !matches!(role, Role::Comes | Role::Leaves | Role::Progress(_)) {
            shared.push(id);
        }
    }
    events.extend([
        Some(peer_load(1, &shared, 3)),
        Some(peer_load(2, &shared, 5)),
    ]);
    events.extend(prompts.iter().map(|_| None));
    bench.pass(Duration::from_millis(300));
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|at| lots.get(*at).copied());
    let mut arrivals = prompts.iter();
    for at in order {
        let input = events[at].take().or_else(|| {
            let (family, length) = arrivals.next()?;
            let key = RequestKey(bench.next_key);
            bench.next_key += 1;
            Some(Input::Arrive(Box::new(Request {
                targets: Targets {
                    ttft: Some(seconds(20.0)),
                    tpot: None,
                },
                output_bound: 5,
                ..request(key, &tokens(*family, *length))
            })))
        });
        bench.pool.handle(bench.now, input.expect("an event each"));
    }
    bench.collect();
    let first = shown(&bench);
    bench.pass(seconds(1.0));
    for (family, length) in prompts {
        bench.ask(&tokens(*family, *length));
    }
    bench.pass(seconds(1.0));
    let Bench {
        dispatched,
        refused,
        abandoned,
        ..
    } = &bench;
    let last = shown(&bench);
    format!("{dispatched:#?} {refused:#?} {abandoned:?} {first:#?} {last:#?}")
}

/// All but the memory of the index, which keeps the places of caches that are gone.
fn shown(bench: &Bench) -> PoolSnapshot {
    PoolSnapshot {
        index_bytes: 0,
        ..bench.pool.snapshot(bench.now)
    }
}
