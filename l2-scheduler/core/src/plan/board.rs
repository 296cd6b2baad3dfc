//! Every endpoint as the plan sees it, kept from turn to turn: what did not change is not looked at again.

use std::ops::Range;

use wide::f32x4;

use super::costs::Costs;
use super::four::{LANES, Price, Sums, Tide, least, lesser, place, prudent_s};
use super::misses::Bearing;
use super::ties::{Tag, Tied, Ties};
use super::toll::Toll;
use super::{Ask, Proposal, Spot, Stream};
use crate::cost::StepModel;
use crate::filters::Eligible;
use crate::policy::{RECORDED, SLIGHT};
use crate::{TieBreak, Timestamp};

/// Misses are weighed for the endpoint that is cheapest without them, for so many that may still be cheaper, and for those
/// that may win a tie.
const MOST_WEIGHED: usize = 8;
const NOWHERE: f32x4 = f32x4::splat(f32::INFINITY);

/// Endpoints are told by their index, among all endpoints of the pool.
#[derive(Debug)]
pub(crate) struct Board {
    now: Timestamp,
    spots: Vec<Spot>,
    tags: Vec<Tag>,
    tides: Vec<Tide>,
    prices: Vec<Price>,
    /// What the streams beside can bear.
    bearings: Vec<Bearing>,
    /// No spot lapses before.
    lapses_at: Timestamp,
    /// Spots that carry what is only planned.
    planned: Vec<u32>,
    /// Zero where the request in hand may go; which edition of the eligible that is.
    bars: Vec<f32x4>,
    barred: Option<u64>,
    /// Who holds anything of the prompt in hand.
    holders: Vec<u32>,
    /// What it costs, but for `discount_s`; with the toll where it was weighed.
    costs: Costs,
    discount_s: f64,
    weighed: Vec<(u32, Toll)>,
    cheapest: Vec<(f32, u32)>,
    ties: Ties,
}

/// The pool in one number each, over the endpoints that are ready.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) ready: usize,
    pub(crate) kv_use: f64,
    pub(crate) saturation: f64,
}

/// The cheapest place but for misses, and what is best anywhere, in seconds.
struct Quoted {
    cheapest: u32,
    least_prefill_s: f64,
    soonest_s: f64,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            now: Timestamp::ZERO,
            spots: Vec::new(),
            tags: Vec::new(),
            tides: Vec::new(),
            prices: Vec::new(),
            bearings: Vec::new(),
            lapses_at: Timestamp::MAX,
            planned: Vec::new(),
            bars: Vec::new(),
            barred: None,
            holders: Vec::new(),
            costs: Costs::default(),
            discount_s: 0.0,
            weighed: Vec::new(),
            cheapest: Vec::new(),
            ties: Ties::default(),
        }
    }
}

impl Board {
    /// Forgets all endpoints.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn push(&mut self, spot: Spot) {
        let (_, lane) = place(self.spots.len() as u32);
        if lane == 0 {
            self.tides.push(Tide::default());
            self.prices.push(Price::default());
            self.bars.push(NOWHERE);
            self.costs.0.push(NOWHERE);
        }
        self.barred = None;
        self.tags.push(Tag::of(&spot, 0.0));
        self.bearings.push(Bearing::default());
        self.spots.push(spot);
        self.pack(self.spots.len() as u32 - 1);
    }

    pub(crate) fn set(&mut self, index: u32, spot: Spot) {
        self.spots[index as usize] = spot;
        self.bearings[index as usize].forget();
        self.pack(index);
    }

    /// What was learned of a class of engines changes what their spots say: those of a `part`. Where the next part begins,
    /// if there is one.
    pub(crate) fn relearn(
        &mut self,
        class: u32,
        model: StepModel,
        part: Range<u32>,
    ) -> Option<u32> {
        let end = self.spots.len().min(part.end as usize);
        for index in part.start as usize..end {
            if self.spots[index].class == class {
                self.spots[index].relearn(model);
                self.bearings[index].forget();
                self.pack(index as u32);
            }
        }
        (end < self.spots.len()).then_some(part.end)
    }

    fn pack(&mut self, index: u32) {
        let (four, lane) = place(index);
        let spot = &self.spots[index as usize];
        let kv_use = spot.kv_use();
        let tag = Tag::of(spot, kv_use);
        self.prices[four].set(lane, spot);
        self.tides[four].set(lane, spot, kv_use);
        self.tags[index as usize] = tag;
        self.lapses_at = self.lapses_at.min(tag.holds_until);
    }

    /// Whose spots no longer hold at `now`, or carry what was only planned.
    pub(crate) fn outdated(&mut self, now: Timestamp) -> impl Iterator<Item = u32> {
        let has_lapsed = now > self.lapses_at;
        if has_lapsed {
            let holds = self.tags.iter().map(|tag| tag.holds_until);
            self.lapses_at = holds
                .filter(|at| *at >= now)
                .min()
                .unwrap_or(Timestamp::MAX);
        }
        let tags = if has_lapsed { &*self.tags } else { &[] };
        let lapsed = tags
            .iter()
            .zip(0..)
            .filter(move |(tag, _)| now > tag.holds_until)
            .map(|(_, index)| index);
        self.planned.drain(..).chain(lapsed)
    }

    /// Moves everything to `now`.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Totals {
        self.now = now;
        let now_s = now.seconds_since(Timestamp::ZERO);
        let mut sums = [Sums::default(); LANES];
        for (tide, price) in self.tides.iter().zip(&mut self.prices) {
            price.queue_s = tide.at(now_s, &mut sums);
        }
        let sum = |of: fn(&Sums) -> f64| sums.iter().map(of).sum::<f64>();
        let ready = sum(|sums| sums.ready);
        let mean = |sum: f64| sum / ready.max(1.0);
        Totals {
            ready: ready as usize,
            kv_use: mean(sum(|sums| sums.kv_use)),
            saturation: if ready == 0.0 {
                1.0
            } else {
                mean(sum(|sums| sums.saturation))
            },
        }
    }

    pub(crate) fn spot(&mut self, index: u32) -> &Spot {
        let spot = &mut self.spots[index as usize];
        if spot.now != self.now {
            spot.advance(self.now);
        }
        spot
    }

    pub(crate) fn is_full(&self, index: u32) -> bool {
        self.tags[index as usize].is_full
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
        change(&mut self.spots[index as usize]);
        self.pack(index);
        self.planned.push(index);
    }

    /// Takes a request in hand: who holds how many tokens of its prompt.
    pub(crate) fn take(&mut self, holdings: impl Iterator<Item = (u32, u32)>) {
        for index in self.holders.drain(..) {
            let (four, lane) = place(index);
            self.prices[four].cached.as_mut_array()[lane] = 0.0;
        }
        for (index, cached) in holdings {
            let (four, lane) = place(index);
            self.prices[four].cached.as_mut_array()[lane] = cached as f32;
            self.holders.push(index);
        }
    }

    /// Tokens of the prompt in hand that an endpoint holds.
    pub(crate) fn cached(&self, index: u32) -> u32 {
        let (four, lane) = place(index);
        self.prices[four].cached.as_array()[lane] as u32
    }

    /// Seconds of the prefill of the prompt in hand, of `prompt` tokens.
    pub(crate) fn prefill_s(&self, index: u32, prompt: u32) -> f64 {
        let cached = self.cached(index);
        self.spots[index as usize].prefill_s(prompt - cached, cached)
    }

    /// What an endpoint costs the request in hand, with the toll where it was weighed.
    pub(crate) fn cost(&self, index: u32) -> f64 {
        f64::from(self.costs.of(index)) - self.discount_s
    }

    /// What its streams pay for the request in hand, where weighed.
    pub(crate) fn toll(&self, index: u32) -> Option<Toll> {
        let known = self.weighed.iter().find(|(at, _)| *at == index)?;
        Some(known.1)
    }

    /// The chosen endpoint, then its closest rivals.
    pub(crate) fn ranking(&mut self, chosen: u32) -> Vec<u32> {
        self.costs.cheapest(RECORDED, f32::MAX, &mut self.cheapest);
        let rivals = self.cheapest.iter().map(|(_, index)| *index);
        let rivals = rivals.filter(|index| *index != chosen);
        std::iter::once(chosen)
            .chain(rivals)
            .take(RECORDED)
            .collect()
    }

    /// Finds the best of the `eligible` endpoints for the request in hand. `streams` gives what decodes on an endpoint;
    /// `spread` tells prompts apart where endpoints are equal.
    pub(crate) fn propose<'a>(
        &mut self,
        ask: &Ask,
        eligible: &Eligible,
        streams: impl Fn(u32) -> &'a [Stream],
        spread: u64,
    ) -> Option<Proposal> {
        self.bar(eligible);
        let quoted = self.quote(ask)?;
        self.weighed.clear();
        let least = self.least(ask, quoted.cheapest, &streams);
        let (best, tie) = self.untie(ask, least, &streams, spread)?;
        let prefill_s = self.prefill_s(best, ask.prompt);
        Some(Proposal {
            best,
            cached: self.cached(best),
            prefill_s,
            misses: self.toll(best).map_or(0.0, |toll| toll.misses),
            prudent_s: prudent_s(self.spot(best).queue_s, prefill_s),
            soonest_s: quoted.soonest_s,
            least_prefill_s: quoted.least_prefill_s,
            tie,
        })
    }

    /// Lets the request in hand go to the `eligible` alone.
    fn bar(&mut self, eligible: &Eligible) {
        if self.barred == Some(eligible.edition()) {
            return;
        }
        self.barred = Some(eligible.edition());
        self.bars.fill(NOWHERE);
        for index in eligible.indices() {
            let (four, lane) = place(*index);
            self.bars[four].as_mut_array()[lane] = 0.0;
        }
    }

    /// Fills in what every place costs, without misses.
    fn quote(&mut self, ask: &Ask) -> Option<Quoted> {
        let (mut prefill_s, mut prudent_s, mut cheapest) = (NOWHERE, NOWHERE, NOWHERE);
        let places = self.prices.iter().zip(&self.bars).zip(&mut self.costs.0);
        for ((price, bars), cost) in places {
            let quote = price.quote(ask, *bars);
            prefill_s = quote.prefill_s.fast_min(prefill_s);
            prudent_s = quote.prudent_s.fast_min(prudent_s);
            cheapest = quote.cost.fast_min(cheapest);
            *cost = quote.cost;
        }
        let least_prefill_s = f64::from(least(prefill_s));
        self.discount_s = ask.kappa * least_prefill_s;
        // Where all are barred the least is without end, and nobody is within what ends.
        let most = lesser(least(cheapest), f32::MAX);
        Some(Quoted {
            cheapest: self.costs.within(f32::MIN, most).next()?,
            least_prefill_s,
            soonest_s: f64::from(least(prudent_s)),
        })
    }

    /// The most that a cost may be to equal `least`.
    fn limit(&self, least: f32) -> f32 {
        (SLIGHT.limit(f64::from(least) - self.discount_s) + self.discount_s) as f32
    }

    /// The least cost with misses. They only add: whoever is dearer without them stays dearer.
    fn least<'a>(
        &mut self,
        ask: &Ask,
        cheapest: u32,
        streams: &impl Fn(u32) -> &'a [Stream],
    ) -> f32 {
        let bare = self.costs.of(cheapest);
        let mut least = self.weigh(ask, cheapest, streams);
        if least <= bare {
            return least;
        }
        let mut list = std::mem::take(&mut self.cheapest);
        self.costs.cheapest(MOST_WEIGHED, least, &mut list);
        for (cost, index) in &list {
            if *cost >= least {
                break;
            }
            least = lesser(self.weigh(ask, *index, streams), least);
        }
        self.cheapest = list;
        least
    }

    /// The best of those that cost as good as `least`. Where more are cheaper without misses than can be weighed, the rest
    /// of them stay below it and are left out.
    fn untie<'a>(
        &mut self,
        ask: &Ask,
        least: f32,
        streams: &impl Fn(u32) -> &'a [Stream],
        spread: u64,
    ) -> Option<(u32, Option<TieBreak>)> {
        let limit = self.limit(least);
        let mut ties = std::mem::take(&mut self.ties);
        ties.fill(self.costs.within(least, limit), &self.tags, spread);
        let mut best: Option<Tied> = None;
        let mut tie = None;
        for next in ties.first() {
            if self.toll(next.index).is_none() && self.weigh(ask, next.index, streams) > limit {
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
        let weighed = || self.weighed.iter().map(|(index, _)| *index);
        let cost = |index: &u32| self.costs.of(*index);
        let best = best
            .map(|best| best.index)
            .or_else(|| weighed().min_by(|a, b| cost(a).total_cmp(&cost(b))))?;
        Some((best, tie))
    }

    /// Adds what the streams of an endpoint pay to its cost.
    fn weigh<'a>(&mut self, ask: &Ask, index: u32, streams: &impl Fn(u32) -> &'a [Stream]) -> f32 {
        let cached = self.cached(index);
        let uncached = ask.prompt - cached;
        self.spot(index);
        let spot = &self.spots[index as usize];
        let bearing = &mut self.bearings[index as usize];
        bearing.renew(spot, streams(index), ask);
        let prefill_s = spot.prefill_s(uncached, cached);
        let toll = spot.toll(bearing, uncached, prefill_s, ask);
        self.weighed.push((index, toll));
        self.costs.add(index, toll.price_s as f32)
    }
}
