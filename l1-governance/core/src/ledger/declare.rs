//! Accounts and policies come, change and end.

use std::collections::BTreeMap;

use super::reservation::Refusal;
use super::row::{AccountNo, AccountRow, Effect, PolicyNo, PolicyRow, Status};
use super::{Account, Ledger, Policy};
use crate::account::{
    AccountId, CalendarUnit, Kind, Limit, PolicyError, PolicyName, PolicySpec, Tier, Unit, UnixMs,
    Window,
};

/// Why a declaration was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// The account is not declared.
    #[error("account {0} is not declared")]
    Unknown(AccountId),
    /// The account it belongs to is not declared.
    #[error("account {0} belongs to an account that is not declared")]
    NoParent(AccountId),
    /// The account was ended; it does not come back.
    #[error("account {0} has ended; ended accounts do not come back under the same id")]
    Ended(AccountId),
    /// A policy does not fit.
    #[error("account {0}")]
    Policy(AccountId, #[source] PolicyError),
}

impl Ledger {
    /// Declares an account with all its policies, replacing the policies it had.
    ///
    /// A policy that keeps its name, unit and window keeps its counters: a new limit applies to the running
    /// window. An account without a WTU policy is metered by calendar month, so that every account of a path
    /// shows what went through it.
    pub fn declare(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        kind: Kind,
        policies: &[PolicySpec],
    ) -> Result<(), DeclareError> {
        self.advance(now);
        for policy in policies {
            policy
                .check(policies)
                .map_err(|error| DeclareError::Policy(id.clone(), error))?;
        }
        let account = self.declare_account(id, kind)?;
        let mut wanted = policies.to_vec();
        if !wanted.iter().any(|policy| policy.unit == Unit::MicroWtu) {
            wanted.push(metering());
        }
        self.replace_policies(account, &wanted);
        Ok(())
    }

    /// Adds one policy to a declared account, or replaces the one of the same name.
    pub fn set_policy(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        spec: &PolicySpec,
    ) -> Result<(), DeclareError> {
        self.edit_policies(now, id, |specs| {
            specs.retain(|other| other.name != spec.name);
            specs.push(spec.clone());
        })
    }

    /// Takes one policy away from a declared account. Nothing happens when there is none of that name.
    pub fn remove_policy(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        name: &PolicyName,
    ) -> Result<(), DeclareError> {
        self.edit_policies(now, id, |specs| specs.retain(|other| other.name != *name))
    }

    /// The policies of an account as they are; empty for an unknown account.
    pub fn policies(&self, id: &AccountId) -> Vec<PolicySpec> {
        let Some(no) = self.index.get(id) else {
            return Vec::new();
        };
        let policies = self.accounts[no.index()].policies.iter();
        policies
            .map(|no| self.policies[no.index()].row.spec.clone())
            .collect()
    }

    /// Ends an account and everything below it. Ended accounts admit nothing; what runs settles as usual.
    pub fn end_account(&mut self, now: UnixMs, id: &AccountId) -> Result<(), Refusal> {
        self.advance(now);
        if !self.index.contains_key(id) {
            return Err(Refusal::NoAccount(id.clone()));
        }
        for account in &mut self.accounts {
            if account.row.status == Status::Active && account.row.id.is_within(id) {
                account.row.status = Status::Ended;
                account.row.version += 1;
                self.effects
                    .push(Effect::Account(Box::new(account.row.clone())));
            }
        }
        Ok(())
    }

    fn edit_policies(
        &mut self,
        now: UnixMs,
        id: &AccountId,
        edit: impl FnOnce(&mut Vec<PolicySpec>),
    ) -> Result<(), DeclareError> {
        let no = self
            .index
            .get(id)
            .ok_or_else(|| DeclareError::Unknown(id.clone()))?;
        let kind = self.accounts[no.index()].row.kind;
        let mut specs = self.policies(id);
        edit(&mut specs);
        self.declare(now, id, kind, &specs)
    }

    fn declare_account(&mut self, id: &AccountId, kind: Kind) -> Result<AccountNo, DeclareError> {
        if let Some(no) = self.index.get(id) {
            return match self.accounts[no.index()].row.status {
                Status::Active => Ok(*no),
                Status::Ended => Err(DeclareError::Ended(id.clone())),
            };
        }
        if let Some(parent) = id.parent() {
            let parent = self
                .index
                .get(&parent)
                .ok_or_else(|| DeclareError::NoParent(id.clone()))?;
            if self.accounts[parent.index()].row.status == Status::Ended {
                return Err(DeclareError::Ended(id.clone()));
            }
        }
        let no = AccountNo::from_index(self.accounts.len());
        let row = AccountRow {
            no,
            id: id.clone(),
            kind,
            status: Status::Active,
            version: 1,
        };
        self.effects.push(Effect::Account(Box::new(row.clone())));
        self.index.insert(id.clone(), no);
        self.accounts.push(Account {
            row,
            policies: Vec::new(),
        });
        Ok(no)
    }

    fn replace_policies(&mut self, account: AccountNo, wanted: &[PolicySpec]) {
        let before = self.accounts[account.index()].policies.clone();
        let mut kept = Vec::with_capacity(wanted.len());
        for spec in wanted {
            let same = before.iter().copied().find(|no| {
                let policy = &self.policies[no.index()].row.spec;
                policy.name == spec.name
                    && policy.unit == spec.unit
                    && policy.window == spec.window
                    && policy.tier == spec.tier
            });
            kept.push(match same {
                Some(no) => self.update_policy(no, spec),
                None => self.add_policy(account, spec),
            });
        }
        for no in before.into_iter().filter(|no| !kept.contains(no)) {
            let policy = &mut self.policies[no.index()];
            policy.row.to = Some(self.now);
            self.effects
                .push(Effect::Policy(Box::new(policy.row.clone())));
        }
        self.link_overflow(&kept);
        self.accounts[account.index()].policies = kept;
    }

    fn update_policy(&mut self, no: PolicyNo, spec: &PolicySpec) -> PolicyNo {
        let policy = &mut self.policies[no.index()];
        if policy.row.spec != *spec {
            policy.row.spec = spec.clone();
            self.effects
                .push(Effect::Policy(Box::new(policy.row.clone())));
        }
        no
    }

    fn add_policy(&mut self, account: AccountNo, spec: &PolicySpec) -> PolicyNo {
        let no = PolicyNo::from_index(self.policies.len());
        let row = PolicyRow {
            no,
            account,
            spec: spec.clone(),
            from: self.now,
            to: None,
        };
        self.effects.push(Effect::Policy(Box::new(row.clone())));
        self.policies.push(Policy {
            row,
            overflow: None,
            is_target: false,
            windows: BTreeMap::new(),
        });
        no
    }

    pub(super) fn link_overflow(&mut self, policies: &[PolicyNo]) {
        for no in policies {
            let target = self.policies[no.index()].row.spec.overflow.clone();
            let found = policies
                .iter()
                .copied()
                .find(|other| Some(&self.policies[other.index()].row.spec.name) == target.as_ref());
            self.policies[no.index()].overflow = found;
        }
        for no in policies {
            let is_target = policies
                .iter()
                .any(|other| self.policies[other.index()].overflow == Some(*no));
            self.policies[no.index()].is_target = is_target;
        }
    }
}

fn metering() -> PolicySpec {
    PolicySpec::new(
        PolicyName::parse("metered").expect("a literal name"),
        Tier::B,
        Unit::MicroWtu,
        Window::Calendar {
            offset_minutes: 0,
            unit: CalendarUnit::Month,
        },
        Limit::Metered,
    )
}
