//! One turn: everything that waits and may go is sent, in order; everything else is planned onto the endpoint it waits for.

use std::time::Duration;

use governance_context::Band;

use super::Pool;
use super::look::prompt_tokens;
use super::timers::Timer;
use crate::decision::Filtered;
use crate::filters::Filters;
use crate::flow::OverQuota;
use crate::flow::queue::{Pick, Place};
use crate::flow::quota::Over;
use crate::plan::{AHEAD, Board};
use crate::policy::Row;
use crate::request::{EmptiedBy, Scope};
use crate::{RefusalKind, Timestamp};

/// While something waits, it is looked at so often at least.
const PERIOD: Duration = Duration::from_millis(50);
/// After news that rarely lets anybody go.
const SOON: Duration = Duration::from_millis(10);
/// Schedulers that hear the same look within this time: several times what a vector is under way.
const APART: Duration = Duration::from_millis(20);
/// Requests of one model that are tried in one turn under policies that bind at arrival.
const LOOK_AHEAD: usize = 64;
/// Rounds of one turn at most; more follow at once, but not before the first outputs are out.
const ROUNDS: usize = 16;

/// What is kept between turns.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) picks: Vec<Pick>,
    pub(super) filters: Filters,
    pub(super) board: Board,
    pub(super) scores: Vec<f64>,
    pub(super) rows: Vec<Row>,
    /// Who is held back although this endpoint is open.
    pub(super) held: Vec<(Place, u32)>,
    /// Endpoints the filters removed for the request in hand.
    pub(super) filtered: Filtered,
    pub(super) kappa: f64,
    pub(super) utilisation: f64,
    pub(super) saturation: f64,
    pub(super) top: Option<Band>,
}

/// What became of one request in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It left the line, or its flow did.
    Moved,
    Waits,
}

impl Pool {
    /// Something changed that may let somebody go, but usually does not.
    pub(super) fn plan_soon(&mut self, now: Timestamp) {
        if self.queue.len() > 0 {
            self.plan_by(now + SOON);
        }
    }

    /// As [`Pool::plan_soon`], at a time that is this scheduler's own: all others hear of a free endpoint at once too, and
    /// the first to send there should be heard by the rest before they look.
    pub(super) fn plan_apart(&mut self, now: Timestamp) {
        if self.queue.len() > 0 {
            let apart = self.peers.chance() * APART.as_secs_f64();
            self.plan_by((now + SOON / 2).after_seconds(apart));
        }
    }

    fn plan_by(&mut self, at: Timestamp) {
        let at = self.plan_timer.map_or(at, |armed| armed.min(at));
        self.timers.set(&mut self.plan_timer, Timer::Plan, Some(at));
    }

    pub(super) fn turn(&mut self, now: Timestamp) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut rounds = 0;
        while std::mem::take(&mut self.wants_plan) && self.queue.len() > 0 {
            rounds += 1;
            self.wants_plan = self.round(now, &mut scratch);
            if rounds == ROUNDS {
                break;
            }
        }
        if self
            .newly
            .iter()
            .any(|place| self.queue.get(*place).is_some())
        {
            let waiting = self.queue.len();
            self.admit_new(now, self.saturation);
            // Whoever was not let in no longer stands in anybody's way.
            self.wants_plan |= self.queue.len() < waiting;
        }
        self.newly.clear();
        self.scratch = scratch;
        if rounds > 0 {
            self.timers.set(&mut self.plan_timer, Timer::Plan, None);
        }
        if self.queue.len() > 0 {
            self.plan_by(now + PERIOD);
        }
    }

    /// Looks once at the first of the line. True when somebody left: those who were looked at before may be next.
    fn round(&mut self, now: Timestamp, scratch: &mut Scratch) -> bool {
        let plans = self.config.policy.plans();
        let ahead = if plans { AHEAD } else { LOOK_AHEAD };
        // An earlier round may have sent what others are about to look up.
        self.store_sent();
        self.queue
            .order(now, &self.config.flow, ahead, &mut scratch.picks);
        self.survey(now, scratch);
        scratch.held.clear();
        scratch.top = self.queue.top_band(&self.config.flow);
        let mut has_moved = false;
        for at in 0..scratch.picks.len() {
            let pick = scratch.picks[at];
            // Whose flow or band is over its quota makes no place for others of it.
            if self.queue.get(pick.place).is_none() || self.queue.is_parked(pick.place) {
                continue;
            }
            let step = if plans {
                self.consider(now, pick, scratch)
            } else {
                self.bind(now, pick, scratch)
            };
            has_moved |= step == Step::Moved;
        }
        self.saturation = scratch.saturation;
        self.horizon = scratch
            .picks
            .iter()
            .filter_map(|pick| self.queue.get(pick.place))
            .map(|waiting| (waiting.band, waiting.deadline))
            .min_by_key(|(band, deadline)| (*band, std::cmp::Reverse(*deadline)));
        has_moved
    }

    /// Nothing could take it: waiting helps if an endpoint may come or recover.
    pub(super) fn without_endpoint(
        &mut self,
        now: Timestamp,
        place: Place,
        filter: EmptiedBy,
    ) -> Step {
        match filter {
            EmptiedBy::Model | EmptiedBy::Context => {
                self.refuse_waiting(now, place, RefusalKind::NoEndpoint(filter), None);
                Step::Moved
            }
            EmptiedBy::Pool | EmptiedBy::Draining | EmptiedBy::Quarantine => Step::Waits,
        }
    }

    /// What a request would be charged where this much of its prompt is cached.
    pub(super) fn cost_at(&self, place: Place, cached: u32) -> Option<u64> {
        let waiting = self.queue.get(place)?;
        let uncached = prompt_tokens(&waiting.request).saturating_sub(cached);
        let cost = self.config.flow.cost;
        Some(cost.of(
            u64::from(uncached),
            u64::from(cached),
            waiting.output as u64,
        ))
    }

    pub(super) fn stop_over_quota(
        &mut self,
        now: Timestamp,
        place: Place,
        scope: Scope,
        over: Over,
    ) -> Step {
        if self.over_quota(place, scope) == OverQuota::Refuse {
            self.refuse_over_quota(now, place, scope, over);
            return Step::Moved;
        }
        let band = self.queue.get(place).map(|waiting| waiting.band);
        let timer = match self.queue.park(place, scope) {
            Some(flow) => Some(Timer::Flow(flow)),
            None => band.map(Timer::Band),
        };
        if let (Over::Rate(at), Some(timer)) = (over, timer) {
            let armed = self.quota_timers.entry(timer).or_default();
            self.timers.set(armed, timer, Some(at));
        }
        Step::Moved
    }
}
