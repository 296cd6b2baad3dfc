//! Where a policy stands at this instant, and bringing its window up to that.
//!
//! A window exists from the first time it is touched; nothing has to run at a boundary. Touching it opens it,
//! follows a changed limit, and moves the overrun of earlier windows in.

use governance_context::AttemptId;

use super::entry::{Deltas, Entry, EntryKind, Hash};
use super::row::{Effect, PolicyNo, WindowRow};
use super::{Balance, Counters, Ledger, Policy};
use crate::account::{AccountId, Carry, Limit, Span, Tier, UnixMs};

/// Idle windows that are looked at to pay a debt; what is left after so many is carried whole.
const MAX_IDLE_WINDOWS: usize = 1024;

/// The counters as they are once everything due has been brought in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) span: Span,
    /// `None`: counted only.
    pub(super) limit: Option<u64>,
    pub(super) held: u64,
    pub(super) used: u64,
    pub(super) debt: u64,
}

impl Standing {
    pub(super) fn available(&self) -> i64 {
        let Some(limit) = self.limit else {
            return i64::MAX;
        };
        let taken = i128::from(self.held) + i128::from(self.used) + i128::from(self.debt);
        i64::try_from(i128::from(limit) - taken).unwrap_or(i64::MIN)
    }
}

/// Debt leaving an earlier window: `moved` goes to the current one, the rest counts as used where it arose.
struct Roll {
    from: UnixMs,
    debt: u64,
    moved: u64,
}

impl Counters {
    /// What the window cannot pay any more. What is held in it is promised to those who hold it: once debt has
    /// left as paid, nothing would bring it back.
    fn overrun(&self) -> u64 {
        self.used
            .saturating_add(self.held)
            .saturating_add(self.debt)
            .saturating_sub(self.granted)
            .min(self.debt)
    }
}

impl Policy {
    pub(super) fn standing(&self, now: UnixMs) -> Standing {
        let span = self.row.spec.window.span(now);
        let open = self.windows.get(&span.start);
        let moved: u64 = self.rolls(span).iter().map(|roll| roll.moved).sum();
        Standing {
            span,
            limit: (self.row.spec.limit != Limit::Metered).then(|| self.grant(now, open)),
            held: open.map_or(0, |c| c.held),
            used: open.map_or(0, |c| c.used),
            debt: open.map_or(0, |c| c.debt).saturating_add(moved),
        }
    }

    /// What the window grants under the limit in force. A hard cap is never lowered below what is promised.
    fn grant(&self, now: UnixMs, open: Option<&Counters>) -> u64 {
        let limit = self.row.spec.limit_at(now).unwrap_or(0);
        match (self.row.spec.tier, open) {
            (Tier::D, Some(counters)) => limit.max(counters.used.saturating_add(counters.held)),
            (Tier::D, None) | (Tier::B, _) => limit,
        }
    }

    fn carries(&self) -> bool {
        self.row.spec.carry == Carry::Debt && self.row.spec.limit != Limit::Metered
    }

    fn rolls(&self, current: Span) -> Vec<Roll> {
        if !self.carries() {
            return Vec::new();
        }
        let indebted = self
            .windows
            .range(..current.start)
            .filter(|(_, counters)| counters.debt > 0);
        let mut rolls: Vec<Roll> = indebted
            .map(|(start, counters)| Roll {
                from: *start,
                debt: counters.debt,
                moved: counters.overrun(),
            })
            .collect();
        let owed = rolls.iter().map(|roll| roll.moved).sum();
        let mut paid = self.paid_while_idle(current, owed);
        for roll in &mut rolls {
            let part = paid.min(roll.moved);
            roll.moved -= part;
            paid -= part;
        }
        rolls
    }

    /// How much of a debt the windows nobody touched have paid: each would have granted its whole limit.
    fn paid_while_idle(&self, current: Span, owed: u64) -> u64 {
        let opened = self.windows.contains_key(&current.start);
        let Some(latest) = self
            .windows
            .values()
            .next_back()
            .filter(|_| !opened && owed > 0)
        else {
            return 0;
        };
        let each = match self.row.spec.limit {
            Limit::Of(limit) => limit,
            Limit::Metered => 0,
        };
        let (mut at, mut paid) = (latest.end, 0u64);
        for _ in 0..MAX_IDLE_WINDOWS {
            if at >= current.start || paid >= owed {
                break;
            }
            paid = paid.saturating_add(each);
            at = self.row.spec.window.span(at).end;
        }
        paid.min(owed)
    }

    /// Forgets windows that no longer matter to any decision; the database keeps them.
    pub(super) fn prune(&mut self) {
        let Some(latest) = self.windows.keys().next_back().copied() else {
            return;
        };
        if self.windows.len() == 1 {
            return;
        }
        let carries = self.carries();
        self.windows
            .retain(|start, c| *start == latest || c.open_legs > 0 || (carries && c.debt > 0));
    }
}

impl Ledger {
    /// Where an account stands under each of its policies. Empty for an unknown account.
    pub fn balances(&self, now: UnixMs, id: &AccountId) -> Vec<Balance> {
        let now = self.now.max(now);
        let Some(no) = self.index.get(id) else {
            return Vec::new();
        };
        let policies = self.accounts[no.index()].policies.iter();
        policies
            .map(|no| self.policies[no.index()].balance(now, id))
            .collect()
    }

    /// Brings the window of a policy up to now and says which it is.
    pub(super) fn touch(&mut self, no: PolicyNo) -> UnixMs {
        let now = self.now;
        let policy = &mut self.policies[no.index()];
        let span = policy.row.spec.window.span(now);
        let rolls = policy.rolls(span);
        let open = policy.windows.get(&span.start).copied();
        let granted = if policy.row.spec.limit == Limit::Metered {
            0
        } else {
            policy.grant(now, open.as_ref())
        };
        match open {
            None => {
                policy
                    .windows
                    .insert(span.start, Counters::opening(span.end));
                self.enter(
                    EntryKind::Credit,
                    None,
                    no,
                    span.start,
                    grant_by(granted, 0),
                );
            }
            Some(counters) if counters.granted != granted => {
                self.enter(
                    EntryKind::Adjust,
                    None,
                    no,
                    span.start,
                    grant_by(granted, counters.granted),
                );
            }
            Some(_) => {}
        }
        for roll in rolls {
            self.roll(no, span.start, &roll);
        }
        self.policies[no.index()].prune();
        span.start
    }

    fn roll(&mut self, no: PolicyNo, to: UnixMs, roll: &Roll) {
        let out = Deltas {
            debt: -signed(roll.debt),
            used: signed(roll.debt - roll.moved),
            ..Deltas::default()
        };
        self.enter(EntryKind::Roll, None, no, roll.from, out);
        if roll.moved > 0 {
            let into = Deltas {
                debt: signed(roll.moved),
                ..Deltas::default()
            };
            self.enter(EntryKind::Roll, None, no, to, into);
        }
    }

    /// Moves the counters of a window by an entry. The only way they move.
    pub(super) fn enter(
        &mut self,
        kind: EntryKind,
        attempt: Option<AttemptId>,
        no: PolicyNo,
        window: UnixMs,
        deltas: Deltas,
    ) {
        let policy = &mut self.policies[no.index()];
        let counters = policy
            .windows
            .get_mut(&window)
            .expect("a window with open legs or the current one is kept in memory");
        counters.apply(&deltas);
        let row = counters.row(policy.row.account, no, window);
        let entry = self.chain.append(Entry {
            seq: 0,
            attempt,
            kind,
            account: policy.row.account,
            policy: no,
            window,
            window_end: row.end,
            d_granted: deltas.granted,
            d_held: deltas.held,
            d_used: deltas.used,
            d_debt: deltas.debt,
            at: self.now,
            prev_hash: Hash::default(),
            hash: Hash::default(),
        });
        self.effects.push(Effect::Window(row));
        self.effects.push(Effect::Entry(entry));
    }
}

impl Policy {
    fn balance(&self, now: UnixMs, id: &AccountId) -> Balance {
        let standing = self.standing(now);
        Balance {
            account: id.clone(),
            policy: self.row.spec.name.clone(),
            tier: self.row.spec.tier,
            unit: self.row.spec.unit,
            window: standing.span,
            limit: standing.limit,
            used: standing.used,
            held: standing.held,
            debt: standing.debt,
            available: standing.available(),
        }
    }
}

impl Counters {
    fn opening(end: UnixMs) -> Counters {
        Counters {
            end,
            granted: 0,
            held: 0,
            used: 0,
            debt: 0,
            version: 0,
            open_legs: 0,
        }
    }

    fn apply(&mut self, deltas: &Deltas) {
        let moved = |counter: u64, delta: i64| {
            counter
                .checked_add_signed(delta)
                .expect("no entry takes out more than earlier ones brought in")
        };
        self.granted = moved(self.granted, deltas.granted);
        self.held = moved(self.held, deltas.held);
        self.used = moved(self.used, deltas.used);
        self.debt = moved(self.debt, deltas.debt);
        self.version += 1;
    }

    fn row(&self, account: super::row::AccountNo, policy: PolicyNo, start: UnixMs) -> WindowRow {
        WindowRow {
            account,
            policy,
            start,
            end: self.end,
            granted: self.granted,
            held: self.held,
            used: self.used,
            debt: self.debt,
            version: self.version,
        }
    }
}

fn grant_by(to: u64, from: u64) -> Deltas {
    Deltas {
        granted: signed(to) - signed(from),
        ..Deltas::default()
    }
}

/// Counters stay below 2⁶³: limits are at most 10¹⁸ and amounts at most 2⁵⁰ each.
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).expect("amounts stay below 2⁶³")
}
