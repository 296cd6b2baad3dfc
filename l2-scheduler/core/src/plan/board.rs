//! Every endpoint as the plan sees it, kept from turn to turn: what did not change is not looked at again.

use governance_context::Band;

use super::misses::Bearing;
use super::price::{Clock, Price};
use super::{Ask, MISS_S, Proposal, Spot, Stream};
use crate::cost::{StepModel, Work, attention_area};
use crate::policy::{SLIGHT, ranking};
use crate::residency::hash_bytes;
use crate::{TieBreak, Timestamp};

/// Seconds a place costs where the request would be late: whoever can make it goes first.
const TOO_LATE_S: f64 = 10.0;
/// Misses are weighed for so many of the cheapest endpoints at most,
const MOST_WEIGHED: usize = 16;
/// and for so many that are as good as the best, to find who wins the tie.
const MOST_TIED: usize = 8;

/// Endpoints are told by their index, among all endpoints of the pool.
#[derive(Debug, Default)]
pub(crate) struct Board {
    now: Timestamp,
    /// Counts the moments things were moved to.
    moment: u64,
    spots: Vec<Spot>,
    prices: Vec<Price>,
    clocks: Vec<Clock>,
    /// What the streams beside can bear, as of which moment and for which band.
    bearings: Vec<((u64, Band), Bearing)>,
    /// Of every class.
    models: Vec<StepModel>,
    /// Spots that carry what is only planned.
    planned: Vec<u32>,
    /// Of the request in hand: tokens of its prompt that every endpoint holds, and who holds any.
    cached: Vec<u32>,
    holders: Vec<u32>,
    /// What it costs everywhere, but for `discount_s`; with misses where they were weighed.
    costs: Vec<f64>,
    discount_s: f64,
    weighed: Vec<(u32, f64)>,
    /// Its whole prompt as work, by class.
    cold: Vec<Work>,
    order: Vec<u32>,
    ties: Vec<Tied>,
}

/// One of several that cost the same: least KV use first, then rendezvous of prompt and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tied {
    kv_percent: u32,
    lot: std::cmp::Reverse<u64>,
    index: u32,
}

/// The pool in one number each, over the endpoints that are ready.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) ready: usize,
    pub(crate) kv_use: f64,
    pub(crate) saturation: f64,
}

impl Board {
    /// Forgets all endpoints.
    pub(crate) fn clear(&mut self) {
        self.spots.clear();
        self.prices.clear();
        self.clocks.clear();
        self.bearings.clear();
        self.planned.clear();
        self.holders.clear();
        self.cached.clear();
        self.costs.clear();
    }

    pub(crate) fn push(&mut self, spot: Spot) {
        self.prices.push(Price::of(&spot));
        self.clocks.push(Clock::of(&spot));
        self.bearings.push(((0, Band(0)), Bearing::default()));
        self.spots.push(spot);
        self.cached.push(0);
        self.costs.push(0.0);
    }

    pub(crate) fn set(&mut self, index: u32, spot: Spot) {
        self.prices[index as usize] = Price::of(&spot);
        self.clocks[index as usize] = Clock::of(&spot);
        self.spots[index as usize] = spot;
    }

    pub(crate) fn set_models(&mut self, models: impl Iterator<Item = StepModel>) {
        self.models.clear();
        self.models.extend(models);
    }

    /// Whose spots no longer hold at `now`, or carry what was only planned.
    pub(crate) fn outdated(&mut self, now: Timestamp) -> impl Iterator<Item = u32> {
        let lapsed = self
            .clocks
            .iter()
            .enumerate()
            .filter(move |(_, clock)| now > clock.holds_until)
            .map(|(index, _)| index as u32);
        self.planned.drain(..).chain(lapsed)
    }

    /// Moves everything to `now`.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Totals {
        self.now = now;
        self.moment += 1;
        let mut totals = Totals::default();
        for (clock, price) in self.clocks.iter().zip(&mut self.prices) {
            price.queue_s = clock.queue_s(now);
            if clock.is_ready {
                totals.ready += 1;
                totals.kv_use += clock.kv_use;
                totals.saturation += clock.saturation(price.queue_s);
            }
        }
        let ready = totals.ready.max(1) as f64;
        totals.kv_use /= ready;
        totals.saturation = if totals.ready == 0 {
            1.0
        } else {
            totals.saturation / ready
        };
        totals
    }

    pub(crate) fn spot(&mut self, index: u32) -> &Spot {
        let spot = &mut self.spots[index as usize];
        if spot.now != self.now {
            spot.advance(self.now);
        }
        spot
    }

    pub(crate) fn is_full(&self, index: u32) -> bool {
        let spot = &self.spots[index as usize];
        spot.in_flight >= spot.places
    }

    /// A request is expected to go there, or has just gone.
    pub(crate) fn add(&mut self, index: u32, uncached: u32, cached: u32) {
        self.change(index, |spot| spot.add(uncached, cached));
    }

    /// Keeps an endpoint for whoever was passed over there often enough.
    pub(crate) fn reserve(&mut self, index: u32) {
        self.change(index, |spot| spot.is_reserved = true);
    }

    fn change(&mut self, index: u32, change: impl FnOnce(&mut Spot)) {
        self.spot(index);
        let spot = &mut self.spots[index as usize];
        change(spot);
        self.prices[index as usize] = Price::of(spot);
        self.clocks[index as usize] = Clock::of(spot);
        self.planned.push(index);
    }

    /// Takes a request in hand: who holds how many tokens of its prompt.
    pub(crate) fn take(&mut self, holdings: impl Iterator<Item = (u32, u32)>) {
        for index in self.holders.drain(..) {
            self.cached[index as usize] = 0;
        }
        for (index, cached) in holdings {
            self.cached[index as usize] = cached;
            self.holders.push(index);
        }
    }

    /// Tokens of the prompt in hand that an endpoint holds.
    pub(crate) fn cached(&self, index: u32) -> u32 {
        self.cached[index as usize]
    }

    /// Seconds of the prefill of the prompt in hand, of `prompt` tokens.
    pub(crate) fn prefill_s(&self, index: u32, prompt: u32) -> f64 {
        let price = &self.prices[index as usize];
        let cached = self.cached(index);
        price.prefill_s(work(&self.models[price.class as usize], prompt, cached))
    }

    /// What an endpoint costs the request in hand, with misses where they were weighed.
    pub(crate) fn cost(&self, index: u32) -> f64 {
        self.costs[index as usize] - self.discount_s
    }

    /// Targets of others expected to be missed there, where weighed.
    pub(crate) fn misses(&self, index: u32) -> Option<f64> {
        let known = self.weighed.iter().find(|(at, _)| *at == index)?;
        Some(known.1)
    }

    /// The chosen endpoint, then its closest rivals.
    pub(crate) fn ranking(&self, eligible: &[u32], chosen: u32) -> Vec<u32> {
        let costs = eligible.iter().map(|index| (*index, self.cost(*index)));
        ranking(costs, chosen)
    }

    /// Finds the best of the `eligible` endpoints for the request in hand. `streams` gives what decodes on an endpoint;
    /// `spread` tells prompts apart where endpoints are equal.
    pub(crate) fn propose<'a>(
        &mut self,
        ask: &Ask,
        eligible: &[u32],
        streams: impl Fn(u32) -> &'a [Stream],
        spread: u64,
    ) -> Option<Proposal> {
        let (cheapest, least_prefill_s, soonest_s) = self.price(ask, eligible)?;
        self.weighed.clear();
        let least = self.least(ask, eligible, cheapest, &streams);
        let (best, tie) = self.untie(ask, least, &streams, spread)?;
        let prefill_s = self.prefill_s(best, ask.prompt);
        Some(Proposal {
            best,
            cached: self.cached(best),
            prefill_s,
            misses: self.misses(best).unwrap_or(0.0),
            prudent_s: self.prices[best as usize].prudent_s(prefill_s),
            soonest_s,
            least_prefill_s,
            tie,
        })
    }

    /// Fills in what every place costs, without misses: returns the cheapest, the least seconds of prefill, and the seconds
    /// to the first token wherever it would be quickest, with some to spare.
    fn price(&mut self, ask: &Ask, eligible: &[u32]) -> Option<(u32, f64, f64)> {
        self.cold.clear();
        self.cold
            .extend(self.models.iter().map(|model| work(model, ask.prompt, 0)));
        // Holders of a common prefix mostly hold the same of it.
        let mut warm = (u32::MAX, 0, self.cold.first().copied()?);
        let mut cheapest = (f64::INFINITY, None);
        let (mut least, mut soonest) = (f64::INFINITY, f64::INFINITY);
        for index in eligible {
            let price = &self.prices[*index as usize];
            let (class, cached) = (price.class, self.cached[*index as usize]);
            let work = if cached == 0 {
                self.cold[class as usize]
            } else {
                if (warm.0, warm.1) != (class, cached) {
                    let work = work(&self.models[class as usize], ask.prompt, cached);
                    warm = (class, cached, work);
                }
                warm.2
            };
            let prefill_s = price.prefill_s(work);
            let prudent_s = price.prudent_s(prefill_s);
            least = least.min(prefill_s);
            soonest = soonest.min(prudent_s);
            let late_s = if prudent_s > ask.left_s {
                TOO_LATE_S
            } else {
                0.0
            };
            let cost = price.cost(prefill_s, ask.kappa) + late_s;
            self.costs[*index as usize] = cost;
            if cheapest.1.is_none() || cost < cheapest.0 {
                cheapest = (cost, Some(*index));
            }
        }
        self.discount_s = ask.kappa * least;
        Some((cheapest.1?, least, soonest))
    }

    /// The least cost with misses; leaves in `order` whoever may cost as good as that. Misses only add: whoever is dearer
    /// without them stays dearer.
    fn least<'a>(
        &mut self,
        ask: &Ask,
        eligible: &[u32],
        cheapest: u32,
        streams: &impl Fn(u32) -> &'a [Stream],
    ) -> f64 {
        let mut least = self.weigh(ask, cheapest, streams);
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        let limit = SLIGHT.limit(least) + self.discount_s;
        let costs = &self.costs;
        order.extend(
            eligible
                .iter()
                .filter(|index| costs[**index as usize] <= limit),
        );
        let by_cost = |a: &u32, b: &u32| self.cost(*a).total_cmp(&self.cost(*b)).then(a.cmp(b));
        let first = MOST_WEIGHED.min(order.len());
        if first < order.len() {
            order.select_nth_unstable_by(first, by_cost);
        }
        order[..first].sort_unstable_by(by_cost);
        for index in &order[..first] {
            if *index == cheapest {
                continue;
            }
            if self.cost(*index) >= least {
                break;
            }
            least = least.min(self.weigh(ask, *index, streams));
        }
        self.order = order;
        least
    }

    /// The best of those that cost as good as `least`.
    fn untie<'a>(
        &mut self,
        ask: &Ask,
        least: f64,
        streams: &impl Fn(u32) -> &'a [Stream],
        spread: u64,
    ) -> Option<(u32, Option<TieBreak>)> {
        let limit = SLIGHT.limit(least);
        let mut ties = std::mem::take(&mut self.ties);
        ties.clear();
        // Whoever is below the least was too many to be weighed.
        let equal = |index: &&u32| (least..=limit).contains(&self.cost(**index));
        let equals = self.order.iter().filter(equal);
        ties.extend(equals.map(|index| self.tied(*index, spread)));
        if ties.len() > MOST_TIED {
            ties.select_nth_unstable(MOST_TIED);
            ties.truncate(MOST_TIED);
        }
        ties.sort_unstable();
        let mut best: Option<Tied> = None;
        let mut tie = None;
        for next in &ties {
            if self.misses(next.index).is_none() && self.weigh(ask, next.index, streams) > limit {
                continue;
            }
            let Some(best) = best else {
                best = Some(*next);
                continue;
            };
            tie = Some(if next.kv_percent == best.kv_percent {
                TieBreak::Rendezvous
            } else {
                TieBreak::FreeKv
            });
            break;
        }
        self.ties = ties;
        let least = || self.weighed.iter().map(|(index, _)| *index);
        let best = best
            .map(|best| best.index)
            .or_else(|| least().min_by(|a, b| self.cost(*a).total_cmp(&self.cost(*b))))?;
        Some((best, tie))
    }

    fn tied(&self, index: u32, spread: u64) -> Tied {
        let clock = &self.clocks[index as usize];
        let lot = hash_bytes(spread, &clock.name_hash.to_le_bytes());
        Tied {
            kv_percent: clock.kv_percent(),
            lot: std::cmp::Reverse(lot),
            index,
        }
    }

    /// Adds the misses of an endpoint to its cost.
    fn weigh<'a>(&mut self, ask: &Ask, index: u32, streams: &impl Fn(u32) -> &'a [Stream]) -> f64 {
        let prefill_s = self.prefill_s(index, ask.prompt);
        let uncached = ask.prompt - self.cached(index);
        self.spot(index);
        let spot = &self.spots[index as usize];
        let (known, bearing) = &mut self.bearings[index as usize];
        let wanted = (self.moment, ask.band);
        if std::mem::replace(known, wanted) != wanted {
            bearing.renew(spot, streams(index), ask);
        }
        let misses = spot.misses(bearing, uncached, prefill_s, ask);
        self.weighed.push((index, misses));
        self.costs[index as usize] += MISS_S * misses;
        self.cost(index)
    }
}

fn work(model: &StepModel, prompt: u32, cached: u32) -> Work {
    let uncached = prompt - cached;
    model.work(f64::from(uncached), attention_area(uncached, cached))
}
