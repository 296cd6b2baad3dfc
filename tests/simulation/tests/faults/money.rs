//! A request and its money: reserved before it goes to a scheduler, settled by what was seen of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use governance_context::{AttemptId, MicroWtu, RequestId, Work};
use governance_core::account::{AccountId, AccountPath, Tier, Unit};
use governance_core::ledger::{
    Amounts, Basis, Observed, Reason, Refusal, Reservation, Settlement, Shortage,
};
use governance_core::limits::{Admitted, Nanos};
use governance_core::price::{Quote, Tokens};

use scheduler_core::{Input, RequestKey};

use crate::books::Leg;
use crate::client::Place;
use crate::ending::{End, Seen, settlement};
use crate::governor::{Moment, NoHold, PATIENCE, Usable, unix};
use crate::tenants;
use crate::world::World;

const LEASE_MS: u64 = 25_000;
/// How often a bound is lowered.
const CLAMPS: usize = 5;

/// What an engine tells of the tokens it counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reports {
    /// With every piece of the answer.
    Running,
    /// At its end.
    Last,
    Never,
}

/// How much a request may turn out to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) most: u64,
    pub(crate) estimated: u64,
    pub(crate) bound: u64,
}

/// How a request ended for governance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InL1 {
    TooFast,
    NoQuota,
    Unavailable,
    /// Its client left before it had a hold.
    Left,
    Settled,
    /// The process died.
    Died,
}

/// How a request ended for its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InL2 {
    Refused,
    Completed,
    Failed,
    Left,
    Died,
}

/// The money of one request.
pub(crate) struct Purse {
    pub(crate) key: AccountId,
    pub(crate) size: Size,
    pub(crate) reports: Reports,
    pub(crate) asked: Option<(Arc<Reservation>, Quote)>,
    admitted: Option<Admitted>,
    /// The hold was handed out.
    pub(crate) is_granted: bool,
    pub(crate) settled: Option<Settlement>,
    /// By the process that is alive.
    is_owned: bool,
    /// The process died before its end was on disk.
    pub(crate) is_orphan: bool,
    pub(crate) in_l1: Option<InL1>,
    pub(crate) in_l2: Option<InL2>,
    /// A scheduler was asked.
    pub(crate) is_handed: bool,
    /// What earlier attempts at engines have certainly or perhaps left, and what may be said of the one under way too.
    pub(crate) work: Work,
    pub(crate) noted: Work,
    /// Engines that took it.
    pub(crate) runs: u32,
    pub(crate) cached: u64,
    pub(crate) emitted: u64,
}

impl Purse {
    pub(crate) fn new(key: AccountId, size: Size, reports: Reports) -> Self {
        Self {
            key,
            size,
            reports,
            asked: None,
            admitted: None,
            is_granted: false,
            settled: None,
            is_owned: true,
            is_orphan: false,
            in_l1: None,
            in_l2: None,
            is_handed: false,
            work: Work::None,
            noted: Work::None,
            runs: 0,
            cached: 0,
            emitted: 0,
        }
    }

    pub(crate) fn attempt(&self) -> Option<AttemptId> {
        self.asked
            .as_ref()
            .map(|(reservation, _)| reservation.attempt)
    }

    pub(crate) fn has_admission(&self) -> bool {
        self.admitted.is_some()
    }

    fn largest(&self, quote: &Quote) -> Amounts {
        Amounts {
            wtu: quote.largest(self.size.most, self.size.bound, 1),
            tokens: self.size.most + self.size.bound,
        }
    }

    fn estimate(&self, quote: &Quote) -> Amounts {
        Amounts {
            wtu: quote.estimate(self.size.estimated, self.size.bound),
            tokens: self.size.estimated + self.size.bound,
        }
    }

    /// Lowers the bound to what a hard cap has left; whether that leaves any output.
    fn lower(&mut self, shortage: &Shortage, quote: &Quote) -> bool {
        if shortage.tier != Tier::D {
            return false;
        }
        let affordable = match shortage.unit {
            Unit::MicroWtu => {
                let budget = MicroWtu(shortage.available);
                quote
                    .affordable_output(self.size.most, 1, budget)
                    .unwrap_or(0)
            }
            Unit::Tokens => shortage.available.saturating_sub(self.size.most),
        };
        let lowers = affordable > 0 && affordable < self.size.bound;
        if lowers {
            self.size.bound = affordable;
        }
        lowers
    }

    fn priced(&self, prompt: u64, cached: Option<u64>, output: u64, basis: Basis) -> Observed {
        let usage = Tokens::from_usage(prompt, cached, output);
        let (_, quote) = self.asked.as_ref().expect("what is priced was reserved");
        Observed {
            usage,
            charge: quote.charge(&usage),
            basis,
        }
    }

    /// What its engines really did for it, as far as it is known anywhere.
    pub(crate) fn produced(&self, prompt: u32) -> Observed {
        let (cached, output) = (Some(self.cached), self.emitted);
        self.priced(u64::from(prompt), cached, output, Basis::Measured)
    }

    /// What has passed by: what the engine reports, or what was counted.
    fn seen(&self, prompt: u64, is_complete: bool) -> Seen {
        let measured = || self.priced(prompt, Some(self.cached), self.emitted, Basis::Measured);
        let estimate = self.priced(self.size.estimated, None, self.emitted, Basis::Estimated);
        let observed = match self.reports {
            Reports::Running if self.emitted > 0 => Some(measured()),
            Reports::Last if is_complete => Some(measured()),
            Reports::Last | Reports::Never if self.emitted > 0 => Some(estimate),
            Reports::Running | Reports::Last | Reports::Never => None,
        };
        Seen {
            observed,
            fallback: estimate,
        }
    }
}

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
                    let Refusal::NoRoom(shortage) = refusal else {
                        unreachable!("{refusal}");
                    };
                    if !self.clients[index].purse.lower(&shortage, &quote) {
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
            largest: purse.largest(quote),
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
    fn grant(&mut self, index: usize, scheduler: usize) {
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

    fn note_l1(&mut self, index: usize, how: InL1) {
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
            InL1::Left | InL1::Died => {}
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
    fn give_back(&mut self, index: usize, settlement: Settlement) {
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
            if !client.purse.is_owned {
                continue;
            }
            if client.purse.is_granted {
                if stand.is_none() {
                    let legs = self.legs(attempt);
                    self.books.check_reinstated(&reservation, &legs);
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
            purse.is_owned = false;
            if let Some(attempt) = purse.attempt() {
                let stand = self.books.stand(client.tenant, attempt);
                purse.is_orphan |= stand.is_none_or(|stand| stand.state.is_open());
            }
        }
        for index in self.open.clone() {
            if self.clients[index].purse.in_l1.is_none() {
                self.note_l1(index, InL1::Died);
            }
            match self.clients[index].place {
                Place::Asks { .. } => self.end(index),
                // Its own refusal says so.
                Place::Waits { scheduler } => {
                    self.feed(scheduler, Input::Cancel(RequestKey(index as u64)));
                }
                Place::Runs { .. } => self.hang_up(index, End::ClientGone(None)),
                Place::Over => {}
            }
        }
        self.audit();
        self.touched.clear();
        self.check_all_money();
    }

    pub(crate) fn write_money(&mut self) {
        self.l1.hand_over(self.now);
    }
}
