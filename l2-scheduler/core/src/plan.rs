//! Choosing an endpoint and a moment for what waits: every request is planned onto the endpoint that suits it best, open or
//! not, and goes when that endpoint is open and the prefill harms no running stream more than it is worth.
//!
//! What limits a loaded pool is decoding: one long prefill stalls every stream of its engine. So the price of a place
//! includes the targets that others are expected to miss because of it.

mod misses;
mod spot;

pub(crate) use misses::Stream;
pub(crate) use spot::Spot;

use governance_context::Band;

use crate::TieBreak;
use crate::cost::cost;
use crate::policy::SLIGHT;

/// Expected misses tolerated before a request is held back.
pub(crate) const HOLD: f64 = 0.1;
/// Seconds a missed target is worth.
pub(crate) const MISS_S: f64 = 3.0;
/// Backlog left in an engine, as a share of the prefill of one full step.
pub(crate) const GATE: f64 = 0.5;
/// The same for bands below the highest: what they have begun, a higher band waits behind.
pub(crate) const LOWER_GATE: f64 = 0.05;
/// Requests planned at once, per model.
pub(crate) const AHEAD: usize = 32;
/// What a predicted prefill may take longer: a factor, and seconds.
const SAFETY: (f64, f64) = (1.3, 0.3);
/// A request whose endpoint is open is passed over so often at most.
pub(crate) const PASSED_AT_MOST: u32 = 8;
/// Seconds a place costs where the request would be late: whoever can make it goes first.
const TOO_LATE_S: f64 = 10.0;
/// Misses are weighed for so many of the cheapest endpoints at most.
const MOST_WEIGHED: usize = 32;

/// One request, as the plan sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: u32,
    /// Seconds per output token it wants.
    pub(crate) tpot_s: f64,
    /// Output tokens expected of it.
    pub(crate) output: f64,
    /// Price of duplicate work.
    pub(crate) kappa: f64,
    /// Share of the time that engines spend on prefills, 0 to 0.8.
    pub(crate) utilisation: f64,
    /// Seconds until its first token is wanted.
    pub(crate) left_s: f64,
    pub(crate) band: Band,
}

/// One endpoint that could take a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Position among the spots.
    pub(crate) spot: u32,
    pub(crate) cached: u32,
    /// Seconds of the prefill there.
    pub(crate) prefill_s: f64,
    /// Cost in seconds without misses.
    pub(crate) base_s: f64,
    /// Targets of others expected to be missed, where weighed.
    pub(crate) misses: Option<f64>,
}

impl Place {
    pub(crate) fn cost(&self) -> f64 {
        self.base_s + MISS_S * self.misses.unwrap_or(0.0)
    }
}

/// What the plan says of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposal {
    /// Position of the best place among the places.
    pub(crate) best: usize,
    /// Expected misses there.
    pub(crate) misses: f64,
    /// Seconds until its first token there, with some to spare.
    pub(crate) prudent_s: f64,
    /// The same on whichever endpoint would be quickest.
    pub(crate) soonest_s: f64,
    pub(crate) tie: Option<TieBreak>,
}

/// Fills in what every place costs, without misses; returns the seconds to the first token wherever it would be quickest,
/// with some to spare.
fn price(ask: &Ask, spots: &[Spot], places: &mut [Place]) -> f64 {
    let mut least = f64::INFINITY;
    let mut soonest = f64::INFINITY;
    for place in &mut *places {
        let spot = &spots[place.spot as usize];
        place.prefill_s = spot.prefill_s(ask.prompt - place.cached, place.cached);
        least = least.min(place.prefill_s);
        soonest = soonest.min(spot.prudent_s(place.prefill_s));
    }
    for place in places {
        let spot = &spots[place.spot as usize];
        place.misses = None;
        place.base_s = cost(&spot.offer(place.prefill_s), ask.kappa, least)
            + if spot.prudent_s(place.prefill_s) > ask.left_s {
                TOO_LATE_S
            } else {
                0.0
            };
    }
    soonest
}

/// Finds the best place. `streams` gives the streams that decode on the endpoint of a spot; `spread` tells equals apart.
pub(crate) fn propose<'a>(
    ask: &Ask,
    spots: &[Spot],
    places: &mut [Place],
    streams: impl Fn(u32) -> &'a [Stream],
    spread: impl Fn(u32) -> u64,
    order: &mut Vec<u32>,
) -> Option<Proposal> {
    let soonest_s = price(ask, spots, places);
    order.clear();
    order.extend(0..places.len() as u32);
    let by_base = |a: &u32, b: &u32| {
        let (a, b) = (*a as usize, *b as usize);
        places[a]
            .base_s
            .total_cmp(&places[b].base_s)
            .then(a.cmp(&b))
    };
    if order.len() > MOST_WEIGHED {
        order.select_nth_unstable_by(MOST_WEIGHED - 1, by_base);
        order.truncate(MOST_WEIGHED);
    }
    order.sort_unstable_by(by_base);
    let mut least = f64::INFINITY;
    let mut weighed = 0;
    for at in &*order {
        let place = &mut places[*at as usize];
        // Misses only add: whoever is dearer without them stays dearer.
        if place.base_s > SLIGHT.limit(least) {
            break;
        }
        let spot = &spots[place.spot as usize];
        let uncached = ask.prompt - place.cached;
        place.misses = Some(spot.misses(streams(spot.index), uncached, place.prefill_s, ask));
        least = least.min(place.cost());
        weighed += 1;
    }
    order.truncate(weighed);
    let limit = SLIGHT.limit(least);
    order.retain(|at| places[*at as usize].cost() <= limit);
    let percent = |at: u32| spots[places[at as usize].spot as usize].kv_percent();
    let least_used = order.iter().map(|at| percent(*at)).min()?;
    let is_equal = order
        .iter()
        .filter(|at| percent(**at) == least_used)
        .count()
        > 1;
    let tie = match (order.len(), is_equal) {
        (1, _) => None,
        (_, false) => Some(TieBreak::FreeKv),
        (_, true) => Some(TieBreak::Rendezvous),
    };
    let best = order.iter().copied().min_by_key(|at| {
        let index = spots[places[*at as usize].spot as usize].index;
        (percent(*at), std::cmp::Reverse(spread(index)), index)
    })? as usize;
    let place = &places[best];
    let spot = &spots[place.spot as usize];
    Some(Proposal {
        best,
        misses: place.misses.unwrap_or(0.0),
        prudent_s: spot.prudent_s(place.prefill_s),
        soonest_s,
        tie,
    })
}
