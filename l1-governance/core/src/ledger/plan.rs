//! Judging a reservation: which legs it takes, all of them or none.

use std::cmp::Ordering;
use std::sync::Arc;

use super::entry::{Deltas, EntryKind};
use super::row::{AttemptRow, Effect, LegRow, PolicyNo, State, Status};
use super::standing::{Standing, signed};
use super::{
    Account, Amounts, Attempt, Durability, Fits, Ledger, MAX_AMOUNT, Policy, Refusal, Reservation,
    Reserved, Shortage,
};
use crate::account::{AccountId, Tier, UnixMs};

/// A leg that fits, not taken yet.
pub(super) struct PlannedLeg {
    policy: PolicyNo,
    head: PolicyNo,
    amount: u64,
}

impl Ledger {
    /// The legs of a reservation, or the shortage to tell of. Changes nothing.
    pub(super) fn plan(&self, reservation: &Reservation) -> Result<Vec<PlannedLeg>, Refusal> {
        let ids = reservation.path.accounts();
        // Whether anyone may pay at all comes before whether there is room.
        let accounts = ids
            .iter()
            .map(|id| self.active(id))
            .collect::<Result<Vec<_>, _>>()?;
        let mut legs = Vec::with_capacity(ids.len());
        let mut shortages = Vec::new();
        for (id, account) in ids.iter().zip(accounts) {
            for no in &account.policies {
                if !self.policies[no.index()].is_target {
                    let planned = self.plan_policy(id, *no, reservation, &mut legs);
                    shortages.extend(planned.err());
                }
            }
        }
        match foremost(shortages) {
            Some(shortage) => Err(Refusal::NoRoom(Arc::new(shortage))),
            None => Ok(legs),
        }
    }

    fn active(&self, id: &AccountId) -> Result<&Account, Refusal> {
        let no = self
            .index
            .get(id)
            .ok_or_else(|| Refusal::NoAccount(id.clone()))?;
        let account = &self.accounts[no.index()];
        match account.row.status {
            Status::Active => Ok(account),
            Status::Ended => Err(Refusal::Ended(id.clone())),
        }
    }

    fn plan_policy(
        &self,
        id: &AccountId,
        head: PolicyNo,
        reservation: &Reservation,
        legs: &mut Vec<PlannedLeg>,
    ) -> Result<(), Shortage> {
        let policy = &self.policies[head.index()];
        let standing = policy.standing(self.now);
        let asks = policy.asks(reservation);
        let mut leg = |policy, amount| {
            legs.push(PlannedLeg {
                policy,
                head,
                amount,
            });
        };
        if standing.limit.is_none() || asks.most == 0 {
            leg(head, asks.most.min(MAX_AMOUNT));
            return Ok(());
        }
        let room = policy.room(self.now, &standing);
        if asks.most <= room.left && asks.most <= MAX_AMOUNT {
            leg(head, asks.most);
            return Ok(());
        }
        let Some(target) = policy.overflow else {
            return Err(policy.shortage(id, &standing, asks, room));
        };
        let top_up = &self.policies[target.index()];
        let top_up_standing = top_up.standing(self.now);
        let top_up_room = top_up.room(self.now, &top_up_standing);
        let rest = asks.most - asks.most.min(room.left);
        if rest > top_up_room.left || asks.most > MAX_AMOUNT {
            return Err(top_up.shortage(id, &top_up_standing, asks, room.with(top_up_room)));
        }
        leg(head, asks.most - rest);
        leg(target, rest);
        Ok(())
    }

    /// The legs of an attempt that runs already: no account is asked whether it has room, but a hard cap never
    /// promises more than it has.
    pub(super) fn forced_plan(&self, reservation: &Reservation) -> Vec<PlannedLeg> {
        let known = reservation
            .path
            .accounts()
            .iter()
            .filter_map(|id| self.index.get(id));
        let policies = known.flat_map(|no| &self.accounts[no.index()].policies);
        let heads = policies.filter(|no| !self.policies[no.index()].is_target);
        let leg = |no: &PolicyNo| {
            let policy = &self.policies[no.index()];
            let asked = policy.asks(reservation).most.min(MAX_AMOUNT);
            let amount = match policy.row.spec.tier {
                Tier::B => asked,
                Tier::D => asked.min(policy.room(self.now, &policy.standing(self.now)).left),
            };
            PlannedLeg {
                policy: *no,
                head: *no,
                amount,
            }
        };
        heads.map(leg).collect()
    }

    /// Takes the legs.
    pub(super) fn hold(&mut self, reservation: &Reservation, planned: &[PlannedLeg]) -> Reserved {
        let lease_until = self.now.plus(reservation.lease_ms);
        let mut legs = Vec::with_capacity(planned.len());
        let mut durability = Durability::Batched;
        for leg in planned {
            if self.policies[leg.policy.index()].row.spec.tier == Tier::D {
                durability = Durability::BeforeAnswer;
            }
            legs.push(self.hold_leg(reservation, leg));
        }
        let row = self.attempt_row(reservation, State::Sent, lease_until);
        self.effects.push(Effect::Attempt(Arc::new(row.clone())));
        self.effects.extend(legs.iter().copied().map(Effect::Leg));
        self.due.insert((lease_until, reservation.attempt));
        self.attempts
            .insert(reservation.attempt, Attempt { row, legs });
        Reserved {
            durability,
            lease_until,
        }
    }

    fn hold_leg(&mut self, reservation: &Reservation, leg: &PlannedLeg) -> LegRow {
        let window = self.touch(leg.policy);
        let deltas = Deltas {
            held: signed(leg.amount),
            ..Deltas::default()
        };
        self.enter(
            EntryKind::Hold,
            Some(reservation.attempt),
            leg.policy,
            window,
            deltas,
        );
        let policy = &mut self.policies[leg.policy.index()];
        if let Some(counters) = policy.windows.get_mut(&window) {
            counters.open_legs += 1;
        }
        LegRow {
            attempt: reservation.attempt,
            account: policy.row.account,
            policy: leg.policy,
            head: leg.head,
            window,
            held: leg.amount,
        }
    }

    /// Remembers that an id was refused: it is never admitted.
    pub(super) fn burn(&mut self, reservation: &Reservation, refusal: &Refusal) {
        let mut row = self.attempt_row(reservation, State::Refused, self.now);
        row.ended = Some(self.now);
        self.effects.push(Effect::Attempt(Arc::new(row.clone())));
        self.refusals.insert(row.id, refusal.clone());
        let id = row.id;
        self.attempts.insert(
            id,
            Attempt {
                row,
                legs: Vec::new(),
            },
        );
        self.remember(id);
    }

    fn attempt_row(&self, reservation: &Reservation, state: State, due: UnixMs) -> AttemptRow {
        AttemptRow {
            id: reservation.attempt,
            request: reservation.request,
            tenant: reservation.tenant.clone(),
            account: reservation.path.leaf().clone(),
            stamp: reservation.stamp.clone(),
            state,
            estimate: reservation.estimate,
            largest: reservation.largest,
            charged: Amounts::default(),
            usage: None,
            reason: None,
            owner: self.config.owner.clone(),
            created: self.now,
            due,
            ended: None,
        }
    }
}

/// What a reservation asks of a policy.
#[derive(Debug, Clone, Copy)]
struct Asks {
    most: u64,
    /// What it can be lowered to: only a hard cap has its requests lowered.
    least: u64,
}

impl Policy {
    fn asks(&self, reservation: &Reservation) -> Asks {
        let (most, least) = match self.row.spec.tier {
            Tier::B => (&reservation.estimate, &reservation.estimate),
            Tier::D => (&reservation.largest, &reservation.least),
        };
        let unit = self.row.spec.unit;
        Asks {
            most: most.in_unit(unit),
            least: least.in_unit(unit),
        }
    }

    fn room(&self, now: UnixMs, standing: &Standing) -> Room {
        let whole = self.row.spec.limit_at(now).unwrap_or(0);
        let debt_max = self.row.spec.debt_max;
        if debt_max.is_some_and(|most| standing.debt > most) {
            return Room {
                left: 0,
                without_holds: 0,
                whole,
            };
        }
        Room {
            left: u64::try_from(standing.available()).unwrap_or(0),
            without_holds: whole.saturating_sub(standing.used.saturating_add(standing.debt)),
            whole,
        }
    }

    fn shortage(&self, id: &AccountId, standing: &Standing, asks: Asks, room: Room) -> Shortage {
        Shortage {
            account: id.clone(),
            policy: self.row.spec.name.clone(),
            tier: self.row.spec.tier,
            unit: self.row.spec.unit,
            window: standing.span,
            limit: standing.limit.unwrap_or(0),
            used: standing.used,
            held: standing.held,
            debt: standing.debt,
            asked: asks.most,
            available: room.left.min(MAX_AMOUNT),
            resets_at: (standing.span.end != UnixMs::FOREVER).then_some(standing.span.end),
            fits: room.fits(asks.least),
        }
    }
}

impl Shortage {
    /// Which of two is over later. Of two that end with a smaller request the one that asks for the smaller.
    fn cmp_end(&self, other: &Self) -> Ordering {
        let ends = |shortage: &Self| match shortage.fits {
            Fits::OnceStartedOver => shortage.resets_at.unwrap_or(UnixMs::FOREVER),
            Fits::Lowered | Fits::OnceHoldsEnd | Fits::Never => UnixMs(0),
        };
        let part = |some: u64, whole: u64| u128::from(some) * u128::from(whole);
        (self.fits, ends(self))
            .cmp(&(other.fits, ends(other)))
            .then_with(|| part(other.available, self.asked).cmp(&part(self.available, other.asked)))
    }
}

/// What a policy has room for.
#[derive(Debug, Clone, Copy)]
struct Room {
    left: u64,
    /// Once all that is held has been given back.
    without_holds: u64,
    /// In a window nothing was taken from.
    whole: u64,
}

impl Room {
    fn with(self, other: Room) -> Room {
        Room {
            left: self.left.saturating_add(other.left),
            without_holds: self.without_holds.saturating_add(other.without_holds),
            whole: self.whole.saturating_add(other.whole),
        }
    }

    fn fits(self, least: u64) -> Fits {
        if least > self.whole || least > MAX_AMOUNT {
            Fits::Never
        } else if least > self.without_holds {
            Fits::OnceStartedOver
        } else if least > self.left {
            Fits::OnceHoldsEnd
        } else {
            Fits::Lowered
        }
    }
}

/// The one to tell of: that which is over last, the first of equals. Unless hard caps are short and all of them have room for
/// less: what the others have room for shows only when less is asked for.
fn foremost(shortages: Vec<Shortage>) -> Option<Shortage> {
    let is_hard = |shortage: &Shortage| shortage.tier == Tier::D;
    let can_be_lowered = shortages
        .iter()
        .filter(|shortage| is_hard(shortage))
        .all(|shortage| shortage.fits == Fits::Lowered);
    let comes_first = |shortage: &Shortage| can_be_lowered && is_hard(shortage);
    shortages.into_iter().rev().max_by(|a, b| {
        comes_first(a)
            .cmp(&comes_first(b))
            .then_with(|| a.cmp_end(b))
    })
}
