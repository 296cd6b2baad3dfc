//! The end of an attempt. Never fails for lack of room: what does not fit the hold is recorded all the same.

use std::sync::Arc;

use governance_context::{AttemptId, MicroWtu};

use super::entry::{Deltas, EntryKind};
use super::row::{Effect, LegRow, State};
use super::standing::signed;
use super::{Amounts, Ledger, MAX_AMOUNT, Observed, Reason};
use crate::account::{Limit, Tier, Unit};

/// What one leg pays.
#[derive(Clone, Copy)]
struct Part {
    leg: LegRow,
    used: u64,
    debt: u64,
}

impl Ledger {
    pub(super) fn commit(&mut self, id: AttemptId, observed: &Observed) {
        let amounts = observed.amounts();
        let legs = self.close(id, State::Committed);
        for group in legs.chunk_by(|a, b| a.head == b.head) {
            let charge = amounts.in_unit(self.unit(group)).min(MAX_AMOUNT);
            self.charge(EntryKind::Commit, id, group, charge);
        }
        self.finish(id, |row| {
            row.charged = amounts;
            row.usage = Some((observed.usage, observed.basis));
        });
    }

    pub(super) fn release(&mut self, id: AttemptId, reason: Reason) {
        for leg in self.close(id, State::Released) {
            let back = Deltas {
                held: -signed(leg.held),
                ..Deltas::default()
            };
            self.enter(EntryKind::Release, Some(id), leg.policy, leg.window, back);
            self.leave(&leg);
        }
        self.finish(id, |row| row.reason = Some(reason));
    }

    pub(super) fn become_unknown(&mut self, id: AttemptId, reason: Reason) {
        let due = self.now.plus(self.config.unknown_after_ms);
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        self.due.remove(&(attempt.row.due, id));
        self.due.insert((due, id));
        attempt.row.state = State::Unknown;
        attempt.row.reason = Some(reason);
        attempt.row.due = due;
        let row = attempt.row.clone();
        for leg in attempt.legs.clone() {
            self.enter(
                EntryKind::Unknown,
                Some(id),
                leg.policy,
                leg.window,
                Deltas::default(),
            );
        }
        self.effects.push(Effect::Attempt(Arc::new(row)));
    }

    /// Keeps the larger of what was seen.
    pub(super) fn observe(&mut self, id: AttemptId, observed: Option<Observed>) {
        let (Some(observed), Some(attempt)) = (observed, self.attempts.get_mut(&id)) else {
            return;
        };
        let seen = attempt.row.usage.map_or(0, |(tokens, _)| tokens.total());
        if observed.usage.total() >= seen {
            attempt.row.usage = Some((observed.usage, observed.basis));
            attempt.row.charged = observed.amounts();
            self.effects
                .push(Effect::Attempt(Arc::new(attempt.row.clone())));
        }
    }

    /// The tier's rule for an end nobody can tell: a hard cap charges the hold, an estimate what was seen.
    pub(super) fn resolve(&mut self, id: AttemptId) {
        let seen = self
            .attempts
            .get(&id)
            .map(|attempt| attempt.row.charged)
            .unwrap_or_default();
        let mut charged = seen;
        let legs = self.close(id, State::Committed);
        for group in legs.chunk_by(|a, b| a.head == b.head) {
            let unit = self.unit(group);
            let held: u64 = group.iter().map(|leg| leg.held).sum();
            let seen = seen.in_unit(unit).min(MAX_AMOUNT);
            let charge = match self.tier(group) {
                Tier::B => seen,
                Tier::D => held.max(seen),
            };
            self.charge(EntryKind::Resolve, id, group, charge);
            match unit {
                Unit::MicroWtu => charged.wtu = charged.wtu.max(MicroWtu(charge)),
                Unit::Tokens => charged.tokens = charged.tokens.max(charge),
            }
        }
        self.finish(id, |row| row.charged = charged);
    }

    /// Splits a charge over the legs of one policy and its overflow: first what each holds, then what each
    /// window still has, the rest as debt of the last.
    fn charge(&mut self, kind: EntryKind, id: AttemptId, group: &[LegRow], charge: u64) {
        let mut rest = charge;
        let mut parts: Vec<Part> = group
            .iter()
            .map(|leg| {
                let used = rest.min(leg.held);
                rest -= used;
                Part {
                    leg: *leg,
                    used,
                    debt: 0,
                }
            })
            .collect();
        let beyond_hold = rest;
        for part in &mut parts {
            let extra = rest.min(self.room_beside(part));
            part.used += extra;
            rest -= extra;
        }
        if let Some(last) = parts.last_mut() {
            last.debt = rest;
        }
        for part in &parts {
            let deltas = Deltas {
                held: -signed(part.leg.held),
                used: signed(part.used),
                debt: signed(part.debt),
                ..Deltas::default()
            };
            self.enter(kind, Some(id), part.leg.policy, part.leg.window, deltas);
            self.leave(&part.leg);
        }
        if beyond_hold > 0 && self.tier(group) == Tier::D {
            self.alarm(id);
        }
    }

    /// What the window of a leg has left once the leg's hold is gone and its part is used.
    fn room_beside(&self, part: &Part) -> u64 {
        let policy = &self.policies[part.leg.policy.index()];
        if policy.row.spec.limit == Limit::Metered {
            return u64::MAX;
        }
        let Some(counters) = policy.windows.get(&part.leg.window) else {
            return 0;
        };
        let taken = counters.used + part.used + (counters.held - part.leg.held) + counters.debt;
        counters.granted.saturating_sub(taken)
    }

    fn alarm(&mut self, id: AttemptId) {
        if let Some(attempt) = self.attempts.get(&id) {
            self.effects
                .push(Effect::Alarm(Arc::new(attempt.row.clone())));
        }
    }

    /// Marks an attempt ended and hands out its legs.
    fn close(&mut self, id: AttemptId, state: State) -> Vec<LegRow> {
        let now = self.now;
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return Vec::new();
        };
        self.due.remove(&(attempt.row.due, id));
        attempt.row.state = state;
        attempt.row.ended = Some(now);
        if state == State::Released {
            attempt.row.charged = Amounts::default();
        }
        std::mem::take(&mut attempt.legs)
    }

    fn finish(&mut self, id: AttemptId, complete: impl FnOnce(&mut super::AttemptRow)) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            complete(&mut attempt.row);
            self.effects
                .push(Effect::Attempt(Arc::new(attempt.row.clone())));
        }
        self.remember(id);
    }

    fn leave(&mut self, leg: &LegRow) {
        let policy = &mut self.policies[leg.policy.index()];
        if let Some(counters) = policy.windows.get_mut(&leg.window) {
            counters.open_legs -= 1;
        }
        policy.prune();
    }

    /// Keeps an ended attempt for repeats, and forgets the oldest beyond the bound.
    pub(super) fn remember(&mut self, id: AttemptId) {
        self.ended.push_back(id);
        while self.ended.len() > self.config.remember {
            if let Some(oldest) = self.ended.pop_front() {
                self.attempts.remove(&oldest);
                self.refusals.remove(&oldest);
                self.horizon = self.horizon.max(Some(oldest));
            }
        }
    }

    fn unit(&self, group: &[LegRow]) -> Unit {
        group.first().map_or(Unit::MicroWtu, |leg| {
            self.policies[leg.policy.index()].row.spec.unit
        })
    }

    fn tier(&self, group: &[LegRow]) -> Tier {
        group.first().map_or(Tier::B, |leg| {
            self.policies[leg.policy.index()].row.spec.tier
        })
    }
}
