//! A request and its money: reserved before it goes to a scheduler, settled by what was seen of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use governance_context::{AttemptId, RequestId};
use governance_core::account::AccountPath;
use governance_core::ledger::{Refusal, Reservation, Settlement};
use governance_core::limits::Nanos;
use governance_core::price::Quote;

use crate::books::Leg;
use crate::client::Place;
use crate::ending::{End, settlement};
use crate::governor::{NoHold, PATIENCE, Usable, unix};
use crate::tenants;
use crate::world::World;

mod moves;
mod purse;

pub(crate) use purse::{InL1, InL2, Owner, Purse, Reports, Size};

const LEASE_MS: u64 = 25_000;
/// How often a bound is lowered.
const CLAMPS: usize = 5;

impl World {
    /// A request arrives: it has a hold, waits for one, or is refused.
    pub(crate) fn knock(&mut self, index: usize, scheduler: usize) {
        let tenant = self.clients[index].tenant;
        let limits = tenants::limits(tenant);
        let Ok(admitted) = self.l1.table.admit(Nanos(self.now), &limits, 1) else {
            return self.ends_in_l1(index, InL1::TooFast);
        };
        self.clients[index].purse.admitted = Some(admitted);
        let (group, band) = (tenants::group(tenant), self.clients[index].band);
        let quote = self
            .book
            .quote(tenants::MODEL, &group, band, unix(self.now));
        let quote = quote.expect("the model has a price");
        for _ in 0..CLAMPS {
            let reservation = Arc::new(self.reservation(index, &quote));
            let purse = &mut self.clients[index].purse;
            purse.asked = Some((Arc::clone(&reservation), quote.clone()));
            match self.reserve(index, &reservation) {
                Ok(Usable::Now) => return self.grant(index, scheduler),
                Ok(Usable::OnceWritten) => {
                    let until = self.now + PATIENCE;
                    self.clients[index].place = Place::Asks { scheduler };
                    self.asking.push_back((until, index));
                    return;
                }
                Err(NoHold::Unavailable) => return self.ends_in_l1(index, InL1::Unavailable),
                Err(NoHold::Refused(refusal)) => {
                    let purse = &mut self.clients[index].purse;
                    let lowers = match refusal {
                        Refusal::NoRoom(shortage) => purse.lower(&shortage, &quote),
                        Refusal::Ended(_) | Refusal::NoAccount(_) | Refusal::Used(_) => false,
                    };
                    if !lowers {
                        break;
                    }
                }
            }
        }
        self.ends_in_l1(index, InL1::NoQuota);
    }

    fn reservation(&mut self, index: usize, quote: &Quote) -> Reservation {
        self.attempts += 1;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.attempts.to_be_bytes());
        let purse = &self.clients[index].purse;
        Reservation {
            attempt: AttemptId::new(unix(self.now).0, random),
            request: RequestId::new(unix(self.now).0, random),
            tenant: purse.key.tenant(),
            path: AccountPath::of(&purse.key),
            estimate: purse.estimate(quote),
            largest: purse.largest(quote, purse.size.bound),
            least: purse.largest(quote, purse.size.bound.min(1)),
            stamp: quote.stamp().clone(),
            lease_ms: LEASE_MS,
        }
    }

    /// Asks for a hold, and looks whether the answer is the right one.
    fn reserve(&mut self, index: usize, reservation: &Arc<Reservation>) -> Result<Usable, NoHold> {
        let now = unix(self.now);
        let tenant = self.clients[index].tenant;
        self.owners.insert(reservation.attempt, index);
        let accounts = reservation.path.accounts().iter();
        let balances: BTreeMap<_, _> = accounts
            .map(|account| (account.clone(), self.l1.ledger.balances(now, account)))
            .collect();
        // While it reads itself back it knows more than is on disk.
        let is_good = self.l1.is_good();
        let right = is_good
            .then(|| self.books.judge(reservation, &balances))
            .flatten();
        let answer = self.l1.reserve(self.now, reservation, index);
        self.touched.insert(tenant);
        self.books.filling = self.l1.filling;
        match (&answer, right) {
            (Ok(_), Some(legs)) => {
                assert_eq!(self.legs(reservation.attempt), legs);
                self.books.held(tenant, now, reservation, legs);
            }
            (Err(NoHold::Refused(_)), None) => self.books.refused(tenant, reservation.attempt),
            (Err(NoHold::Unavailable), _) => {}
            (answer, right) => unreachable!("{answer:?} is not {right:?}: {balances:?}"),
        }
        answer
    }

    /// What an attempt took, by policy.
    pub(crate) fn legs(&self, attempt: AttemptId) -> Vec<Leg> {
        let rows = self.l1.view.legs.get(&attempt).into_iter().flatten();
        let mut legs: Vec<Leg> = rows.map(Leg::from).collect();
        legs.sort_by_key(|leg| (leg.head, leg.policy));
        legs
    }

    /// It has its hold and goes to a scheduler.
    pub(super) fn grant(&mut self, index: usize, scheduler: usize) {
        self.clients[index].purse.is_granted = true;
        if self.chance.one_in(60) {
            self.settle_money(index, End::NotReached);
            return self.end(index);
        }
        self.clients[index].purse.is_handed = true;
        self.ask(index, scheduler);
    }

    pub(crate) fn ends_in_l1(&mut self, index: usize, how: InL1) {
        self.note_l1(index, how);
        self.end(index);
    }

    pub(super) fn note_l1(&mut self, index: usize, how: InL1) {
        let purse = &mut self.clients[index].purse;
        assert_eq!(
            purse.in_l1, None,
            "request {index}: one outcome, not {how:?} too"
        );
        purse.in_l1 = Some(how);
        match how {
            InL1::TooFast | InL1::NoQuota => self.tally.turned_away += 1,
            InL1::Unavailable => self.tally.unavailable += 1,
            InL1::Settled => self.tally.settled += 1,
            InL1::Left => self.tally.left_early += 1,
            InL1::Died => {}
        }
    }

    pub(crate) fn note_l2(&mut self, index: usize, how: InL2) {
        let purse = &mut self.clients[index].purse;
        assert_eq!(
            purse.in_l2, None,
            "request {index}: one outcome, not {how:?} too"
        );
        purse.in_l2 = Some(how);
    }

    /// Gives back what an ended request had of its limits.
    pub(crate) fn release_limits(&mut self, index: usize) {
        let tenant = self.clients[index].tenant;
        if let Some(admitted) = self.clients[index].purse.admitted.take() {
            self.l1.table.release(admitted);
            self.touched.insert(tenant);
        }
    }

    /// Settles the hold of a request, unless that has happened or there is nobody left to do it.
    pub(crate) fn settle_money(&mut self, index: usize, end: End) {
        let client = &self.clients[index];
        if client.purse.in_l1.is_some() {
            return;
        }
        let seen = client
            .purse
            .seen(u64::from(client.prompt), end == End::Complete);
        let settlement = settlement(end, seen);
        self.check_bill(index, end, &settlement);
        self.note_l1(index, InL1::Settled);
        self.give_back(index, settlement);
    }

    /// Sends the settlement to the ledger.
    pub(super) fn give_back(&mut self, index: usize, settlement: Settlement) {
        let client = &mut self.clients[index];
        let (reservation, _) = client.purse.asked.clone().expect("a hold was reserved");
        client.purse.settled = Some(settlement);
        let tenant = client.tenant;
        self.l1.settle(self.now, &reservation, settlement);
        self.touched.insert(tenant);
        if self.l1.is_good() {
            self.books.filling = self.l1.filling;
            let now = unix(self.now);
            self.books
                .settled(tenant, now, reservation.attempt, &settlement);
        }
    }
}
