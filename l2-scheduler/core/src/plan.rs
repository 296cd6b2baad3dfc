//! Choosing an endpoint and a moment for what waits: every request is planned onto the endpoint that suits it best, open or
//! not, and goes when that endpoint is open and the prefill harms no running stream more than it is worth.
//!
//! What limits a loaded pool is decoding: one long prefill stalls every stream of its engine. So the price of a place
//! includes the targets that others are expected to miss because of it.

mod board;
mod costs;
mod four;
mod misses;
mod spot;
#[cfg(test)]
mod tests;
mod ties;
mod toll;

pub(crate) use board::Board;
pub(crate) use misses::Stream;
pub(crate) use spot::Spot;
pub(crate) use toll::Toll;

use governance_context::Band;

use crate::TieBreak;

/// Expected misses tolerated before a request is held back.
pub(crate) const HOLD: f64 = 0.1;
/// Seconds a missed target is worth.
pub(crate) const MISS_S: f64 = 3.0;
/// Before a prefill that would make streams miss their targets, its engine may be left to decode for so many seconds: first
/// the short rests are weighed, then the long ones, if they may be worth it,
pub(crate) const SHORT_RESTS_S: [f64; 2] = [0.25, 0.5];
pub(crate) const LONG_RESTS_S: [f64; 3] = [1.0, 1.5, 2.5];
/// at so many seconds of cost for each of them.
pub(crate) const REST_PRICE: f64 = 3.0;
/// Streams then gain this part of what they would if nobody were sent there meanwhile.
pub(crate) const REST_GAIN: f64 = 0.6;
/// Backlog left in an engine, as a share of the prefill of one full step.
pub(crate) const GATE: f64 = 0.5;
/// The same for bands below the highest: what they have begun, a higher band waits behind.
pub(crate) const LOWER_GATE: f64 = 0.05;
/// Requests planned at once, per model.
pub(crate) const AHEAD: usize = 32;
/// A request whose endpoint is open is passed over so often at most.
pub(crate) const PASSED_AT_MOST: u32 = 8;

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

/// What the plan says of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposal {
    /// Index of the best endpoint.
    pub(crate) best: u32,
    /// Tokens of the prompt that it holds.
    pub(crate) cached: u32,
    /// Seconds of the prefill there.
    pub(crate) prefill_s: f64,
    /// Targets of others expected to be missed there.
    pub(crate) misses: f64,
    /// Seconds until its first token there, with some to spare.
    pub(crate) prudent_s: f64,
    /// The same on whichever endpoint would be quickest.
    pub(crate) soonest_s: f64,
    /// Seconds of the shortest prefill anywhere.
    pub(crate) least_prefill_s: f64,
    pub(crate) tie: Option<TieBreak>,
}
