//! What governance must say: a list of what happened to each attempt, added up anew each time.

use std::collections::{BTreeMap, BTreeSet};

use governance_context::AttemptId;
use governance_core::account::{
    AccountId, CalendarUnit, Carry, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window,
};
use governance_core::ledger::{Amounts, Balance, LegRow, Reservation, Settlement, State};

use crate::governor::UNKNOWN_AFTER_MS;

/// What an attempt holds under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) policy: u32,
    pub(crate) head: u32,
    pub(crate) window: u64,
    pub(crate) held: u64,
}

impl From<&LegRow> for Leg {
    fn from(row: &LegRow) -> Self {
        Self {
            policy: row.policy.0,
            head: row.head.0,
            window: row.window.0,
            held: row.held,
        }
    }
}

#[derive(Clone, Debug)]
enum What {
    Refused,
    Held {
        legs: Vec<Leg>,
        due: UnixMs,
    },
    Unknown {
        due: UnixMs,
    },
    Seen(Amounts),
    Charged(Amounts),
    /// By the rule of each leg's tier, for an end nobody could tell.
    Resolved,
    Released,
}

struct Event {
    /// The write that brings it to the disk.
    batch: u64,
    what: What,
}

#[derive(Default)]
struct Attempt {
    events: Vec<Event>,
    /// After all of them.
    stand: Option<Stand>,
}

/// Where an attempt stands after all that happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) state: State,
    pub(crate) legs: Vec<Leg>,
    due: UnixMs,
    pub(crate) seen: Amounts,
    pub(crate) is_resolved: bool,
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
    /// The batch that is being filled.
    pub(crate) filling: u64,
}

impl Books {
    fn enter(&mut self, tenant: u64, attempt: AttemptId, what: What) {
        let batch = self.filling;
        let attempts = self.attempts.entry(tenant).or_default();
        let attempt = attempts.entry(attempt).or_default();
        attempt.events.push(Event { batch, what });
        attempt.stand = stand(&attempt.events);
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
                attempt.stand = stand(&attempt.events);
            }
            attempts.retain(|_, attempt| !attempt.events.is_empty());
        }
        self.declared.retain(|declared| declared.batch <= on_disk);
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
        let mut rest = BTreeMap::new();
        for leg in &stand.legs {
            let sum = sums.windows.entry((leg.policy, leg.window)).or_default();
            if stand.state.is_open() {
                sum.held += leg.held;
                continue;
            }
            if stand.state != State::Committed {
                continue;
            }
            let spec = self.spec(leg.head);
            let of_head: Vec<&Leg> = stand.legs.iter().filter(|l| l.head == leg.head).collect();
            let held: u64 = of_head.iter().map(|leg| leg.held).sum();
            let seen = in_unit(&stand.seen, spec.unit);
            let whole = match (stand.is_resolved, spec.tier) {
                (true, Tier::D) => held.max(seen),
                (true, Tier::B) | (false, _) => seen,
            };
            // What each holds, and what is beyond goes to the last.
            let rest = rest.entry(leg.head).or_insert(whole);
            let is_last = of_head.last() == Some(&leg);
            let part = if is_last { *rest } else { leg.held.min(*rest) };
            *rest -= part;
            sum.charged += part;
        }
    }

    pub(crate) fn spec(&self, policy: u32) -> &PolicySpec {
        let newest = self.declared.iter().rev();
        let mut all = newest.flat_map(|declared| &declared.policies);
        let found = all.find(|(no, _)| *no == policy);
        &found.expect("a policy of the books").1
    }

    /// An account gets these limits; those that count the same keep what they counted.
    pub(crate) fn declare(&mut self, account: &AccountId, mut wanted: Vec<PolicySpec>) {
        if !wanted.iter().any(|spec| spec.unit == Unit::MicroWtu) {
            wanted.push(metered());
        }
        let now = self.policies(account);
        let numbers = self.declared.iter().flat_map(|declared| &declared.policies);
        let mut last = numbers.map(|(no, _)| *no).max().unwrap_or(0);
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
        let policies = numbered.collect();
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
                let room = room(spec, balance(*no));
                if spec.limit == Limit::Metered || asked <= room {
                    legs.push(leg(*no, *no, asked));
                    continue;
                }
                let (target, top_up) = policies
                    .iter()
                    .find(|(_, other)| Some(&other.name) == spec.overflow.as_ref())?;
                if asked - room > self::room(top_up, balance(*target)) {
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

fn stand(events: &[Event]) -> Option<Stand> {
    let mut stand: Option<Stand> = None;
    for event in events {
        let mut next = stand.take().unwrap_or(Stand {
            state: State::Refused,
            legs: Vec::new(),
            due: UnixMs(0),
            seen: Amounts::default(),
            is_resolved: false,
        });
        match &event.what {
            What::Refused => next.state = State::Refused,
            What::Held { legs, due } => {
                next.state = State::Sent;
                next.legs.clone_from(legs);
                next.due = *due;
            }
            What::Unknown { due } => (next.state, next.due) = (State::Unknown, *due),
            What::Seen(amounts) if amounts.tokens >= next.seen.tokens => next.seen = *amounts,
            What::Seen(_) => {}
            What::Charged(amounts) => (next.state, next.seen) = (State::Committed, *amounts),
            What::Resolved => (next.state, next.is_resolved) = (State::Committed, true),
            What::Released => (next.state, next.seen) = (State::Released, Amounts::default()),
        }
        stand = Some(next);
    }
    stand
}

impl Sums {
    pub(crate) fn of(&self, policy: u32, window: UnixMs) -> Sum {
        let sum = self.windows.get(&(policy, window.0));
        sum.copied().unwrap_or_default()
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

fn in_unit(amounts: &Amounts, unit: Unit) -> u64 {
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

fn room(spec: &PolicySpec, balance: &Balance) -> u64 {
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
