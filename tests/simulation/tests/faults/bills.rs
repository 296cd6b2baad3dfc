//! What must be true of money after every event.

use std::collections::BTreeMap;

use governance_context::Work;
use governance_core::account::{Limit, PolicySpec, Tier};
use governance_core::ledger::{Balance, Basis, Settlement, State, WindowRow};
use governance_core::limits::{Nanos, Rule};

use crate::books::{Sums, stays, window_start};
use crate::client::Client;
use crate::ending::End;
use crate::governor::unix;
use crate::money::{InL1, InL2, Owner, Reports};
use crate::tenants::{self, TENANTS};
use crate::world::World;

/// Events between two looks at everything.
const EVERY: u32 = 256;

impl World {
    pub(crate) fn check_money(&mut self) {
        if !self.l1.is_good() {
            return;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(EVERY) {
            self.touched.clear();
            return self.check_all_money();
        }
        for tenant in std::mem::take(&mut self.touched) {
            self.check_tenant(tenant, &self.books.sums(tenant));
        }
    }

    pub(crate) fn check_all_money(&self) {
        let mut all = Sums::default();
        for tenant in 0..TENANTS {
            let sums = self.books.sums(tenant);
            self.check_tenant(tenant, &sums);
            all.windows.extend(sums.windows);
        }
        self.check_windows(&all);
        self.check_attempts();
    }

    fn check_tenant(&self, tenant: u64, sums: &Sums) {
        let now = unix(self.now);
        for (account, _) in tenants::accounts(tenant) {
            let balances = self.l1.ledger.balances(now, &account);
            let policies = self.books.policies(&account);
            assert_eq!(balances.len(), policies.len(), "{balances:?} {policies:?}");
            for (no, spec) in &policies {
                // After a restart their order is another.
                let balance = balances.iter().find(|balance| balance.policy == spec.name);
                let balance = balance.expect("a balance by policy");
                let is_target =
                    |(_, other): &(_, PolicySpec)| other.overflow.as_ref() == Some(&spec.name);
                let is_shared = spec.overflow.is_some() || policies.iter().any(is_target);
                self.check_balance(balance, *no, spec, is_shared, sums);
            }
        }
        let has_admission = |index: &&usize| {
            let client = &self.clients[**index];
            client.tenant == tenant && client.purse.has_admission()
        };
        let at_once = self.open.iter().filter(has_admission).count() as u32;
        for limit in tenants::limits(tenant) {
            if let Rule::Concurrency(most) = limit.rule {
                let standing = self.l1.table.standing(Nanos(self.now), &limit);
                assert_eq!(most - standing.remaining, at_once, "{limit:?}");
            }
        }
    }

    /// What is held, what was charged and what is left is the budget, to the last unit.
    fn check_balance(
        &self,
        balance: &Balance,
        no: u32,
        spec: &PolicySpec,
        is_shared: bool,
        sums: &Sums,
    ) {
        let now = unix(self.now);
        assert_eq!(
            balance.window.start,
            window_start(&spec.window, now),
            "{balance:?}"
        );
        let sum = sums.of(no, balance.window.start);
        assert_eq!(balance.held, sum.held, "{balance:?}");
        let charged = balance.used + balance.debt;
        if spec.tier == Tier::D || (stays(spec) && !is_shared) {
            assert_eq!(charged, sum.charged, "{balance:?}");
        } else if !is_shared {
            // Debt of earlier windows may have come in.
            assert!(charged >= sum.charged, "{balance:?} {sum:?}");
        }
        let Some(limit) = balance.limit else {
            assert_eq!(spec.limit, Limit::Metered);
            return;
        };
        let extra = spec
            .boost
            .filter(|boost| now < boost.until)
            .map_or(0, |boost| boost.extra);
        let said = match spec.limit {
            Limit::Of(said) => said + extra,
            Limit::Metered => unreachable!("{balance:?} is limited"),
        };
        let promised = balance.used + balance.held;
        match spec.tier {
            // A hard cap is not lowered below what is promised.
            Tier::D => assert_eq!(limit, said.max(promised), "{balance:?}"),
            Tier::B => assert_eq!(limit, said, "{balance:?}"),
        }
        let whole = i128::from(balance.held) + i128::from(charged) + i128::from(balance.available);
        assert_eq!(whole, i128::from(limit), "{balance:?}");
        if spec.tier == Tier::D {
            assert!(balance.debt == 0 && balance.available >= 0, "{balance:?}");
        }
    }

    /// No unit is in a window that nobody put there, and none is lost between windows.
    fn check_windows(&self, sums: &Sums) {
        let mut in_rows: BTreeMap<_, u64> = BTreeMap::new();
        let mut in_books: BTreeMap<_, u64> = BTreeMap::new();
        // A charge may be anywhere in a plan and its top-up.
        let group = |policy: u32| {
            let spec = self.books.spec(policy);
            let is_shared = ["plan", "top-up"].contains(&spec.name.as_str());
            (!(is_shared && spec.tier == Tier::B)).then_some(policy)
        };
        for ((policy, start), row) in &self.l1.view.windows {
            let sum = sums.of(policy.0, *start);
            assert_eq!(row.held, sum.held, "{row:?}");
            self.check_overrun(row);
            *in_rows.entry(group(policy.0)).or_default() += row.used + row.debt;
        }
        for ((policy, _), sum) in &sums.windows {
            *in_books.entry(group(*policy)).or_default() += sum.charged;
        }
        in_rows.retain(|_, charged| *charged > 0);
        in_books.retain(|_, charged| *charged > 0);
        assert_eq!(in_rows, in_books);
    }

    /// What was admitted fits. What costs more than it held is owed, and debt leaves a window for the next one, or because
    /// a window that nobody used has paid it.
    fn check_overrun(&self, row: &WindowRow) {
        let key = (row.policy, row.start);
        let is_counted = self.books.spec(row.policy.0).limit == Limit::Metered;
        let is_forced = self.books.forced.contains(&(row.policy.0, row.start.0));
        if row.used + row.held <= self.l1.view.most[&key] || is_counted || is_forced {
            return;
        }
        let later = self.l1.view.windows.range(key..);
        let spans: Vec<_> = later
            .take_while(|((policy, _), _)| *policy == row.policy)
            .map(|(_, row)| (row.start, row.end))
            .collect();
        let is_idle = spans.windows(2).any(|pair| pair[0].1 < pair[1].0);
        assert!(is_idle, "{row:?}");
    }

    fn check_attempts(&self) {
        let rows = &self.l1.view.attempts;
        let mut count = 0;
        for (attempt, stand) in self.books.stands() {
            count += 1;
            let row = &rows[&attempt];
            assert_eq!(row.state, stand.state, "{row:?} {stand:?}");
            assert_eq!(self.legs(attempt), stand.legs, "{row:?}");
            if stand.state == State::Committed && !stand.is_resolved {
                assert_eq!(row.charged, stand.seen, "{row:?}");
            }
            if stand.state == State::Released {
                assert_eq!(row.charged.wtu.0 + row.charged.tokens, 0, "{row:?}");
            }
        }
        assert_eq!(count, rows.len(), "attempts nobody made");
    }

    /// A request pays for what its engine did and nothing else, whatever the ledger does with that.
    pub(crate) fn check_bill(&self, index: usize, end: End, settlement: &Settlement) {
        let client = &self.clients[index];
        let purse = &client.purse;
        match settlement {
            Settlement::Commit(observed) => {
                assert!(
                    purse.emitted > 0 || end == End::Complete,
                    "request {index}: {end:?}"
                );
                check_charge(client, observed);
            }
            Settlement::Unknown {
                observed: Some(observed),
                ..
            } => check_charge(client, observed),
            Settlement::Unknown { observed: None, .. } => {
                assert_eq!(purse.emitted, 0, "request {index}: {end:?}");
                let is_told = matches!(
                    end,
                    End::NoWork | End::NotReached | End::ClientGone(Some(Work::None))
                );
                assert!(!is_told, "request {index}: {end:?}");
            }
            Settlement::Release { .. } => {
                assert_eq!(purse.emitted, 0, "request {index}: {end:?}");
                assert_eq!(purse.noted, Work::None, "request {index}: {end:?}");
            }
        }
    }

    /// At rest: everybody has one outcome on either side, and they agree.
    pub(crate) fn check_money_at_rest(&self) {
        self.check_all_money();
        assert_eq!(self.l1.ledger.open_attempts(), 0);
        assert_eq!(self.l1.kept.attempts, self.l1.view.attempts);
        assert_eq!(self.l1.kept.windows, self.l1.view.windows);
        self.audit();
        for index in 0..self.clients.len() {
            self.check_outcomes(index);
        }
    }

    pub(crate) fn audit(&self) {
        let report = self.l1.kept.audit(unix(self.now));
        assert!(report.is_green(), "{:#?}", report.violations);
        assert_eq!(
            self.l1.kept.alarms, 0,
            "a charge above the largest possible"
        );
    }

    /// Ends nobody told, decided by the rule of their tier.
    pub(crate) fn resolved(&self) -> u32 {
        let stands = self.books.stands();
        stands.filter(|(_, stand)| stand.is_resolved).count() as u32
    }

    fn check_outcomes(&self, index: usize) {
        let client = &self.clients[index];
        let purse = &client.purse;
        let in_l1 = purse.in_l1.expect("an outcome in governance");
        assert_eq!(purse.in_l2.is_some(), purse.is_handed, "request {index}");
        let attempt = purse.attempt();
        let stand = attempt.and_then(|attempt| self.books.stand(client.tenant, attempt));
        let state = stand.map(|stand| stand.state);
        let is_free = matches!(state, None | Some(State::Refused | State::Released));
        let is_told =
            purse.owner != Owner::DiedEarly && !stand.is_some_and(|stand| stand.is_resolved);
        match (in_l1, purse.in_l2) {
            (InL1::TooFast | InL1::NoQuota, None) => assert!(is_free, "request {index}: {state:?}"),
            (InL1::Unavailable | InL1::Left | InL1::Settled, None) => {
                let is_owed = purse.owner == Owner::DiedEarly;
                assert!(is_free || is_owed, "request {index}: {state:?}");
            }
            (InL1::Settled, Some(InL2::Completed)) => {
                let is_charged = state == Some(State::Committed);
                assert!(is_charged || !is_told, "request {index}: {state:?}");
            }
            (InL1::Settled, Some(InL2::Refused)) if purse.runs == 0 => {
                assert!(is_free || !is_told, "request {index}: {state:?}");
            }
            (InL1::Settled, Some(_)) | (InL1::Died, None | Some(InL2::Left | InL2::Died)) => {}
            (in_l1, in_l2) => unreachable!("request {index}: {in_l1:?} and {in_l2:?}"),
        }
    }
}

fn check_charge(client: &Client, observed: &governance_core::ledger::Observed) {
    let purse = &client.purse;
    let (reservation, _) = purse.asked.as_ref().expect("it was reserved");
    let (prompt, cached) = match observed.basis {
        Basis::Measured => (u64::from(client.prompt), purse.cached),
        Basis::Estimated => (purse.size.estimated, 0),
    };
    assert!(observed.basis == Basis::Estimated || purse.reports != Reports::Never);
    let tokens = [prompt - cached, cached, purse.emitted];
    let usage = observed.usage;
    assert_eq!([usage.uncached, usage.cached, usage.decode], tokens);
    // The attempt's id carries the time of its reservation.
    let at = reservation_time(reservation);
    let by_hand = tenants::price(at, client.tenant, client.band, tokens);
    assert_eq!(observed.charge.0, by_hand, "{tokens:?}");
    assert!(
        observed.charge <= reservation.largest.wtu,
        "{reservation:?}"
    );
    assert!(
        usage.total() <= reservation.largest.tokens,
        "{reservation:?}"
    );
}

fn reservation_time(
    reservation: &governance_core::ledger::Reservation,
) -> governance_core::account::UnixMs {
    let bytes = reservation.attempt.as_uuid().as_bytes();
    let ms = bytes[..6]
        .iter()
        .fold(0, |ms, byte| ms << 8 | u64::from(*byte));
    governance_core::account::UnixMs(ms)
}
