//! What schedulers ask for, and what engines make of it.

use std::time::Duration;

use engine_model::Event;
use governance_context::Work;
use scheduler_core::{
    AttemptEnd, BookingId, EndpointId, Input, LoadVector, Output, PeerId, RefusalKind,
};

use crate::client::{Client, Place};
use crate::ending::End;
use crate::money::InL2;
use crate::world::{Listed, Mood, World};

/// A client asks so often.
const ATTEMPTS: usize = 3;

impl World {
    pub(crate) fn act(&mut self, scheduler: usize, output: Output) {
        match output {
            Output::Dispatch {
                request,
                booking,
                endpoint,
                ..
            } => {
                self.note(request.0 << 8 | u64::from(endpoint.0));
                self.send(scheduler, request.0 as usize, booking, endpoint.0);
            }
            Output::Refuse { request, refusal } => {
                self.note(request.0 << 8 | 255);
                let index = request.0 as usize;
                self.must_wait(scheduler, index);
                assert!(!refusal.kind.code().is_empty());
                self.tally.refused += 1;
                self.refuse(index, refusal.kind);
            }
            Output::Probe { endpoint } => {
                let mood = self.seats[endpoint.0 as usize].mood;
                let ok = matches!(mood, Mood::Well | Mood::Slow(_));
                self.feed(scheduler, Input::Probed { endpoint, ok });
            }
            Output::Tell(vector) => self.told(scheduler, &vector),
            Output::Abandon { booking } => {
                let of = |index: &usize| self.clients[*index].is_attempt(scheduler, booking);
                let index = self.open.iter().copied().find(of);
                let index = index.expect("only what runs is abandoned");
                self.tally.abandoned += 1;
                self.fail(index, AttemptEnd::Failed, Work::Prefill);
            }
        }
    }

    /// All others hear it, unless it is lost.
    fn told(&mut self, teller: usize, vector: &LoadVector) {
        for at in 0..self.schedulers.len() {
            let is_lost = self.schedulers[teller].is_mute || self.air.one_in(8);
            if at != teller && !is_lost {
                let (peer, vector) = (PeerId(teller as u64), vector.clone());
                self.feed(at, Input::PeerLoad { peer, vector });
            }
        }
    }

    fn must_wait(&self, scheduler: usize, index: usize) {
        let place = self.clients[index].place;
        assert_eq!(
            place,
            Place::Waits { scheduler },
            "request {index}: one outcome"
        );
    }

    fn send(&mut self, scheduler: usize, index: usize, booking: BookingId, engine: u32) {
        self.must_wait(scheduler, index);
        let client = &mut self.clients[index];
        // At the very moment it expires it is refused.
        assert!(
            self.now < client.expires,
            "request {index} was sent too late"
        );
        client.place = Place::Runs {
            scheduler,
            booking,
            engine,
        };
        client.attempt += 1;
        client.heard = self.now;
        client.streams = false;
        client.purse.noted = Work::Prefill;
        client.generation = self.seats[engine as usize].generation;
        let seat = &mut self.seats[engine as usize];
        assert_eq!(
            seat.listed,
            Listed::Up,
            "request {index} was sent to engine {engine}"
        );
        if let Mood::Refuses(end) = seat.mood {
            return self.fail(index, end, Work::None);
        }
        let request = client.for_engine(index);
        if seat.engine.submit(request).is_err() {
            return self.fail(index, AttemptEnd::Rejected, Work::None);
        }
        self.clients[index].purse.runs += 1;
        self.begin(engine as usize);
    }

    /// An attempt ends badly; its client tries again a few times, unless it has had something or is told it is at fault.
    pub(crate) fn fail(&mut self, index: usize, end: AttemptEnd, work: Work) {
        let client = &mut self.clients[index];
        let purse = &mut client.purse;
        purse.work = purse.work.max(work);
        purse.noted = purse.work;
        let of_l1 = match (client.streams, purse.work) {
            (true, _) => End::Cut,
            (false, Work::None) => End::NoWork,
            (false, Work::Prefill | Work::Partial) => End::EngineError(500),
        };
        let Place::Runs {
            scheduler,
            booking,
            engine,
        } = client.place
        else {
            unreachable!("only what runs can fail");
        };
        let may_retry = !client.streams && client.tried.len() + 1 < ATTEMPTS;
        self.seats[engine as usize].engine.abort(client.id(index));
        self.feed(scheduler, Input::Finished { booking, end });
        // A second end of the same attempt hits nothing.
        self.feed(scheduler, Input::Finished { booking, end });
        if may_retry && matches!(end, AttemptEnd::Failed | AttemptEnd::Busy) {
            self.tally.retried += 1;
            self.clients[index].tried.push(EndpointId(engine));
            self.ask(index, scheduler);
        } else {
            self.tally.refused += 1;
            self.note_l2(index, InL2::Failed);
            self.settle_money(index, of_l1);
            self.end(index);
        }
    }

    /// A scheduler has no turn for it, or had its client leave.
    fn refuse(&mut self, index: usize, why: RefusalKind) {
        let end = match self.clients[index].purse.work {
            Work::None => End::NoWork,
            Work::Prefill | Work::Partial => End::EngineError(503),
        };
        let how = if why == RefusalKind::ClientClosed {
            InL2::Left
        } else {
            InL2::Refused
        };
        self.note_l2(index, how);
        self.settle_money(index, end);
        self.end(index);
    }

    pub(crate) fn end(&mut self, index: usize) {
        self.release_limits(index);
        let client = &mut self.clients[index];
        assert!(
            client.purse.in_l1.is_some(),
            "request {index} is not settled"
        );
        client.place = Place::Over;
        self.open.retain(|open| *open != index);
    }

    /// Nobody waits any more for a request that runs, for whatever reason governance knows.
    pub(crate) fn hang_up(&mut self, index: usize, why: End) {
        if let Place::Runs {
            scheduler,
            booking,
            engine,
        } = self.clients[index].place
        {
            let id = self.clients[index].id(index);
            self.seats[engine as usize].engine.abort(id);
            let end = AttemptEnd::ClientClosed;
            self.note_l2(index, InL2::Left);
            self.settle_money(index, why);
            self.feed(scheduler, Input::Finished { booking, end });
            self.tally.canceled += 1;
            self.end(index);
        }
    }

    fn begin(&mut self, engine: usize) {
        let seat = &mut self.seats[engine];
        if seat.ends.is_some() || seat.mood == Mood::Hangs {
            return;
        }
        if let Some(run) = seat.engine.begin(1) {
            let factor = if let Mood::Slow(factor) = seat.mood {
                factor
            } else {
                1
            };
            let duration: Duration = run.duration * factor;
            seat.ends = Some(self.now + duration.as_nanos() as u64);
        }
    }

    pub(crate) fn step_ends(&mut self, engine: usize) {
        let events: Vec<Event> = self.seats[engine].engine.finish().to_vec();
        self.seats[engine].ends = None;
        self.begin(engine);
        for event in events {
            self.observe(event);
        }
    }

    fn observe(&mut self, event: Event) {
        match event {
            Event::Tokens {
                request,
                new,
                total,
            } => {
                let Some((index, scheduler, booking)) = self.running(request) else {
                    return;
                };
                self.clients[index].heard = self.now;
                self.clients[index].streams = true;
                let purse = &mut self.clients[index].purse;
                (purse.work, purse.noted) = (Work::Partial, Work::Partial);
                purse.emitted = u64::from(total);
                if new == total {
                    self.feed(scheduler, Input::FirstToken(booking));
                } else if total.is_multiple_of(4) {
                    let output_tokens = u64::from(total);
                    self.feed(
                        scheduler,
                        Input::Progress {
                            booking,
                            output_tokens,
                        },
                    );
                }
            }
            Event::Finished { request } => {
                let Some((index, scheduler, booking)) = self.running(request) else {
                    return;
                };
                let output_tokens = u64::from(self.clients[index].answer());
                let end = AttemptEnd::Completed {
                    cached_tokens: None,
                    output_tokens,
                };
                self.feed(scheduler, Input::Finished { booking, end });
                self.tally.completed += 1;
                self.note_l2(index, InL2::Completed);
                self.settle_money(index, End::Complete);
                self.end(index);
            }
            Event::Admitted {
                request,
                cached_tokens,
            } => {
                if let Some((index, ..)) = self.running(request) {
                    self.clients[index].purse.cached = u64::from(cached_tokens);
                }
            }
            Event::Preempted { .. } => {}
        }
    }

    /// The attempt that an engine means, unless it was taken from it.
    fn running(&self, request: engine_model::RequestId) -> Option<(usize, usize, BookingId)> {
        let index = Client::index(request);
        let client = &self.clients[index];
        match client.place {
            Place::Runs {
                scheduler, booking, ..
            } if client.id(index) == request => Some((index, scheduler, booking)),
            Place::Asks { .. } | Place::Runs { .. } | Place::Waits { .. } | Place::Over => None,
        }
    }
}
