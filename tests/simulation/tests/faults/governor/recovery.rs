//! A ledger that begins again from what is on disk.

use governance_core::ledger::{Ledger, Reason, Settlement};
use governance_core::limits::Table;

use super::{Batch, Disk, Governor, Health, LIMITS, Moment, PAUSE, REMEMBER, Redo, config, unix};

impl Governor {
    /// The ledger is read back, and what cannot be untold is done again.
    pub(super) fn recover(&mut self, now: u64) -> Moment {
        if self.disk == Disk::Fails && self.chance.one_in(2) {
            self.health = Health::Broken {
                until: now + 2 * PAUSE,
            };
            return Moment::Nothing;
        }
        self.restore();
        for redo in std::mem::take(&mut self.redo) {
            match redo {
                Redo::Granted(reservation) => {
                    if !self.kept.attempts.contains_key(&reservation.attempt) {
                        self.ledger.reinstate(unix(now), &reservation);
                    }
                    self.batch.redo.push(Redo::Granted(reservation));
                }
                Redo::Settle(reservation, settlement) => {
                    self.settle(now, &reservation, settlement);
                }
                Redo::Abandon(attempt) => {
                    let reason = Reason::NotDispatched;
                    let release = Settlement::Release { reason };
                    // Usually it is not there: the write failed. If it is, the next one can fail too.
                    if self.ledger.settle(unix(now), attempt, &release).is_ok() {
                        self.batch.redo.push(Redo::Abandon(attempt));
                    }
                }
            }
        }
        self.collect();
        Moment::Recovered
    }

    fn restore(&mut self) {
        let snapshot = self.kept.snapshot(REMEMBER);
        self.ledger = Ledger::restore(config(), snapshot).expect("the rows agree");
        self.view = self.kept.clone();
        self.health = Health::Good;
        self.filling = self.on_disk + 1;
    }

    /// The process dies and another begins. What was being written may be on disk or not.
    pub(crate) fn crash(&mut self, now: u64) {
        if let Some(write) = self.write.take()
            && self.chance.one_in(2)
        {
            self.keep(&write.batch);
        }
        self.batch = Batch::default();
        self.redo.clear();
        self.table = Table::new(LIMITS);
        self.restore();
        self.ledger.disown(unix(now));
        self.collect();
    }
}
