//! Limits, and what they let pass.

use std::collections::{BTreeMap, BTreeSet};

use governance_core::account::{
    AccountId, CalendarUnit, Carry, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window,
};
use governance_core::ledger::{Amounts, Balance, Reservation};

use super::{Books, Declared, Leg};

impl Books {
    pub(crate) fn spec(&self, policy: u32) -> &PolicySpec {
        self.specs.get(&policy).expect("a policy of the books")
    }

    pub(crate) fn end_account(&mut self, account: &AccountId) {
        self.ended.push((self.filling, account.clone()));
    }

    pub(crate) fn is_ended(&self, account: &AccountId) -> bool {
        self.ended.iter().any(|(_, ended)| ended == account)
    }

    /// An account gets these limits; those that count the same keep what they counted.
    pub(crate) fn declare(&mut self, account: &AccountId, mut wanted: Vec<PolicySpec>) {
        if !wanted.iter().any(|spec| spec.unit == Unit::MicroWtu) {
            wanted.push(metered());
        }
        let now = self.policies(account);
        let mut last = self.specs.keys().next_back().copied().unwrap_or(0);
        let numbered = wanted.into_iter().map(|spec| {
            let same = now.iter().find(|(_, old)| {
                old.name == spec.name
                    && (old.unit, old.window, old.tier) == (spec.unit, spec.window, spec.tier)
            });
            let no = same.map_or_else(
                || {
                    last += 1;
                    last
                },
                |(no, _)| *no,
            );
            (no, spec)
        });
        let policies: Vec<_> = numbered.collect();
        self.specs.extend(policies.iter().cloned());
        self.declared.push(Declared {
            batch: self.filling,
            account: account.clone(),
            policies,
        });
    }

    pub(crate) fn policies(&self, account: &AccountId) -> Vec<(u32, PolicySpec)> {
        let newest = self.declared.iter().rev().find(|d| d.account == *account);
        newest.map(|d| d.policies.clone()).unwrap_or_default()
    }

    /// The legs a reservation takes, if every account of its path has room for it.
    pub(crate) fn judge(
        &self,
        reservation: &Reservation,
        balances: &BTreeMap<AccountId, Vec<Balance>>,
    ) -> Option<Vec<Leg>> {
        let mut legs = Vec::new();
        if reservation
            .path
            .accounts()
            .iter()
            .any(|account| self.is_ended(account))
        {
            return None;
        }
        for account in reservation.path.accounts() {
            let policies = self.policies(account);
            let of = |no: u32| {
                &policies
                    .iter()
                    .find(|(other, _)| *other == no)
                    .expect("one")
                    .1
            };
            let balance = |no: u32| {
                let balances = balances[account].iter();
                let mut named = balances.filter(|balance| balance.policy == of(no).name);
                named.next().expect("a balance by policy")
            };
            let leg = |policy: u32, head: u32, held: u64| Leg {
                policy,
                head,
                window: balance(policy).window.start.0,
                held,
            };
            for (no, spec) in &policies {
                if policies
                    .iter()
                    .any(|(_, other)| other.overflow.as_ref() == Some(&spec.name))
                {
                    continue;
                }
                let asked = asked(spec, reservation);
                let room = room_of(spec, balance(*no));
                if spec.limit == Limit::Metered || asked <= room {
                    legs.push(leg(*no, *no, asked));
                    continue;
                }
                let (target, top_up) = policies
                    .iter()
                    .find(|(_, other)| Some(&other.name) == spec.overflow.as_ref())?;
                if asked - room > room_of(top_up, balance(*target)) {
                    return None;
                }
                legs.push(leg(*no, *no, room));
                legs.push(leg(*target, *no, asked - room));
            }
        }
        legs.sort_by_key(|leg| (leg.head, leg.policy));
        Some(legs)
    }

    /// The legs of what runs already and was forgotten: what was asked, but never more than a hard cap has.
    pub(crate) fn check_reinstated(&self, reservation: &Reservation, legs: &[Leg]) {
        let accounts = reservation.path.accounts().iter();
        let policies: Vec<_> = accounts
            .flat_map(|account| self.policies(account))
            .collect();
        let targets: BTreeSet<_> = policies
            .iter()
            .filter_map(|(_, p)| p.overflow.clone())
            .collect();
        let mut heads: Vec<_> = policies
            .iter()
            .filter(|(_, p)| !targets.contains(&p.name))
            .collect();
        heads.sort_by_key(|(no, _)| *no);
        assert_eq!(heads.len(), legs.len(), "{reservation:?} {legs:?}");
        for ((no, spec), leg) in heads.into_iter().zip(legs) {
            assert_eq!((*no, *no), (leg.policy, leg.head));
            let asked = asked(spec, reservation);
            match spec.tier {
                Tier::B => assert_eq!(leg.held, asked),
                Tier::D => assert!(leg.held <= asked),
            }
        }
    }
}

/// What a policy counts of what an attempt asks for.
fn asked(spec: &PolicySpec, reservation: &Reservation) -> u64 {
    let amounts = match spec.tier {
        Tier::B => &reservation.estimate,
        Tier::D => &reservation.largest,
    };
    in_unit(amounts, spec.unit)
}

pub(super) fn in_unit(amounts: &Amounts, unit: Unit) -> u64 {
    match unit {
        Unit::MicroWtu => amounts.wtu.0,
        Unit::Tokens => amounts.tokens,
    }
}

/// What an account without a limit in WTU is counted by.
fn metered() -> PolicySpec {
    let window = Window::Calendar {
        offset_minutes: 0,
        unit: CalendarUnit::Month,
    };
    let name = PolicyName::parse("metered").expect("a short name");
    PolicySpec::new(name, Tier::B, Unit::MicroWtu, window, Limit::Metered)
}

fn room_of(spec: &PolicySpec, balance: &Balance) -> u64 {
    if spec.debt_max.is_some_and(|most| balance.debt > most) {
        return 0;
    }
    u64::try_from(balance.available).unwrap_or(0)
}

/// The first instant of the window an instant lies in.
pub(crate) fn window_start(window: &Window, now: UnixMs) -> UnixMs {
    match window {
        Window::Rolling { period_ms, .. } => UnixMs(now.0 / period_ms * period_ms),
        // The months of a simulation are all the first one.
        Window::Balance | Window::Calendar { .. } | Window::Anchor { .. } => UnixMs(0),
    }
}

/// Whether an overrun stays in the window where it happened.
pub(crate) fn stays(spec: &PolicySpec) -> bool {
    spec.carry == Carry::Forget || spec.limit == Limit::Metered
}
