//! Everything that waits: bands by priority, flows that share a band, requests of a flow by deadline.
//!
//! Costs are micro-WTU. The queue knows order, limits, quotas and fairness; where a request could go is the planner's.

mod account;
mod flows;
mod forget;
mod order;
mod rank;
#[cfg(test)]
mod tests;

use std::time::Duration;

use governance_context::Band;
use rustc_hash::FxHashMap;

pub(crate) use flows::{Charge, Flow, Tier};
pub(crate) use order::Pick;

use super::config::FlowConfig;
use super::quota::Over;
use crate::endpoint::ModelKey;
use crate::request::Scope;
use crate::residency::Holder;
use crate::window::Window;
use crate::{Request, RequestKey, Timestamp};

/// The place of one waiting request; never given twice. Older places order first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    slot: u32,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: Box<Request>,
    pub(crate) model: ModelKey,
    /// The band it waits in; aging may have raised it above its own.
    pub(crate) band: Band,
    pub(crate) arrived: Timestamp,
    pub(crate) expires: Timestamp,
    /// Its first token is wanted by then.
    pub(crate) deadline: Timestamp,
    /// Wanted seconds per output token.
    pub(crate) tpot_s: f64,
    /// Expected output tokens.
    pub(crate) output: f64,
    /// Expected cost.
    pub(crate) cost: u64,
    /// Requests for the same model in its band and above when it arrived.
    pub(crate) position: usize,
    /// Later ones that took a place it could have had.
    pub(crate) passed: u32,
    pub(crate) found: Found,
    pub(crate) timer: Option<Timestamp>,
    /// When it has been in its band for long enough to be raised.
    pub(crate) ages_at: Timestamp,
    line: u32,
}

impl Waiting {
    /// A request as it comes, before anything is promised to it.
    pub(crate) fn new(request: Box<Request>, model: ModelKey, arrived: Timestamp) -> Self {
        Self {
            model,
            band: request.band,
            arrived,
            expires: Timestamp::MAX,
            deadline: Timestamp::MAX,
            tpot_s: f64::INFINITY,
            output: 0.0,
            cost: 0,
            position: 0,
            passed: 0,
            found: Found::default(),
            timer: None,
            ages_at: Timestamp::MAX,
            line: u32::MAX,
            request,
        }
    }
}

/// Where a request's prefix is cached, as last looked up.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) holders: Vec<(Holder, u32)>,
    /// When, and at which state of the fleet.
    pub(crate) at: Option<(Timestamp, u64)>,
    /// Blocks that the last endpoint but none holds: where its own content begins.
    pub(crate) deepest: u32,
}

/// A quantum is the work of so many seconds, and holds at least so many mean requests.
const QUANTUM: (f64, f64) = (0.25, 4.0);
const MEAN_STEP: f64 = 0.02;
/// A mean prompt with a mean answer, until there are any.
const FIRST_COST: f64 = 2.0e9;
/// Work served in this many seconds is the rate of the pool.
const RATE_S: u64 = 20;

#[derive(Debug)]
pub(crate) struct Queue {
    slots: Vec<Option<(u64, Waiting)>>,
    vacant: Vec<u32>,
    by_key: FxHashMap<RequestKey, Place>,
    /// By priority, highest first.
    tiers: Vec<Tier>,
    flows: flows::Flows,
    lines: flows::Lines,
    len: usize,
    bytes: u64,
    next_seq: u64,
    /// Work begun lately.
    served: Window<{ RATE_S as usize }>,
    mean_cost: f64,
    mean_weight: f64,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            by_key: FxHashMap::default(),
            tiers: Vec::new(),
            flows: flows::Flows::default(),
            lines: flows::Lines::default(),
            len: 0,
            bytes: 0,
            next_seq: 0,
            served: Window::default(),
            mean_cost: FIRST_COST,
            mean_weight: 1.0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn contains(&self, key: RequestKey) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(crate) fn place_of(&self, key: RequestKey) -> Option<Place> {
        self.by_key.get(&key).copied()
    }

    pub(crate) fn get(&self, place: Place) -> Option<&Waiting> {
        match self.slots.get(place.slot as usize)? {
            Some((seq, waiting)) if *seq == place.seq => Some(waiting),
            Some(_) | None => None,
        }
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut Waiting> {
        match self.slots.get_mut(place.slot as usize)? {
            Some((seq, waiting)) if *seq == place.seq => Some(waiting),
            Some(_) | None => None,
        }
    }

    /// Puts a request at its place in line.
    pub(crate) fn push(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        mut waiting: Waiting,
    ) -> Place {
        let seq = self.next_seq;
        self.next_seq += 1;
        waiting.position = self.ahead(waiting.band, waiting.model);
        self.insert(now, config, seq, waiting)
    }

    fn insert(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        seq: u64,
        mut waiting: Waiting,
    ) -> Place {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("the queue is bounded")
        });
        let place = Place { seq, slot };
        self.by_key.insert(waiting.request.key, place);
        self.len += 1;
        self.bytes += waiting.request.bytes;
        waiting.line = self.join(now, config, place, &waiting);
        self.slots[slot as usize] = Some((seq, waiting));
        place
    }

    /// Takes a request out of the line without serving it.
    pub(crate) fn remove(&mut self, now: Timestamp, place: Place) -> Option<Waiting> {
        self.get(place)?;
        let (_, waiting) = self.slots[place.slot as usize].take()?;
        self.vacant.push(place.slot);
        self.by_key.remove(&waiting.request.key);
        self.len -= 1;
        self.bytes -= waiting.request.bytes;
        self.leave(now, place, &waiting);
        Some(waiting)
    }

    /// Takes a request out of the line to be served for `cost`, which its flow and band are charged with.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        place: Place,
        cost: u64,
    ) -> Option<(Waiting, Charge)> {
        let waiting = self.get(place)?;
        let (line, weight) = (waiting.line, waiting.request.weight.max(1));
        let (band, arrived) = (waiting.band, waiting.arrived);
        self.served.add(now, cost as f64);
        self.mean_cost += MEAN_STEP * (cost as f64 - self.mean_cost);
        self.mean_weight += MEAN_STEP * (f64::from(weight) - self.mean_weight);
        let charge = self.charge(now, config, line, weight, cost);
        self.note_wait(now, band, now.since(arrived), config.band(band).ttl);
        let waiting = self.remove(now, place)?;
        Some((waiting, charge))
    }

    /// What a request will probably cost is known better.
    pub(crate) fn set_cost(&mut self, place: Place, cost: u64) {
        let Some(waiting) = self.get_mut(place) else {
            return;
        };
        let old = std::mem::replace(&mut waiting.cost, cost);
        let band = waiting.band;
        let tier = self.tier_mut(band);
        tier.cost = tier.cost - old + cost;
    }

    /// A request is wanted by another time.
    pub(crate) fn set_deadline(&mut self, place: Place, deadline: Timestamp) {
        let Some(waiting) = self.get_mut(place) else {
            return;
        };
        let old = std::mem::replace(&mut waiting.deadline, deadline);
        let line = waiting.line;
        self.reorder(line, place, old, deadline);
    }

    /// Moves a request into `band`, with everything else about it unchanged.
    pub(crate) fn raise(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        place: Place,
        band: Band,
    ) -> Option<Place> {
        let mut waiting = self.remove(now, place)?;
        waiting.band = band;
        Some(self.insert(now, config, place.seq, waiting))
    }

    /// The limit that is exceeded because `place` waits, if one is.
    pub(crate) fn over_limit(&self, config: &FlowConfig, place: Place) -> Option<Scope> {
        let waiting = self.get(place)?;
        let (flow, tier) = (self.flow_of(waiting.line), self.tier(waiting.band)?);
        let band = config.band(waiting.band).limits;
        let pool = config.pool_limits;
        let flow_limits = config.flow_limits;
        if flow.len > flow_limits.requests || flow.bytes > flow_limits.bytes {
            Some(Scope::Flow)
        } else if tier.len > band.requests || tier.bytes > band.bytes {
            Some(Scope::Band)
        } else if self.len > pool.requests || self.bytes > pool.bytes {
            Some(Scope::Pool)
        } else {
            None
        }
    }

    /// Whether what `place` would cost its flow and band fits their quotas now.
    pub(crate) fn admits(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        place: Place,
        cost: u64,
    ) -> Result<(), (Scope, Over)> {
        let Some(waiting) = self.get(place) else {
            return Ok(());
        };
        let (line, band) = (waiting.line, waiting.band);
        let flow = self.flow_of_mut(line);
        let quota = config.quota(&flow.id);
        flow.meter
            .admits(now, quota, cost)
            .map_err(|over| (Scope::Flow, over))?;
        let tier = self.tier_mut(band);
        tier.meter
            .admits(now, &config.band(band).quota, cost)
            .map_err(|over| (Scope::Band, over))
    }

    /// Requests for `model` that wait in `band` and above.
    pub(crate) fn ahead(&self, band: Band, model: ModelKey) -> usize {
        self.tiers
            .iter()
            .take_while(|tier| tier.band >= band)
            .map(|tier| tier.waiting_for(model))
            .sum()
    }

    /// Work that waits in `band` and above.
    pub(crate) fn backlog(&self, band: Band) -> u64 {
        self.tiers
            .iter()
            .take_while(|tier| tier.band >= band)
            .map(|tier| tier.cost)
            .sum()
    }

    /// Work begun per second, averaged over the last twenty; none before anything was.
    pub(crate) fn rate(&mut self, now: Timestamp) -> f64 {
        self.served.sum(now) / RATE_S as f64
    }

    /// Work begun per second over the last `seconds`, at most twenty.
    pub(crate) fn rate_of_last(&mut self, now: Timestamp, seconds: u64) -> f64 {
        let seconds = seconds.clamp(1, RATE_S);
        self.served.sum_of_last(now, seconds) / seconds as f64
    }

    pub(crate) fn is_overloaded(&self, band: Band) -> bool {
        self.tier(band)
            .is_some_and(|tier| tier.time.is_overloaded())
    }

    /// Settings changed: bands that are named from now on live on, flows are ranked as the new order says, and nobody is
    /// over a quota until it is seen.
    pub(crate) fn reconfigure(&mut self, now: Timestamp, config: &FlowConfig) {
        self.adopt(config);
        let parked: Vec<u32> = self.parked_flows();
        for flow in parked {
            self.unpark(now, flow);
        }
        let bands: Vec<Band> = self.tiers.iter().map(|tier| tier.band).collect();
        for band in bands {
            self.unpark_band(band);
            self.rank_anew(band);
        }
    }

    /// What one quantum of the fair order is: a moment of the pool's work, at least a few requests, per unit of weight.
    fn quantum(&mut self, now: Timestamp) -> u64 {
        let work = (QUANTUM.0 * self.rate(now))
            .max(QUANTUM.1 * self.mean_cost)
            .max(1.0);
        (work / self.mean_weight.max(1.0)) as u64
    }

    /// A request of `band` can no longer be served in time.
    pub(crate) fn doomed(&mut self, now: Timestamp, band: Band) {
        if self.tier_mut(band).time.doomed(now) {
            self.forgive(now, band);
        }
    }

    /// Whether displacing all that may be displaced for `band` would bring the pool within its limits.
    pub(crate) fn can_make_room(&self, config: &FlowConfig, band: Band) -> bool {
        let pool = config.pool_limits;
        let (mut requests, mut bytes) = (self.len, self.bytes);
        for tier in self.displaceable_tiers(band) {
            requests -= tier.len;
            bytes -= tier.bytes;
        }
        requests <= pool.requests && bytes <= pool.bytes
    }

    /// Bands whose requests may be displaced for `band`, lowest first.
    fn displaceable_tiers(&self, band: Band) -> impl Iterator<Item = &Tier> {
        let is_below = move |tier: &&Tier| tier.band < band && tier.band.0 < 0;
        self.tiers.iter().rev().take_while(is_below)
    }

    /// The newest request of the lowest band that is below both 0 and `band`.
    pub(crate) fn displaceable(&self, band: Band) -> Option<Place> {
        self.displaceable_tiers(band)
            .find_map(|tier| tier.newest.last().copied())
    }

    /// The highest band that something waits or runs in, or that is configured.
    pub(crate) fn top_band(&self, config: &FlowConfig) -> Option<Band> {
        let active = self
            .tiers
            .iter()
            .find(|tier| tier.is_active())
            .map(|tier| tier.band);
        active.max(config.bands.keys().next_back().copied())
    }

    /// Whether something waits or runs in a band above `band`.
    pub(crate) fn has_higher(&self, band: Band) -> bool {
        self.tiers
            .iter()
            .take_while(|tier| tier.band > band)
            .any(Tier::is_active)
    }

    /// The next higher band a request of `band` can be raised to: never the highest.
    pub(crate) fn band_above(&self, config: &FlowConfig, band: Band) -> Option<Band> {
        let top = self.top_band(config)?;
        let known = self
            .tiers
            .iter()
            .filter(|tier| tier.is_active())
            .map(|tier| tier.band);
        known
            .chain(config.bands.keys().copied())
            .filter(|other| *other > band && *other < top)
            .min()
    }

    fn note_wait(&mut self, now: Timestamp, band: Band, waited: Duration, budget: Duration) {
        if self.tier_mut(band).codel.dispatched(now, waited, budget) {
            self.rank_anew(band);
        }
    }
}
