//! What goes wrong with money.

use governance_context::{AttemptId, MicroWtu};
use governance_core::ledger::{Basis, Observed, Reason, Settlement};
use governance_core::price::Tokens;

use crate::chance::Chance;
use crate::client::Place;
use crate::governor::{Disk, unix};
use crate::money::{Purse, Reports, Size};
use crate::tenants::{self, TENANTS};
use crate::world::World;

const SECOND: u64 = 1_000_000_000;

/// The money of a request; its size is known only roughly.
pub(crate) fn purse(chance: &mut Chance, tenant: u64, prompt: u32, output: u32) -> Purse {
    let mut accounts = tenants::accounts(tenant);
    let (key, _) = accounts.swap_remove(2 + chance.below(2) as usize);
    let prompt = u64::from(prompt);
    let most = prompt + chance.below(prompt / 4 + 8);
    let estimated = (prompt * (20 + chance.below(100)) / 100).min(most);
    let bound = u64::from(output) + chance.of(&[0, 0, 30]);
    let size = Size {
        most,
        estimated,
        bound,
    };
    let reports = chance.of(&[Reports::Running, Reports::Last, Reports::Never]);
    Purse::new(key, size, reports)
}

impl World {
    /// Every account begins with some limits.
    pub(crate) fn open_accounts(&mut self) {
        for tenant in 0..TENANTS {
            for at in 0..tenants::accounts(tenant).len() {
                self.declare(tenant, at);
            }
        }
        self.l1.begin();
    }

    fn declare(&mut self, tenant: u64, at: usize) {
        let (account, kind) = tenants::accounts(tenant).swap_remove(at);
        if self.books.is_ended(&account) {
            return;
        }
        let policies = tenants::policies(&mut self.chance, kind, unix(self.now));
        if self.l1.declare(self.now, &account, kind, &policies) {
            self.books.filling = self.l1.filling;
            self.books.declare(&account, policies);
            self.tally.budgets += 1;
            self.touched.insert(tenant);
        }
    }

    /// Limits change while requests hold money under them.
    pub(crate) fn change_budget(&mut self) {
        let tenant = self.chance.below(TENANTS);
        let at = self.chance.below(tenants::accounts(tenant).len() as u64);
        self.declare(tenant, at as usize);
    }

    /// A key ends; what runs with it is settled as ever.
    pub(crate) fn end_key(&mut self) {
        let tenant = self.chance.below(TENANTS);
        let (key, _) = tenants::accounts(tenant).swap_remove(3);
        if self.l1.end_account(self.now, &key) {
            self.books.filling = self.l1.filling;
            self.books.end_account(&key);
        }
    }

    pub(crate) fn harm_disk(&mut self) {
        self.l1.thaw(self.now);
        self.l1.disk = self.chance.of(&[Disk::Slow, Disk::Frozen, Disk::Fails]);
        self.disk_heals = self.now + self.chance.below(SECOND);
    }

    /// Somebody knows how an attempt ended that nobody could tell of.
    pub(crate) fn hear_late(&mut self) {
        for attempt in self.books.unknown() {
            let index = self.owners[&attempt];
            let client = &self.clients[index];
            if client.place != Place::Over || self.chance.one_in(2) {
                continue;
            }
            let settlement = if client.purse.runs > 0 {
                Settlement::Commit(client.purse.produced(client.prompt))
            } else {
                let reason = Reason::NoWork;
                Settlement::Release { reason }
            };
            self.tell_late(index, attempt, &settlement);
        }
    }

    /// An end is told again, and differently: the first one stands.
    pub(crate) fn repeat_an_end(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let index = self.chance.below(self.clients.len() as u64) as usize;
        let client = &self.clients[index];
        let Some(attempt) = client.purse.attempt() else {
            return;
        };
        let stand = self.books.stand(client.tenant, attempt);
        if stand.is_none_or(|stand| stand.state.is_open()) {
            return;
        }
        let usage = Tokens::from_usage(1_000, None, 1_000);
        let observed = Observed {
            usage,
            charge: MicroWtu(1_000_000),
            basis: Basis::Measured,
        };
        self.tally.repeated += 1;
        self.tell_late(index, attempt, &Settlement::Commit(observed));
    }

    fn tell_late(&mut self, index: usize, attempt: AttemptId, settlement: &Settlement) {
        let tenant = self.clients[index].tenant;
        let Some(state) = self.l1.hear(self.now, attempt, settlement) else {
            return;
        };
        self.tally.late += 1;
        self.touched.insert(tenant);
        self.books.filling = self.l1.filling;
        self.books
            .settled(tenant, unix(self.now), attempt, settlement);
        let stand = self.books.stand(tenant, attempt);
        assert_eq!(stand.map(|stand| stand.state), Some(state));
    }
}
