//! What the ledger is tested against: a database that is a few lists, and a ledger that is a list and a sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::account::{Limit, PolicySpec};

/// The rows, as a store would keep them.
#[derive(Debug, Default, Clone)]
pub(super) struct Database {
    pub(super) accounts: BTreeMap<AccountNo, AccountRow>,
    pub(super) policies: BTreeMap<PolicyNo, PolicyRow>,
    pub(super) windows: BTreeMap<(PolicyNo, UnixMs), WindowRow>,
    pub(super) attempts: BTreeMap<AttemptId, Arc<AttemptRow>>,
    pub(super) legs: Vec<LegRow>,
    pub(super) entries: Vec<Entry>,
    pub(super) alarms: usize,
}

impl Database {
    pub(super) fn write(&mut self, effects: impl Iterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Account(row) => drop(self.accounts.insert(row.no, *row)),
                Effect::Policy(row) => drop(self.policies.insert(row.no, *row)),
                Effect::Window(row) => drop(self.windows.insert((row.policy, row.start), row)),
                Effect::Attempt(row) => drop(self.attempts.insert(row.id, row)),
                Effect::Leg(row) => self.legs.push(row),
                Effect::Entry(row) => self.entries.push(row),
                Effect::Alarm(_) => self.alarms += 1,
            }
        }
    }

    pub(super) fn snapshot(&self, remember: usize) -> Snapshot {
        let open = |row: &&Arc<AttemptRow>| row.state.is_open();
        let mut ended: Vec<_> = self.attempts.values().filter(|row| !open(row)).collect();
        let left_out = ended.len().saturating_sub(remember);
        let horizon = ended.drain(..left_out).next_back().map(|row| row.id);
        let attempts = self.attempts.values().filter(open).chain(ended);
        let is_open = |leg: &&LegRow| self.attempts[&leg.attempt].state.is_open();
        Snapshot {
            accounts: self.accounts.values().cloned().collect(),
            policies: self.policies.values().cloned().collect(),
            windows: self.windows.values().copied().collect(),
            attempts: attempts.map(|row| AttemptRow::clone(row)).collect(),
            horizon,
            legs: self.legs.iter().filter(is_open).copied().collect(),
            head: self
                .entries
                .last()
                .map(|entry| (entry.seq, entry.hash))
                .unwrap_or_default(),
            at: self
                .entries
                .last()
                .map(|entry| entry.at)
                .unwrap_or_default(),
        }
    }

    pub(super) fn audit(&self, now: UnixMs) -> Report {
        let policies: Vec<PolicyRow> = self.policies.values().cloned().collect();
        let mut auditor = Auditor::new(now, &policies);
        self.entries
            .iter()
            .for_each(|entry| auditor.entry(entry, &entry.computed_hash()));
        self.attempts
            .values()
            .for_each(|row| auditor.attempt(row.id, row.state, row.due));
        self.legs.iter().for_each(|leg| auditor.leg(leg));
        self.windows.values().for_each(|row| auditor.window(row));
        auditor.finish()
    }
}

/// One hold or charge of the list.
#[derive(Debug, Clone)]
struct Line {
    attempt: AttemptId,
    policy: (AccountId, PolicyName),
    window: UnixMs,
    held: u64,
    charged: u64,
}

/// A ledger that adds everything up anew each time. It knows no debt: its policies must not carry.
#[derive(Debug, Default, Clone)]
pub(super) struct Reference {
    pub(super) policies: BTreeMap<AccountId, Vec<PolicySpec>>,
    lines: Vec<Line>,
    states: BTreeMap<AttemptId, (State, UnixMs, Reservation, Amounts)>,
}

impl Reference {
    fn taken(&self, account: &AccountId, policy: &PolicyName, window: UnixMs) -> (u64, u64) {
        let key = (account.clone(), policy.clone());
        let lines = self
            .lines
            .iter()
            .filter(|line| line.policy == key && line.window == window);
        lines.fold((0, 0), |(held, charged), line| {
            (held + line.held, charged + line.charged)
        })
    }

    /// Whether it may run. `Err(None)`: the id was used before.
    pub(super) fn reserve(
        &mut self,
        now: UnixMs,
        reservation: &Reservation,
    ) -> Result<(), Option<Fits>> {
        if self.states.contains_key(&reservation.attempt) {
            return Err(None);
        }
        let (mut lines, mut waits) = (Vec::new(), Vec::new());
        for account in reservation.path.accounts() {
            for policy in &self.policies[account] {
                let Span { start, .. } = policy.window.span(now);
                let asked = asked(policy, reservation);
                let (held, charged) = self.taken(account, &policy.name, start);
                if let Limit::Of(limit) = policy.limit
                    && asked > 0
                    && held + charged + asked > limit
                {
                    let fits = waits_for(limit, held, charged, least(policy, reservation));
                    waits.push((policy.tier, fits));
                }
                lines.push(Line {
                    attempt: reservation.attempt,
                    policy: (account.clone(), policy.name.clone()),
                    window: start,
                    held: asked,
                    charged: 0,
                });
            }
        }
        let longest = told(&waits);
        let (state, due) = match longest {
            Some(_) => (State::Refused, now),
            None => (State::Sent, now.plus(reservation.lease_ms)),
        };
        let row = (state, due, reservation.clone(), Amounts::default());
        self.states.insert(reservation.attempt, row);
        if longest.is_some() {
            return Err(longest);
        }
        self.lines.extend(lines);
        Ok(())
    }

    pub(super) fn settle(
        &mut self,
        now: UnixMs,
        id: AttemptId,
        settlement: &Settlement,
        unknown_after: u64,
    ) {
        let Some((state, due, _, seen)) = self.states.get_mut(&id) else {
            return;
        };
        if !state.is_open() {
            return;
        }
        match settlement {
            Settlement::Commit(observed) => {
                *state = State::Committed;
                let amounts = observed.amounts();
                self.end(id, |_, spec| amounts.in_unit(spec.unit));
            }
            Settlement::Release { .. } => {
                *state = State::Released;
                self.end(id, |_, _| 0);
            }
            Settlement::Unknown { observed, .. } => {
                if let Some(observed) = observed.filter(|o| o.usage.total() >= seen.tokens) {
                    *seen = observed.amounts();
                }
                if *state == State::Sent {
                    *state = State::Unknown;
                    *due = now.plus(unknown_after);
                }
            }
        }
    }

    pub(super) fn timeout(&mut self, now: UnixMs, unknown_after: u64) {
        let ids: Vec<AttemptId> = self.states.keys().copied().collect();
        for id in ids {
            let (state, due, _, seen) = self.states.get_mut(&id).unwrap();
            if *state == State::Sent && *due <= now {
                *state = State::Unknown;
                *due = now.plus(unknown_after);
            } else if *state == State::Unknown && *due <= now {
                *state = State::Committed;
                let seen = *seen;
                self.end(id, |held, spec| match spec.tier {
                    Tier::B => seen.in_unit(spec.unit),
                    Tier::D => held.max(seen.in_unit(spec.unit)),
                });
            }
        }
    }

    pub(super) fn restart(&mut self, now: UnixMs, unknown_after: u64) {
        for (state, due, _, _) in self.states.values_mut() {
            if *state == State::Sent {
                *state = State::Unknown;
                *due = now.plus(unknown_after);
            }
        }
    }

    fn end(&mut self, id: AttemptId, charge: impl Fn(u64, &PolicySpec) -> u64) {
        for line in self.lines.iter_mut().filter(|line| line.attempt == id) {
            let (account, name) = &line.policy;
            let spec = self.policies[account]
                .iter()
                .find(|spec| spec.name == *name)
                .unwrap();
            line.charged = charge(line.held, spec);
            line.held = 0;
        }
    }

    /// Every window ever touched: what is held, and what is used or owed.
    pub(super) fn totals(&self) -> BTreeMap<(AccountId, PolicyName, UnixMs), (u64, u64)> {
        let mut totals = BTreeMap::new();
        for line in &self.lines {
            let (account, policy) = line.policy.clone();
            let total: &mut (u64, u64) = totals.entry((account, policy, line.window)).or_default();
            total.0 += line.held;
            total.1 += line.charged;
        }
        totals
    }

    pub(super) fn states(&self) -> BTreeMap<AttemptId, State> {
        self.states
            .iter()
            .map(|(id, (state, ..))| (*id, *state))
            .collect()
    }
}

fn asked(policy: &PolicySpec, reservation: &Reservation) -> u64 {
    let amounts = match policy.tier {
        Tier::B => &reservation.estimate,
        Tier::D => &reservation.largest,
    };
    amounts.in_unit(policy.unit)
}

fn least(policy: &PolicySpec, reservation: &Reservation) -> u64 {
    match policy.tier {
        Tier::B => reservation.estimate.in_unit(policy.unit),
        Tier::D => reservation.least.in_unit(policy.unit),
    }
}

fn waits_for(limit: u64, held: u64, charged: u64, least: u64) -> Fits {
    let fits = |taken: u64| taken + least <= limit;
    match (fits(0), fits(charged), fits(charged + held)) {
        (false, ..) => Fits::Never,
        (_, false, _) => Fits::OnceStartedOver,
        (_, _, false) => Fits::OnceHoldsEnd,
        (true, true, true) => Fits::Lowered,
    }
}

/// What a refusal tells of several: hard caps that only want less asked for come before the rest, which is judged then.
fn told(waits: &[(Tier, Fits)]) -> Option<Fits> {
    let hard: Vec<_> = waits.iter().filter(|(tier, _)| *tier == Tier::D).collect();
    if !hard.is_empty() && hard.iter().all(|(_, fits)| *fits == Fits::Lowered) {
        return Some(Fits::Lowered);
    }
    waits.iter().map(|(_, fits)| *fits).max()
}
