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

pub(super) fn end(number: u8) -> AttemptEnd {
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

pub(super) fn observed(id: u32, load: u32) -> Input {
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

pub(super) fn peer_load(peer: u64, ids: &[u32], load: u32) -> Input {
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
            ..LoadVector::default()
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
}
