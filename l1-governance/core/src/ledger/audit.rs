//! All invariants that can be seen in the rows, checked in one pass over the entries.

use std::fmt;

use governance_context::AttemptId;
use rustc_hash::FxHashMap;

use super::entry::{Entry, EntryKind, Hash};
use super::row::{LegRow, PolicyNo, PolicyRow, State, WindowRow};
use crate::account::{Tier, UnixMs};

/// Violations told in full; more are only counted.
const MAX_TOLD: usize = 100;

/// How late a resolution may be seen: it is decided at once and written with the next commit.
const LATE_MS: u64 = 60_000;

/// The invariants of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// I1: what a window holds is the sum of the legs of open attempts.
    HeldIsOpenLegs,
    /// I2 and I13: the counters of a window are the sums of its entries; replaying entries gives the same windows.
    CountersAreEntries,
    /// I3: tier D, used + held ≤ granted after every entry, and no debt.
    HardCap,
    /// I4: one hold and at most one end per attempt and leg.
    OneHoldOneEnd,
    /// I5: all legs or none.
    AllLegsOrNone,
    /// I7: an end goes to the window of the hold.
    WindowOfTheHold,
    /// I9: what rolls out of a window and into another is conserved.
    RollConserves,
    /// I10: a refused attempt has no entries.
    RefusedStaysRefused,
    /// I11: no attempt stays unknown beyond its time.
    UnknownInTime,
    /// I12: the hash chain.
    Chain,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invariant::HeldIsOpenLegs => "I1 held is the sum of open legs",
            Invariant::CountersAreEntries => "I2/I13 counters are the sums of entries",
            Invariant::HardCap => "I3 used + held ≤ granted in tier D",
            Invariant::OneHoldOneEnd => "I4 one hold and at most one end",
            Invariant::AllLegsOrNone => "I5 all legs or none",
            Invariant::WindowOfTheHold => "I7 ends go to the window of the hold",
            Invariant::RollConserves => "I9 rolled debt is conserved",
            Invariant::RefusedStaysRefused => "I10 refused stays refused",
            Invariant::UnknownInTime => "I11 unknown ends are resolved in time",
            Invariant::Chain => "I12 the hash chain verifies",
        })
    }
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub invariant: Invariant,
    /// Where.
    pub detail: String,
}

/// Attempts whose end is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnknownGauge {
    /// How many.
    pub attempts: u64,
    /// What they hold in all, counting an attempt once per leg.
    pub held: u64,
    /// When the first of them is resolved.
    pub first_due: Option<UnixMs>,
}

/// The outcome of an audit.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How many entries were read.
    pub entries: u64,
    /// How many windows.
    pub windows: u64,
    /// How many attempts.
    pub attempts: u64,
    /// Number and hash of the last entry.
    pub head: (u64, Hash),
    /// Unknown ends.
    pub unknown: UnknownGauge,
    /// The first violations.
    pub violations: Vec<Violation>,
    /// All violations, told or not.
    pub violation_count: u64,
}

impl Report {
    /// Whether every invariant holds.
    pub fn is_green(&self) -> bool {
        self.violation_count == 0
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    granted: i128,
    held: i128,
    used: i128,
    debt: i128,
    version: u64,
    end: u64,
    open_legs: i128,
}

#[derive(Debug)]
struct LegTrace {
    policy: PolicyNo,
    window: UnixMs,
    held: i64,
    ends: u8,
    rows: u8,
}

#[derive(Debug, Default)]
struct AttemptTrace {
    state: Option<State>,
    legs: Vec<LegTrace>,
}

/// Checks rows as they are read: first all entries in order, then attempts, then legs, then windows.
#[derive(Debug)]
pub struct Auditor {
    now: UnixMs,
    tiers: FxHashMap<PolicyNo, Tier>,
    sums: FxHashMap<(PolicyNo, UnixMs), Sums>,
    traces: FxHashMap<AttemptId, AttemptTrace>,
    /// Debt of a roll on its way, by policy.
    rolling: i128,
    roll_policy: Option<PolicyNo>,
    seen_windows: u64,
    report: Report,
}

impl Auditor {
    /// An audit as of an instant.
    pub fn new(now: UnixMs, policies: &[PolicyRow]) -> Auditor {
        Auditor {
            now,
            tiers: policies.iter().map(|row| (row.no, row.spec.tier)).collect(),
            sums: FxHashMap::default(),
            traces: FxHashMap::default(),
            rolling: 0,
            roll_policy: None,
            seen_windows: 0,
            report: Report::default(),
        }
    }

    /// The next entry. `computed` is [`Entry::computed_hash`], which may be computed elsewhere.
    pub fn entry(&mut self, entry: &Entry, computed: &Hash) {
        let (seq, hash) = self.report.head;
        if entry.seq != seq + 1 || entry.prev_hash != hash || entry.hash != *computed {
            self.violated(Invariant::Chain, || format!("entry {}", entry.seq));
        }
        self.report.head = (entry.seq, entry.hash);
        self.report.entries += 1;
        self.sum(entry);
        self.follow_roll(entry);
        if let Some(attempt) = entry.attempt {
            self.follow_attempt(attempt, entry);
        }
    }

    /// The next attempt.
    pub fn attempt(&mut self, id: AttemptId, state: State, due: UnixMs) {
        self.report.attempts += 1;
        let trace = self.traces.entry(id).or_default();
        trace.state = Some(state);
        let (legs, ended) = (
            trace.legs.len(),
            trace.legs.iter().filter(|leg| leg.ends > 0).count(),
        );
        let held: u64 = trace.legs.iter().map(|leg| leg.held.unsigned_abs()).sum();
        match state {
            State::Refused if legs > 0 => {
                self.violated(Invariant::RefusedStaysRefused, || {
                    format!("attempt {id} has entries")
                });
            }
            State::Sent | State::Unknown if ended > 0 => {
                self.violated(Invariant::OneHoldOneEnd, || {
                    format!("open attempt {id} has ended legs")
                });
            }
            State::Committed | State::Released if ended != legs => {
                self.violated(Invariant::AllLegsOrNone, || {
                    format!("attempt {id} ended {ended} of {legs} legs")
                });
            }
            State::Refused | State::Sent | State::Unknown | State::Committed | State::Released => {}
        }
        if state == State::Unknown {
            self.count_unknown(id, held, due);
        }
    }

    /// The next leg.
    pub fn leg(&mut self, leg: &LegRow) {
        let trace = self.traces.entry(leg.attempt).or_default();
        let open = trace.state.is_some_and(State::is_open);
        let found = trace
            .legs
            .iter_mut()
            .find(|found| found.policy == leg.policy);
        let matches = found.is_some_and(|found| {
            found.rows = found.rows.saturating_add(1);
            let held = found.held.unsigned_abs() == leg.held;
            found.rows == 1 && found.window == leg.window && (held || found.ends > 0)
        });
        if open {
            self.sums
                .entry((leg.policy, leg.window))
                .or_default()
                .open_legs += i128::from(leg.held);
        }
        if !matches {
            self.violated(Invariant::AllLegsOrNone, || {
                format!(
                    "leg of attempt {} under policy {} has no matching hold",
                    leg.attempt, leg.policy.0
                )
            });
        }
    }

    /// The next window.
    pub fn window(&mut self, row: &WindowRow) {
        self.report.windows += 1;
        self.seen_windows += 1;
        let sums = self
            .sums
            .get(&(row.policy, row.start))
            .copied()
            .unwrap_or_default();
        let name = || format!("policy {} window {}", row.policy.0, row.start.0);
        let same = sums.granted == i128::from(row.granted)
            && sums.held == i128::from(row.held)
            && sums.used == i128::from(row.used)
            && sums.debt == i128::from(row.debt)
            && sums.version == row.version
            && sums.end == row.end.0;
        if !same {
            self.violated(Invariant::CountersAreEntries, name);
        }
        if sums.open_legs != i128::from(row.held) {
            self.violated(Invariant::HeldIsOpenLegs, name);
        }
        if self.tiers.get(&row.policy) == Some(&Tier::D) && row.debt > 0 {
            self.violated(Invariant::HardCap, || {
                format!("{}: {} beyond the hold", name(), row.debt)
            });
        }
    }

    /// The outcome.
    pub fn finish(mut self) -> Report {
        if self.rolling != 0 {
            self.violated(Invariant::RollConserves, || {
                "the last roll is not complete".to_owned()
            });
        }
        let windows = self.sums.values().filter(|sums| sums.version > 0).count() as u64;
        if windows != self.seen_windows {
            let seen = self.seen_windows;
            self.violated(Invariant::CountersAreEntries, || {
                format!("{windows} windows in entries, {seen} in rows")
            });
        }
        let odd: Vec<AttemptId> = self.incomplete_attempts();
        for id in odd {
            self.violated(Invariant::AllLegsOrNone, || {
                format!("attempt {id} lacks its row or a leg row")
            });
        }
        self.report
    }

    fn incomplete_attempts(&self) -> Vec<AttemptId> {
        let incomplete = |trace: &AttemptTrace| {
            trace.state.is_none() || trace.legs.iter().any(|leg| leg.rows != 1)
        };
        let mut odd: Vec<AttemptId> = self
            .traces
            .iter()
            .filter(|(_, trace)| incomplete(trace))
            .map(|(id, _)| *id)
            .collect();
        odd.sort_unstable();
        odd
    }

    fn sum(&mut self, entry: &Entry) {
        let sums = self.sums.entry((entry.policy, entry.window)).or_default();
        sums.granted += i128::from(entry.d_granted);
        sums.held += i128::from(entry.d_held);
        sums.used += i128::from(entry.d_used);
        sums.debt += i128::from(entry.d_debt);
        sums.version += 1;
        sums.end = entry.window_end.0;
        let sums = *sums;
        if sums.granted < 0 || sums.held < 0 || sums.used < 0 || sums.debt < 0 {
            self.violated(Invariant::CountersAreEntries, || {
                format!("entry {} goes below zero", entry.seq)
            });
        }
        if self.tiers.get(&entry.policy) == Some(&Tier::D) && sums.used + sums.held > sums.granted {
            self.violated(Invariant::HardCap, || format!("after entry {}", entry.seq));
        }
    }

    /// Debt leaves a window as `-debt`, of which some stays there as used; the rest must arrive next.
    fn follow_roll(&mut self, entry: &Entry) {
        if self.rolling != 0 {
            let arrives = entry.kind == EntryKind::Roll && self.roll_policy == Some(entry.policy);
            if !arrives || i128::from(entry.d_debt) != self.rolling || entry.d_used != 0 {
                self.violated(Invariant::RollConserves, || format!("entry {}", entry.seq));
            }
            self.rolling = 0;
            return;
        }
        if entry.kind == EntryKind::Roll {
            self.rolling = -i128::from(entry.d_debt) - i128::from(entry.d_used);
            self.roll_policy = Some(entry.policy);
            if entry.d_debt >= 0 || self.rolling < 0 {
                self.violated(Invariant::RollConserves, || format!("entry {}", entry.seq));
                self.rolling = 0;
            }
        }
    }

    fn follow_attempt(&mut self, attempt: AttemptId, entry: &Entry) {
        let legs = &mut self.traces.entry(attempt).or_default().legs;
        let found = legs.iter_mut().find(|leg| leg.policy == entry.policy);
        let wrong = match (entry.kind, found) {
            (EntryKind::Hold, None) => {
                legs.push(LegTrace {
                    policy: entry.policy,
                    window: entry.window,
                    held: entry.d_held,
                    ends: 0,
                    rows: 0,
                });
                None
            }
            (EntryKind::Hold, Some(_)) | (_, None) => Some(Invariant::OneHoldOneEnd),
            (kind, Some(leg)) => leg.follow(kind, entry),
        };
        if let Some(invariant) = wrong {
            self.violated(invariant, || {
                format!("entry {} of attempt {attempt}", entry.seq)
            });
        }
    }

    fn count_unknown(&mut self, id: AttemptId, held: u64, due: UnixMs) {
        let gauge = &mut self.report.unknown;
        gauge.attempts += 1;
        gauge.held = gauge.held.saturating_add(held);
        gauge.first_due = Some(gauge.first_due.map_or(due, |first| first.min(due)));
        if due.plus(LATE_MS) < self.now {
            self.violated(Invariant::UnknownInTime, || format!("attempt {id}"));
        }
    }

    fn violated(&mut self, invariant: Invariant, detail: impl FnOnce() -> String) {
        self.report.violation_count += 1;
        if self.report.violations.len() < MAX_TOLD {
            let detail = detail();
            self.report.violations.push(Violation { invariant, detail });
        }
    }
}

impl LegTrace {
    fn follow(&mut self, kind: EntryKind, entry: &Entry) -> Option<Invariant> {
        if self.window != entry.window {
            return Some(Invariant::WindowOfTheHold);
        }
        if kind.is_end() {
            self.ends = self.ends.saturating_add(1);
            let gives_back = entry.d_held == -self.held;
            self.held = 0;
            return (self.ends > 1 || !gives_back).then_some(Invariant::OneHoldOneEnd);
        }
        (self.ends > 0 || entry.d_held != 0).then_some(Invariant::OneHoldOneEnd)
    }
}
