//! A ledger read back from its rows.

use std::collections::BTreeMap;

use governance_context::AttemptId;

use super::entry::{Chain, Hash};
use super::row::{AccountRow, AttemptRow, LegRow, PolicyRow, State, WindowRow};
use super::{Account, Attempt, Config, Counters, Ledger, Policy, Reason};
use crate::account::UnixMs;

/// What a ledger needs from its database to go on.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All, by number.
    pub accounts: Vec<AccountRow>,
    /// All, by number, replaced ones too.
    pub policies: Vec<PolicyRow>,
    /// The latest of each policy, and all that something is held or owed in.
    pub windows: Vec<WindowRow>,
    /// All open ones, and the newest of the ended ones in the order they ended.
    pub attempts: Vec<AttemptRow>,
    /// The largest id of an attempt that is in the database and not among `attempts`.
    pub horizon: Option<AttemptId>,
    /// Those of open attempts.
    pub legs: Vec<LegRow>,
    /// Number and hash of the last entry.
    pub head: (u64, Hash),
    /// The instant of the last entry; time does not go back behind it.
    pub at: UnixMs,
}

/// The rows contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ledger's rows contradict each other: {0}")]
pub struct Inconsistent(pub &'static str);

impl Ledger {
    /// The ledger the rows describe.
    pub fn restore(config: Config, snapshot: Snapshot) -> Result<Ledger, Inconsistent> {
        let mut ledger = Ledger::new(config);
        ledger.now = snapshot.at;
        ledger.horizon = snapshot.horizon;
        ledger.chain = Chain {
            seq: snapshot.head.0,
            hash: snapshot.head.1,
        };
        for row in snapshot.accounts {
            ledger.restore_account(row)?;
        }
        for row in snapshot.policies {
            ledger.restore_policy(row)?;
        }
        ledger.relink();
        for row in snapshot.windows {
            ledger.restore_window(&row)?;
        }
        for row in snapshot.attempts {
            ledger.restore_attempt(row);
        }
        for leg in snapshot.legs {
            ledger.restore_leg(leg)?;
        }
        Ok(ledger)
    }

    /// Every attempt that counts as sent belonged to a process that is gone: its end is unknown.
    pub fn disown(&mut self, now: UnixMs) {
        self.advance(now);
        let sent = |id: &AttemptId| {
            self.attempts
                .get(id)
                .is_some_and(|a| a.row.state == State::Sent)
        };
        let orphans: Vec<_> = self.due.iter().map(|(_, id)| *id).filter(sent).collect();
        for id in orphans {
            self.become_unknown(id, Reason::OwnerLost);
        }
    }

    fn restore_account(&mut self, row: AccountRow) -> Result<(), Inconsistent> {
        if row.no.index() != self.accounts.len() {
            return Err(Inconsistent("account numbers have gaps"));
        }
        self.index.insert(row.id.clone(), row.no);
        self.accounts.push(Account {
            row,
            policies: Vec::new(),
        });
        Ok(())
    }

    fn restore_policy(&mut self, row: PolicyRow) -> Result<(), Inconsistent> {
        if row.no.index() != self.policies.len() {
            return Err(Inconsistent("policy numbers have gaps"));
        }
        let account = self
            .accounts
            .get_mut(row.account.index())
            .ok_or(Inconsistent("a policy belongs to no account"))?;
        if row.to.is_none() {
            account.policies.push(row.no);
        }
        self.policies.push(Policy {
            row,
            overflow: None,
            is_target: false,
            windows: BTreeMap::new(),
        });
        Ok(())
    }

    fn relink(&mut self) {
        let lists: Vec<_> = self
            .accounts
            .iter()
            .map(|account| account.policies.clone())
            .collect();
        for policies in lists {
            self.link_overflow(&policies);
        }
    }

    fn restore_window(&mut self, row: &WindowRow) -> Result<(), Inconsistent> {
        let policy = self
            .policies
            .get_mut(row.policy.index())
            .ok_or(Inconsistent("a window belongs to no policy"))?;
        let counters = Counters {
            end: row.end,
            granted: row.granted,
            held: row.held,
            used: row.used,
            debt: row.debt,
            version: row.version,
            open_legs: 0,
        };
        policy.windows.insert(row.start, counters);
        Ok(())
    }

    fn restore_attempt(&mut self, row: AttemptRow) {
        let (id, due, open) = (row.id, row.due, row.state.is_open());
        self.attempts.insert(
            id,
            Attempt {
                row,
                legs: Vec::new(),
            },
        );
        if open {
            self.due.insert((due, id));
        } else {
            self.remember(id);
        }
    }

    fn restore_leg(&mut self, leg: LegRow) -> Result<(), Inconsistent> {
        let policy = self
            .policies
            .get_mut(leg.policy.index())
            .ok_or(Inconsistent("a leg belongs to no policy"))?;
        let counters = policy
            .windows
            .get_mut(&leg.window)
            .ok_or(Inconsistent("a leg belongs to no window"))?;
        counters.open_legs += 1;
        self.attempts
            .get_mut(&leg.attempt)
            .ok_or(Inconsistent("a leg belongs to no open attempt"))?
            .legs
            .push(leg);
        Ok(())
    }
}
