//! What governance must say: a list of what happened to each attempt, added up anew each time.

use std::collections::{BTreeMap, BTreeSet};

use governance_context::AttemptId;
use governance_core::account::{AccountId, PolicySpec, Tier, UnixMs};
use governance_core::ledger::{Amounts, Reservation, Settlement, State};

use crate::governor::UNKNOWN_AFTER_MS;

mod rules;
mod stand;

pub(crate) use rules::{stays, window_start};
pub(crate) use stand::{Leg, Stand};

use stand::{Event, What};

#[derive(Default)]
struct Attempt {
    events: Vec<Event>,
    /// After all of them.
    stand: Option<Stand>,
}

struct Declared {
    batch: u64,
    account: AccountId,
    /// By number.
    policies: Vec<(u32, PolicySpec)>,
}

/// What a policy took in, in all its windows and by window.
#[derive(Default)]
pub(crate) struct Sums {
    pub(crate) windows: BTreeMap<(u32, u64), Sum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) held: u64,
    /// Used or owed.
    pub(crate) charged: u64,
}

#[derive(Default)]
pub(crate) struct Books {
    attempts: BTreeMap<u64, BTreeMap<AttemptId, Attempt>>,
    declared: Vec<Declared>,
    /// With the write that says so.
    ended: Vec<(u64, AccountId)>,
    /// The newest of each number.
    specs: BTreeMap<u32, PolicySpec>,
    /// Windows that took in what ran already, with room or without.
    pub(crate) forced: BTreeSet<(u32, u64)>,
    /// The batch that is being filled.
    pub(crate) filling: u64,
}

impl Books {
    fn enter(&mut self, tenant: u64, attempt: AttemptId, what: What) {
        let batch = self.filling;
        let attempts = self.attempts.entry(tenant).or_default();
        let attempt = attempts.entry(attempt).or_default();
        attempt.events.push(Event { batch, what });
        attempt.stand = stand::after(&attempt.events);
    }

    pub(crate) fn refused(&mut self, tenant: u64, attempt: AttemptId) {
        self.enter(tenant, attempt, What::Refused);
    }

    pub(crate) fn held(
        &mut self,
        tenant: u64,
        now: UnixMs,
        reservation: &Reservation,
        legs: Vec<Leg>,
    ) {
        let due = now.plus(reservation.lease_ms);
        self.enter(tenant, reservation.attempt, What::Held { legs, due });
    }

    /// The end of an attempt, or word that it is unknown. The first end counts.
    pub(crate) fn settled(
        &mut self,
        tenant: u64,
        now: UnixMs,
        attempt: AttemptId,
        settlement: &Settlement,
    ) {
        let state = self.stand(tenant, attempt).map(|stand| stand.state);
        let Some(state) = state.filter(|state| state.is_open()) else {
            return;
        };
        match settlement {
            Settlement::Commit(observed) => {
                let amounts = Amounts {
                    wtu: observed.charge,
                    tokens: observed.usage.total(),
                };
                self.enter(tenant, attempt, What::Charged(amounts));
            }
            Settlement::Release { .. } => self.enter(tenant, attempt, What::Released),
            Settlement::Unknown { observed, .. } => {
                if let Some(observed) = observed {
                    let amounts = Amounts {
                        wtu: observed.charge,
                        tokens: observed.usage.total(),
                    };
                    self.enter(tenant, attempt, What::Seen(amounts));
                }
                if state == State::Sent {
                    let due = now.plus(UNKNOWN_AFTER_MS);
                    self.enter(tenant, attempt, What::Unknown { due });
                }
            }
        }
    }

    /// Leases end, and unknown ends are resolved.
    pub(crate) fn time_passes(&mut self, now: UnixMs) {
        for (tenant, attempt, stand) in self.open() {
            match stand.state {
                State::Sent if stand.due <= now => {
                    let due = now.plus(UNKNOWN_AFTER_MS);
                    self.enter(tenant, attempt, What::Unknown { due });
                }
                State::Unknown if stand.due <= now => {
                    self.enter(tenant, attempt, What::Resolved);
                }
                State::Sent
                | State::Unknown
                | State::Refused
                | State::Committed
                | State::Released => {}
            }
        }
    }

    /// Nobody is left who could tell how these end.
    pub(crate) fn disown(&mut self, now: UnixMs) {
        let due = now.plus(UNKNOWN_AFTER_MS);
        for (tenant, attempt, stand) in self.open() {
            if stand.state == State::Sent {
                self.enter(tenant, attempt, What::Unknown { due });
            }
        }
    }

    fn open(&self) -> Vec<(u64, AttemptId, Stand)> {
        let all = self.attempts.iter().flat_map(|(tenant, attempts)| {
            attempts
                .iter()
                .filter_map(|(id, attempt)| Some((*tenant, *id, attempt.stand.as_ref()?)))
        });
        all.filter(|(_, _, stand)| stand.state.is_open())
            .map(|(tenant, id, stand)| (tenant, id, stand.clone()))
            .collect()
    }

    /// What is not on disk never was.
    pub(crate) fn forget_after(&mut self, on_disk: u64) {
        for attempts in self.attempts.values_mut() {
            for attempt in attempts.values_mut() {
                attempt.events.retain(|event| event.batch <= on_disk);
                attempt.stand = stand::after(&attempt.events);
            }
            attempts.retain(|_, attempt| !attempt.events.is_empty());
        }
        self.declared.retain(|declared| declared.batch <= on_disk);
        self.ended.retain(|(batch, _)| *batch <= on_disk);
        let declared = self.declared.iter().flat_map(|declared| &declared.policies);
        self.specs = declared.cloned().collect();
    }

    pub(crate) fn stand(&self, tenant: u64, attempt: AttemptId) -> Option<&Stand> {
        self.attempts.get(&tenant)?.get(&attempt)?.stand.as_ref()
    }

    pub(crate) fn stands(&self) -> impl Iterator<Item = (AttemptId, &Stand)> {
        let all = self.attempts.values().flatten();
        all.filter_map(|(id, attempt)| Some((*id, attempt.stand.as_ref()?)))
    }

    /// Those whose end is unknown.
    pub(crate) fn unknown(&self) -> Vec<AttemptId> {
        let open = self.open().into_iter();
        open.filter(|(_, _, stand)| stand.state == State::Unknown)
            .map(|(_, id, _)| id)
            .collect()
    }

    /// Everything a tenant's attempts hold and cost.
    pub(crate) fn sums(&self, tenant: u64) -> Sums {
        let mut sums = Sums::default();
        let attempts = self.attempts.get(&tenant).into_iter().flatten();
        for stand in attempts.filter_map(|(_, attempt)| attempt.stand.as_ref()) {
            self.add(&mut sums, stand);
        }
        sums
    }

    fn add(&self, sums: &mut Sums, stand: &Stand) {
        for legs in stand.legs.chunk_by(|a, b| a.head == b.head) {
            let mut rest = match stand.state {
                State::Committed => self.charge(stand, legs),
                State::Refused | State::Sent | State::Unknown | State::Released => 0,
            };
            for (at, leg) in legs.iter().enumerate() {
                let sum = sums.windows.entry((leg.policy, leg.window)).or_default();
                if stand.state.is_open() {
                    sum.held += leg.held;
                }
                // What each holds, and what is beyond goes to the last.
                let is_last = at + 1 == legs.len();
                let part = if is_last { rest } else { leg.held.min(rest) };
                rest -= part;
                sum.charged += part;
            }
        }
    }

    /// What an ended attempt costs under one policy and what that overflows into.
    fn charge(&self, stand: &Stand, legs: &[Leg]) -> u64 {
        let spec = self.spec(legs[0].head);
        let seen = rules::in_unit(&stand.seen, spec.unit);
        match (stand.is_resolved, spec.tier) {
            (true, Tier::D) => legs.iter().map(|leg| leg.held).sum::<u64>().max(seen),
            (true, Tier::B) | (false, _) => seen,
        }
    }
}

impl Sums {
    pub(crate) fn of(&self, policy: u32, window: UnixMs) -> Sum {
        let sum = self.windows.get(&(policy, window.0));
        sum.copied().unwrap_or_default()
    }
}
