//! Hundreds of endpoints of several classes that come, go and change class while everything else flows.

use std::collections::BTreeSet;

use super::instant::{end, observed, peer_load};
use super::properties::the_board_is_as_if_made_anew;
use super::*;
use crate::rng::Rng;

const ENDPOINTS: u64 = 300;
const CLASSES: u64 = 4;
const EVENTS: usize = 800;
const SEEDS: u64 = 2;

/// A pool, and what it must know.
struct Crowd {
    bench: Bench,
    rng: Rng,
    in_flight: BTreeSet<BookingId>,
    owed: BTreeSet<RequestKey>,
}

impl Crowd {
    fn new(policy: Policy, seed: u64) -> Self {
        let mut config = limited(200, u64::MAX, with_policy(policy));
        config.engine.room = 4;
        config.peers.every = Some(seconds(0.1));
        let mut crowd = Self {
            bench: Bench::new(config),
            rng: Rng::new(seed),
            in_flight: BTreeSet::new(),
            owed: BTreeSet::new(),
        };
        for id in 0..ENDPOINTS as u32 {
            crowd.up(id);
        }
        crowd
    }

    fn below(&mut self, end: u64) -> u64 {
        self.rng.next() % end
    }

    fn id(&mut self) -> u32 {
        self.below(ENDPOINTS) as u32
    }

    /// It comes, or comes as another engine, or as one of another class.
    fn up(&mut self, id: u32) {
        let (class, generation) = (self.below(CLASSES), self.below(20) / 19);
        self.bench.up(id, |spec| {
            spec.class = named(&format!("class-{class}"));
            spec.generation = generation;
        });
    }

    fn arrive(&mut self) {
        let (family, band) = (self.below(40) as u32, self.below(3) as i32);
        let length = 1 + self.below(6000) as u32;
        self.owed.insert(RequestKey(self.bench.next_key));
        let streaming = self.below(4) > 0;
        self.bench.ask_with(&tokens(family, length), |request| {
            request.band = Band(band);
            request.streaming = streaming;
        });
    }

    fn booking(&mut self) -> Option<BookingId> {
        let at = self.below(self.in_flight.len().max(1) as u64);
        self.in_flight.iter().nth(at as usize).copied()
    }

    fn finish(&mut self, booking: BookingId) {
        self.in_flight.remove(&booking);
        let number = self.below(12) as u8;
        // Mostly they complete.
        self.bench
            .end(booking, end(if number < 5 { number } else { 0 }));
    }

    fn endpoint_event(&mut self) {
        let (id, load) = (self.id(), self.below(9) as u32);
        let endpoint = EndpointId(id);
        let input = match self.below(8) {
            0 | 1 => return self.up(id),
            2 => Input::EndpointDown(endpoint),
            3 => Input::Draining(endpoint),
            4 => observed(id, load),
            5 => Input::ScrapeFailed { endpoint },
            6 => Input::Probed {
                endpoint,
                ok: load > 2,
            },
            _ => {
                let ids: Vec<u32> = (0..=load * 10).map(|_| self.id()).collect();
                peer_load(self.below(3), &ids, load)
            }
        };
        self.bench.feed(input);
    }

    fn attempt_event(&mut self) {
        let Some(booking) = self.booking() else {
            return;
        };
        match self.below(3) {
            0 => self.bench.feed(Input::FirstToken(booking)),
            1 => {
                let output_tokens = self.below(200);
                self.bench.feed(Input::Progress {
                    booking,
                    output_tokens,
                });
            }
            _ => self.finish(booking),
        }
    }

    fn event(&mut self) {
        match self.below(10) {
            0..4 => self.arrive(),
            4..6 => self.endpoint_event(),
            6..9 => self.attempt_event(),
            _ => {
                let pause = self.below(400);
                self.bench.pass(Duration::from_millis(pause));
            }
        }
        self.count();
    }

    fn count(&mut self) {
        for (key, booking, ..) in self.bench.dispatched.drain(..) {
            assert!(self.owed.remove(&key), "{key:?} had its outcome already");
            assert!(self.in_flight.insert(booking));
        }
        for (key, _) in self.bench.refused.drain(..) {
            assert!(self.owed.remove(&key), "{key:?} had its outcome already");
        }
        self.bench.told.clear();
        assert_eq!(self.bench.pool.queue.len(), self.owed.len());
        assert_eq!(self.bench.pool.bookings.len(), self.in_flight.len());
    }

    /// What has no note, has not lapsed, and carries no plan is as it would be measured now, but for lessons it
    /// still has to hear of.
    fn what_is_kept_holds(&mut self) {
        let pool = &mut self.bench.pool;
        if pool.endpoints.has_moved() {
            return;
        }
        let now = pool.now;
        let mut scratch = std::mem::take(&mut pool.scratch);
        for index in scratch.board.outdated(now) {
            pool.endpoints.leave_note(index as usize);
        }
        let noted: BTreeSet<u32> = std::iter::from_fn(|| pool.endpoints.next_changed()).collect();
        scratch.board.advance(now);
        for index in (0..pool.endpoints.len() as u32).filter(|index| !noted.contains(index)) {
            let kept = scratch.board.spot(index);
            let mut anew = pool.spot(now, index);
            let untold = pool.classes[anew.class as usize].untold;
            if untold.is_some_and(|first| index >= first) {
                anew.relearn(kept.model);
            }
            anew.holds_until = kept.holds_until;
            assert_eq!(format!("{kept:?}"), format!("{anew:?}"));
        }
        pool.scratch = scratch;
        for index in noted {
            pool.endpoints.leave_note(index as usize);
        }
    }

    /// What was learned is told to a part of the endpoints at a time.
    fn let_lessons_arrive(&mut self) {
        let pool = &mut self.bench.pool;
        let mut scratch = std::mem::take(&mut pool.scratch);
        loop {
            pool.survey(pool.now, &mut scratch);
            if pool.classes.iter().all(|class| class.untold.is_none()) {
                break;
            }
        }
        pool.scratch = scratch;
    }

    fn rest(&mut self) {
        for _ in 0..3 {
            while let Some(booking) = self.in_flight.first().copied() {
                self.in_flight.remove(&booking);
                self.bench.end(booking, AttemptEnd::ClientClosed);
                self.count();
            }
            self.bench.pass(seconds(61.0));
            self.count();
        }
        while let Some(booking) = self.in_flight.pop_first() {
            self.bench.end(booking, AttemptEnd::ClientClosed);
        }
        self.count();
        assert!(self.bench.at_rest());
    }
}

fn flows(policy: Policy, seed: u64) {
    let mut crowd = Crowd::new(policy, seed);
    for at in 0..EVENTS {
        crowd.event();
        crowd.what_is_kept_holds();
        if at % 50 == 49 {
            crowd.let_lessons_arrive();
            let anew = the_board_is_as_if_made_anew(&mut crowd.bench);
            assert!(anew.is_ok(), "seed {seed}, event {at}: {anew:?}");
        }
    }
    let learned = |class: &Class| class.first_tokens > 0;
    assert!(crowd.bench.pool.classes.iter().all(learned), "seed {seed}");
    crowd.rest();
}

#[test]
fn a_crowd_that_comes_and_goes_leaves_a_true_board_and_nothing_at_rest() {
    for seed in 0..SEEDS {
        flows(Policy::Planned, seed);
    }
    flows(Policy::PredictedCost, SEEDS);
}
