//! The rows of a ledger, as a database would keep them.

use std::collections::BTreeMap;
use std::sync::Arc;

use governance_context::AttemptId;
use governance_core::account::UnixMs;
use governance_core::ledger::{
    AccountNo, AccountRow, AttemptRow, Auditor, Effect, Entry, EntryKind, LegRow, PolicyNo,
    PolicyRow, Report, Snapshot, WindowRow,
};

#[derive(Clone, Default)]
pub(crate) struct Rows {
    accounts: BTreeMap<AccountNo, AccountRow>,
    policies: BTreeMap<PolicyNo, PolicyRow>,
    pub(crate) windows: BTreeMap<(PolicyNo, UnixMs), WindowRow>,
    pub(crate) attempts: BTreeMap<AttemptId, Arc<AttemptRow>>,
    pub(crate) legs: BTreeMap<AttemptId, Vec<LegRow>>,
    /// The most each window ever granted.
    pub(crate) most: BTreeMap<(PolicyNo, UnixMs), u64>,
    entries: Vec<Entry>,
    /// Charges above the largest possible one.
    pub(crate) alarms: u32,
}

impl Rows {
    pub(crate) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Account(row) => drop(self.accounts.insert(row.no, AccountRow::clone(row))),
            Effect::Policy(row) => drop(self.policies.insert(row.no, PolicyRow::clone(row))),
            Effect::Window(row) => {
                let key = (row.policy, row.start);
                let most = self.most.entry(key).or_default();
                *most = row.granted.max(*most);
                self.windows.insert(key, *row);
            }
            Effect::Attempt(row) => drop(self.attempts.insert(row.id, Arc::clone(row))),
            Effect::Leg(row) => self.legs.entry(row.attempt).or_default().push(*row),
            Effect::Entry(row) => self.entries.push(*row),
            Effect::Alarm(_) => self.alarms += 1,
        }
    }

    /// How often debt went into another window.
    pub(crate) fn rolls(&self) -> u32 {
        let rolls = self.entries.iter();
        rolls
            .filter(|entry| entry.kind == EntryKind::Roll && entry.d_debt > 0)
            .count() as u32
    }

    /// What a ledger is read back from: no more than it needs.
    pub(crate) fn snapshot(&self, remember: usize) -> Snapshot {
        let (open, mut ended): (Vec<_>, Vec<_>) =
            self.attempts.values().partition(|row| row.state.is_open());
        let left_out = ended.len().saturating_sub(remember);
        let horizon = ended.drain(..left_out).next_back().map(|row| row.id);
        let legs: Vec<LegRow> = open
            .iter()
            .filter_map(|row| self.legs.get(&row.id))
            .flatten()
            .copied()
            .collect();
        let last = self.entries.last();
        Snapshot {
            accounts: self.accounts.values().cloned().collect(),
            policies: self.policies.values().cloned().collect(),
            windows: self.live_windows(&legs),
            attempts: open
                .into_iter()
                .chain(ended)
                .map(|row| AttemptRow::clone(row))
                .collect(),
            horizon,
            legs,
            head: last
                .map(|entry| (entry.seq, entry.hash))
                .unwrap_or_default(),
            at: last.map(|entry| entry.at).unwrap_or_default(),
        }
    }

    fn live_windows(&self, legs: &[LegRow]) -> Vec<WindowRow> {
        let latest: BTreeMap<PolicyNo, UnixMs> = self.windows.keys().copied().collect();
        let lives = |row: &&WindowRow| {
            row.held > 0
                || row.debt > 0
                || latest[&row.policy] == row.start
                || legs
                    .iter()
                    .any(|leg| (leg.policy, leg.window) == (row.policy, row.start))
        };
        self.windows.values().filter(lives).copied().collect()
    }

    /// Every invariant, from the first entry on.
    pub(crate) fn audit(&self, now: UnixMs) -> Report {
        let policies: Vec<PolicyRow> = self.policies.values().cloned().collect();
        let mut auditor = Auditor::new(now, &policies);
        for entry in &self.entries {
            auditor.entry(entry, &entry.computed_hash());
        }
        for row in self.attempts.values() {
            auditor.attempt(row.id, row.state, row.due);
        }
        for leg in self.legs.values().flatten() {
            auditor.leg(leg);
        }
        for row in self.windows.values() {
            auditor.window(row);
        }
        auditor.finish()
    }
}
