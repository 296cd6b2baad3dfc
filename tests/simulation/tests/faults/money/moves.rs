//! What governance does by itself: writes end, time passes, it reads itself back, it dies.

use governance_core::ledger::{Reason, Settlement};
use scheduler_core::{Input, RequestKey};

use super::{InL1, InL2, Owner};
use crate::client::Place;
use crate::ending::End;
use crate::governor::{Moment, unix};
use crate::tenants;
use crate::world::World;

impl World {
    /// Something happened in governance by itself.
    pub(crate) fn l1_moves(&mut self) {
        match self.l1.handle_timeout(self.now) {
            Moment::Written(waiters) => {
                for index in waiters {
                    if let Place::Asks { scheduler } = self.clients[index].place {
                        self.grant(index, scheduler);
                    } else {
                        // Nobody waits any more.
                        self.clients[index].purse.is_granted = true;
                        let reason = Reason::NotDispatched;
                        self.give_back(index, Settlement::Release { reason });
                    }
                }
            }
            Moment::Lost(waiters) => {
                self.tally.lost_writes += 1;
                self.books.forget_after(self.l1.on_disk);
                for index in waiters {
                    if matches!(self.clients[index].place, Place::Asks { .. }) {
                        self.ends_in_l1(index, InL1::Unavailable);
                    }
                }
            }
            Moment::Recovered => self.recovered(),
            Moment::Time => {
                self.books.filling = self.l1.filling;
                self.books.time_passes(unix(self.now));
                self.touched.extend(0..tenants::TENANTS);
            }
            Moment::Nothing => {}
        }
    }

    /// Governance has read itself back: what it had answered is as it was, and nothing else.
    fn recovered(&mut self) {
        let now = unix(self.now);
        self.books.filling = self.l1.filling;
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            let tenant = client.tenant;
            let Some((reservation, _)) = client.purse.asked.clone() else {
                continue;
            };
            let attempt = reservation.attempt;
            let stand = self.books.stand(tenant, attempt);
            if client.purse.owner != Owner::Lives {
                continue;
            }
            if client.purse.is_granted {
                if stand.is_none() {
                    let legs = self.legs(attempt);
                    self.books.check_reinstated(&reservation, &legs);
                    self.books
                        .forced
                        .extend(legs.iter().map(|leg| (leg.policy, leg.window)));
                    self.books.held(tenant, now, &reservation, legs);
                }
                if let Some(settlement) = client.purse.settled {
                    self.books.settled(tenant, now, attempt, &settlement);
                }
            } else if stand.is_some_and(|stand| stand.state.is_open()) {
                let reason = Reason::NotDispatched;
                let release = Settlement::Release { reason };
                self.books.settled(tenant, now, attempt, &release);
            }
        }
        self.touched.extend(0..tenants::TENANTS);
        self.check_all_money();
    }

    /// Those who waited too long for the disk leave.
    pub(crate) fn patience_ends(&mut self) {
        while let Some((until, index)) = self.asking.front().copied() {
            if until > self.now {
                return;
            }
            self.asking.pop_front();
            if matches!(self.clients[index].place, Place::Asks { .. }) {
                self.ends_in_l1(index, InL1::Unavailable);
            }
        }
    }

    /// The disk thread is given what was decided.
    /// Governance dies with all that is not on disk, and begins again.
    pub(crate) fn crash_l1(&mut self) {
        self.tally.crashes += 1;
        self.l1.crash(self.now);
        self.books.forget_after(self.l1.on_disk);
        self.books.filling = self.l1.filling;
        self.books.disown(unix(self.now));
        for client in &mut self.clients {
            let purse = &mut client.purse;
            // What was counted died with the process.
            purse.admitted = None;
            if purse.owner == Owner::Lives {
                let attempt = purse.attempt();
                let stand = attempt.and_then(|id| self.books.stand(client.tenant, id));
                let has_end = stand.is_some_and(|stand| !stand.state.is_open());
                purse.owner = if has_end {
                    Owner::Died
                } else {
                    Owner::DiedEarly
                };
            }
        }
        for index in self.open.clone() {
            if self.clients[index].purse.in_l1.is_none() {
                self.note_l1(index, InL1::Died);
            }
            match self.clients[index].place {
                Place::Asks { .. } => self.end(index),
                Place::Waits { .. } | Place::Runs { .. } if self.is_one_process => {
                    self.dies_with_all(index);
                }
                // Its own refusal says so.
                Place::Waits { scheduler } => {
                    self.feed(scheduler, Input::Cancel(RequestKey(index as u64)));
                }
                Place::Runs { .. } => self.hang_up(index, End::ClientGone(None)),
                Place::Over => {}
            }
        }
        if self.is_one_process {
            for at in 0..self.schedulers.len() {
                self.schedulers[at] = self.new_scheduler();
            }
        }
        self.audit();
        self.touched.clear();
        self.check_all_money();
    }

    /// Its scheduler is the process that died; its engine sees it leave.
    fn dies_with_all(&mut self, index: usize) {
        if let Place::Runs { engine, .. } = self.clients[index].place {
            let id = self.clients[index].id(index);
            self.seats[engine as usize].engine.abort(id);
        }
        self.note_l2(index, InL2::Died);
        self.end(index);
    }

    pub(crate) fn write_money(&mut self) {
        self.l1.hand_over(self.now);
    }
}
