//! What happens when a write fails: everyone is told, the ledger is read back, and what cannot be untold is done
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use governance_core::ledger::{Ledger, Reason, Reservation, Settlement};

use super::{Decider, FIRST_RETRY, Health, LAST_RETRY};
use crate::error::Unavailable;
use crate::keys::KeyRing;
use crate::rows;
use crate::writer::batch::Redo;
use crate::writer::disk::Done;

impl Decider {
    /// A write failed: everyone who waits is told, and what was decided since is forgotten.
    pub(super) fn fail(&mut self, why: String, pause: Duration) {
        tracing::warn!(%why, "the ledger could not write; it will read itself back");
        drop(self.ledger.drain_effects());
        self.keys.clear();
        let lost = Err(Unavailable::Failed(why.clone()));
        let in_flight = self.in_flight.take().map(|write| write.ticket);
        for ticket in in_flight
            .into_iter()
            .chain([std::mem::take(&mut self.ticket)])
        {
            self.news.add(ticket.waiters, &lost);
            self.redo.extend(ticket.redo);
        }
        self.health = Health::Broken {
            why,
            retry: Instant::now() + pause,
            pause,
        };
    }

    fn recovered(&mut self, ledger: Ledger, keys: KeyRing) {
        self.ledger = ledger;
        self.shared.keys.store(Arc::new(keys));
        self.health = Health::Good;
        self.redo_all();
    }

    fn redo_all(&mut self) {
        let now = self.now();
        for redo in std::mem::take(&mut self.redo) {
            match redo {
                Redo::Granted(reservation) => {
                    if matches!(rows::attempt(&self.reader, reservation.attempt), Ok(None)) {
                        self.ledger.reinstate(now, &reservation);
                    }
                    self.ticket.redo.push(Redo::Granted(reservation));
                }
                Redo::Settle(reservation, settlement) => self.settle(reservation, settlement),
                Redo::Abandon(attempt) => {
                    let release = Settlement::Release {
                        reason: Reason::NotDispatched,
                    };
                    // Usually it is not there: the write failed. Where it is, the write that carries this may fail too.
                    if self.ledger.settle(now, attempt, &release).is_ok() {
                        self.ticket.redo.push(Redo::Abandon(attempt));
                    }
                }
            }
        }
    }

    pub(in crate::writer) fn finished(&mut self, done: Done) {
        match done {
            Done::Wrote(Ok(())) => {
                if let Some(write) = self.in_flight.take() {
                    self.news.add(write.ticket.waiters, &Ok(()));
                }
            }
            Done::Wrote(Err(why)) => self.fail(why, FIRST_RETRY),
            Done::Recovered(Ok(read)) => self.recovered(read.0, read.1),
            Done::Recovered(Err(why)) => {
                let pause = match &self.health {
                    Health::Recovering { pause, .. } => *pause,
                    Health::Good | Health::Broken { .. } => FIRST_RETRY,
                };
                self.fail(why, (pause * 2).min(LAST_RETRY));
            }
        }
    }

    /// The attempt is not in memory: it ended long ago, or it was granted and lost with a failed write.
    pub(super) fn settle_lost(&mut self, reservation: &Reservation, settlement: &Settlement) {
        let now = self.now();
        if matches!(
            rows::attempt(&self.reader, reservation.attempt),
            Ok(Some(_))
        ) {
            return;
        }
        self.ledger.reinstate(now, reservation);
        if let Err(error) = self.ledger.settle(now, reservation.attempt, settlement) {
            tracing::error!(%error, "a reinstated attempt cannot be settled");
        }
    }
}
