//! One turn: everything that waits and may go is sent, in order; everything else is planned onto the endpoint it waits for.

use std::time::Duration;

use governance_context::Band;

use super::Pool;
use super::look::{cached_tokens, prompt_tokens, spread};
use super::timers::Timer;
use crate::filters::{Eligible, Filters};
use crate::flow::queue::{Pick, Place};
use crate::flow::quota::Over;
use crate::flow::{BandConfig, OverQuota};
use crate::plan::{self, AHEAD, Ask, GATE, HOLD, LOWER_GATE, PASSED_AT_MOST, Proposal, Spot};
use crate::policy::Row;
use crate::request::{EmptiedBy, Request, Scope};
use crate::residency::hash_bytes;
use crate::{RefusalKind, Timestamp};

/// While something waits, it is looked at so often at least.
const PERIOD: Duration = Duration::from_millis(50);
/// After news that rarely lets anybody go.
const SOON: Duration = Duration::from_millis(10);
/// Requests of one model that are tried in one turn under policies that bind at arrival.
const LOOK_AHEAD: usize = 64;
/// Rounds of one turn at most; more follow at once, but not before the first outputs are out.
const ROUNDS: usize = 16;
/// Word from other schedulers older than this is no basis for finding the least loaded.
const STALE_PEERS_S: f64 = 0.3;
/// Then only who has this part of the best cached prefix is considered,
const NEARLY_BEST: f64 = 0.9;
/// and so many others by chance.
const STRANGERS: usize = 3;
/// Streams never gain less than this leaves them.
const MOST_UTILISED: f64 = 0.8;
/// First tokens after which a class of engines is known well enough to call a request doomed.
const PROVEN: u32 = 8;

/// Buffers kept between turns.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) picks: Vec<Pick>,
    pub(super) filters: Filters,
    pub(super) spots: Vec<Spot>,
    /// Position among the spots, by endpoint.
    pub(super) spot_of: Vec<u32>,
    pub(super) places: Vec<plan::Place>,
    pub(super) order: Vec<u32>,
    pub(super) scores: Vec<f64>,
    pub(super) rows: Vec<Row>,
    /// Who is held back although this spot is open.
    held: Vec<(Place, u32)>,
    pub(super) kappa: f64,
    utilisation: f64,
    saturation: f64,
    top: Option<Band>,
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
            self.admit_new(now, self.saturation);
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

    /// Looks once at the first of the line. True when somebody left and there are others to look at.
    fn round(&mut self, now: Timestamp, scratch: &mut Scratch) -> bool {
        let plans = self.config.policy.plans();
        let ahead = if plans { AHEAD } else { LOOK_AHEAD };
        self.queue
            .order(now, &self.config.flow, ahead, &mut scratch.picks);
        self.survey(now, scratch);
        scratch.held.clear();
        scratch.top = self.queue.top_band(&self.config.flow);
        let mut waits = 0;
        let mut has_moved = false;
        for at in 0..scratch.picks.len() {
            let pick = scratch.picks[at];
            if self.queue.get(pick.place).is_none() {
                continue;
            }
            let step = if plans {
                self.consider(now, pick, scratch)
            } else {
                self.bind(now, pick, scratch)
            };
            match step {
                Step::Moved => has_moved = true,
                Step::Waits => waits += 1,
            }
        }
        self.saturation = scratch.saturation;
        self.horizon = scratch
            .picks
            .iter()
            .filter_map(|pick| self.queue.get(pick.place))
            .map(|waiting| (waiting.band, waiting.deadline))
            .min_by_key(|(band, deadline)| (*band, std::cmp::Reverse(*deadline)));
        has_moved && self.queue.len() > waits
    }

    /// Takes the measure of every endpoint that could take anything.
    fn survey(&mut self, now: Timestamp, scratch: &mut Scratch) {
        let mut spots = std::mem::take(&mut scratch.spots);
        spots.clear();
        scratch.spot_of.clear();
        scratch.spot_of.resize(self.endpoints.len(), u32::MAX);
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            if endpoint.is_up() && !endpoint.health.is_quarantined() {
                scratch.spot_of[index] = spots.len() as u32;
                spots.push(self.spot(now, index as u32));
            }
        }
        let prefill = self.prefill_utilisation(now, spots.len());
        scratch.utilisation = prefill.min(MOST_UTILISED);
        scratch.kappa = self.kappa(prefill, &spots);
        scratch.saturation = if spots.is_empty() {
            1.0
        } else {
            spots.iter().map(Spot::saturation).sum::<f64>() / spots.len() as f64
        };
        scratch.spots = spots;
    }

    /// Which filter leaves nothing for `request`, if one does.
    pub(super) fn emptied_by(
        &self,
        request: &Request,
        model: crate::endpoint::ModelKey,
    ) -> Option<EmptiedBy> {
        match Filters::default().apply(&self.endpoints, request, model) {
            Eligible::None(filter) => Some(filter),
            Eligible::Some(_) | Eligible::Full => None,
        }
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

    fn consider(&mut self, now: Timestamp, pick: Pick, scratch: &mut Scratch) -> Step {
        self.look_up(now, pick.place);
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let eligible = scratch
            .filters
            .apply(&self.endpoints, &waiting.request, waiting.model);
        if let Eligible::None(filter) = eligible {
            return self.without_endpoint(now, pick.place, filter);
        }
        self.fill_places(now, pick.place, scratch);
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let ask = Ask {
            prompt: prompt_tokens(&waiting.request),
            tpot_s: waiting.tpot_s,
            output: waiting.output,
            kappa: scratch.kappa,
            utilisation: scratch.utilisation,
            left_s: waiting.deadline.seconds_since(now),
        };
        let hash = spread(&waiting.request, &waiting.found).unwrap_or(waiting.request.key.0);
        let endpoints = &self.endpoints;
        let proposal = plan::propose(
            &ask,
            &scratch.spots,
            &mut scratch.places,
            |index| endpoints[index as usize].load.streams(),
            |index| hash_bytes(hash, &endpoints[index as usize].name_hash.to_le_bytes()),
            &mut scratch.order,
        );
        match proposal {
            Some(proposal) => self.judge(now, pick, &ask, &proposal, scratch),
            None => Step::Waits,
        }
    }

    /// The endpoints the filters left, with what of the prompt each holds.
    fn fill_places(&mut self, now: Timestamp, place: Place, scratch: &mut Scratch) {
        let Scratch {
            filters,
            places,
            spot_of,
            ..
        } = scratch;
        let Some(waiting) = self.queue.get(place) else {
            return;
        };
        places.clear();
        let known = filters.eligible.iter().chain(&filters.full);
        places.extend(known.map(|index| plan::Place {
            spot: spot_of[*index as usize],
            cached: 0,
            prefill_s: 0.0,
            base_s: 0.0,
            misses: None,
        }));
        if !filters.full.is_empty() {
            places.sort_unstable_by_key(|place| place.spot);
        }
        for (holder, depth) in &waiting.found.holders {
            let Some(Some(index)) = self.by_holder.get(holder.index()) else {
                continue;
            };
            let spot = spot_of[*index as usize];
            if let Ok(at) = places.binary_search_by_key(&spot, |place| place.spot) {
                places[at].cached = cached_tokens(&waiting.request, *depth);
            }
        }
        if self
            .peers
            .silence(now)
            .is_some_and(|seconds| seconds > STALE_PEERS_S)
        {
            self.keep_holders(places);
        }
    }

    /// With old news of the load, the least loaded is a guess that every scheduler makes alike: only who holds the prompt
    /// is considered, and a few others by chance.
    pub(super) fn keep_holders(&mut self, places: &mut Vec<plan::Place>) {
        let best = places.iter().map(|place| place.cached).max().unwrap_or(0);
        let holds = |place: &plan::Place| {
            best > 0 && f64::from(place.cached) >= NEARLY_BEST * f64::from(best)
        };
        let strangers = places.iter().filter(|place| !holds(place)).count();
        let mut left = strangers as u64;
        let mut wanted = STRANGERS.min(strangers) as u64;
        places.retain(|place| {
            if holds(place) {
                return true;
            }
            let is_drawn = self.rng.next() % left < wanted;
            left -= 1;
            wanted -= u64::from(is_drawn);
            is_drawn
        });
    }

    fn judge(
        &mut self,
        now: Timestamp,
        pick: Pick,
        ask: &Ask,
        proposal: &Proposal,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let best = scratch.places[proposal.best];
        let (band, deadline) = (waiting.band, waiting.deadline);
        let is_retry = !waiting.request.tried.is_empty();
        let is_late = now.after_seconds(proposal.soonest_s) > deadline;
        let index = scratch.spots[best.spot as usize].index as usize;
        let class = &self.classes[self.endpoints[index].class];
        if is_late && !is_retry && class.first_tokens >= PROVEN {
            self.queue.doomed(now, band);
            if self.config.flow.band(band).refuse.applies(band) {
                let wait = Duration::from_secs_f64(proposal.soonest_s);
                self.refuse_waiting(now, pick.place, RefusalKind::QueueWait, Some(wait));
                return Step::Moved;
            }
            if !pick.by_share && self.put_off(now, pick.place, proposal.soonest_s) {
                return Step::Moved;
            }
        }
        let has_time = now.after_seconds(proposal.prudent_s) < deadline;
        let yields = is_late && !pick.by_share && self.queue.has_higher(band);
        // A share that is due is due, whatever it costs those who had more than theirs.
        let is_held = proposal.misses > HOLD && (has_time || yields) && !pick.by_share;
        let is_open = self.is_open(now, pick, ask, &best, scratch);
        if is_open && !is_held {
            return self.go(now, pick, &best, proposal, scratch);
        }
        let uncached = ask.prompt - best.cached;
        let spot = &mut scratch.spots[best.spot as usize];
        spot.add(uncached, best.cached);
        if is_open {
            let passed = self
                .queue
                .get(pick.place)
                .map_or(0, |waiting| waiting.passed);
            spot.is_reserved |= passed >= PASSED_AT_MOST;
            scratch.held.push((pick.place, best.spot));
        }
        Step::Waits
    }

    /// A request that will be late and may not be refused: its next target is twice as long, and it goes behind those who
    /// can still meet theirs. False once it has all the time it may have.
    fn put_off(&mut self, now: Timestamp, place: Place, soonest_s: f64) -> bool {
        let Some(waiting) = self.queue.get(place) else {
            return false;
        };
        let wanted = waiting.deadline.since(waiting.arrived);
        let later = (waiting.arrived + wanted * 2).max(now.after_seconds(2.0 * soonest_s));
        let later = later.min(waiting.expires);
        let is_later = later > waiting.deadline;
        if is_later {
            self.queue.set_deadline(place, later);
        }
        is_later
    }

    fn is_open(
        &self,
        now: Timestamp,
        pick: Pick,
        ask: &Ask,
        best: &plan::Place,
        scratch: &Scratch,
    ) -> bool {
        let Some(waiting) = self.queue.get(pick.place) else {
            return false;
        };
        let spot = &scratch.spots[best.spot as usize];
        let band = self.config.flow.band(waiting.band);
        let is_first = pick.by_share || Some(waiting.band) == scratch.top;
        let gate = if is_first { GATE } else { LOWER_GATE };
        spot.is_open(ask.prompt, gate)
            && (is_first || self.has_streams_left(waiting.band, band, spot.index))
            && band.max_stall.is_none_or(|most| {
                spot.decoding == 0.0
                    || best.prefill_s - ask.tpot_s * spot.model.steps(f64::from(ask.prompt))
                        <= most.as_secs_f64()
            })
            && (pick.by_share || Self::is_let_through(now, pick.place, band, scratch.saturation))
    }

    fn has_streams_left(&self, band: Band, config: &BandConfig, index: u32) -> bool {
        let load = &self.endpoints[index as usize].load;
        config
            .max_streams
            .is_none_or(|most| load.of_band(band.0) < most)
    }

    /// Above the ceiling of its band, a part of the requests may go: the same part for a second, then others.
    fn is_let_through(now: Timestamp, place: Place, band: &BandConfig, saturation: f64) -> bool {
        if saturation < band.ceiling || band.ceiling >= 1.0 {
            return true;
        }
        let chance = (1.0 - saturation) / (1.0 - band.ceiling);
        let draw = hash_bytes(place.seq, &(now.0 / 1_000_000_000).to_le_bytes());
        (draw >> 11) as f64 / (1u64 << 53) as f64 >= 1.0 - chance
    }

    /// Sends a request to its best endpoint, if its quotas admit it.
    fn go(
        &mut self,
        now: Timestamp,
        pick: Pick,
        best: &plan::Place,
        proposal: &Proposal,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(cost) = self.cost_at(pick.place, best.cached) else {
            return Step::Waits;
        };
        if let Err((scope, over)) = self.queue.admits(now, &self.config.flow, pick.place, cost) {
            return self.stop_over_quota(now, pick.place, scope, over);
        }
        for (held, spot) in &scratch.held {
            if *spot == best.spot
                && let Some(waiting) = self.queue.get_mut(*held)
            {
                waiting.passed += 1;
            }
        }
        self.dispatch_planned(now, pick, proposal, cost, scratch);
        Step::Moved
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
            self.timers.add(timer, at);
        }
        Step::Moved
    }
}
