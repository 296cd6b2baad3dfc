//! Who would go next, and after that: a look at the line that changes nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, btree_set};

use governance_context::Band;

use super::flows::{Head, Heads, Tier};
use super::{Place, Queue};
use crate::Timestamp;
use crate::endpoint::ModelKey;
use crate::flow::config::FlowConfig;

/// Models that get their own look-ahead; with more of them each gets less.
const MODELS: usize = 8;
/// At least so many per model.
const FEWEST: usize = 2;

/// One of the next to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) place: Place,
    /// Goes before higher bands because its band has not had its guaranteed share.
    pub(crate) by_share: bool,
}

/// Who is compared with others: its rank, its deadline, and itself.
type Ranked = (u64, Timestamp, Place);

/// The next of a line after its head was taken.
struct Rest<'a> {
    line: u32,
    /// Work per weight taken from this flow so far.
    taken: u64,
    iter: LineIter<'a>,
}

enum LineIter<'a> {
    Deadline(btree_set::Iter<'a, (Timestamp, Place)>),
    Newest(std::iter::Rev<btree_set::Iter<'a, (Place, Timestamp)>>),
}

impl Iterator for LineIter<'_> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        match self {
            Self::Deadline(iter) => iter.next().map(|(_, place)| *place),
            Self::Newest(iter) => iter.next().map(|(place, _)| *place),
        }
    }
}

/// Merges what is in order for every model up to each of the `ends`. (Not a sort: where the newest of a line go first, those
/// behind them have the earlier deadlines.)
fn merge(ranked: &[Ranked], ends: &[usize], picks: &mut Vec<Pick>) {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let head = |at: usize, end: usize| (at < end).then(|| Reverse((ranked[at], at, end)));
    let mut heads: BinaryHeap<_> = starts
        .zip(ends)
        .filter_map(|(at, end)| head(at, *end))
        .collect();
    while let Some(Reverse(((_, _, place), at, end))) = heads.pop() {
        picks.push(Pick {
            place,
            by_share: false,
        });
        heads.extend(head(at + 1, end));
    }
}

impl Queue {
    /// The first `ahead` requests for every model, in the order they would go: bands by priority, except who has a
    /// guaranteed share due, then retries, then the fair order, then deadlines.
    pub(crate) fn order(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        ahead: usize,
        picks: &mut Vec<Pick>,
    ) {
        picks.clear();
        let bands: Vec<Band> = self
            .tiers
            .iter()
            .filter(|tier| tier.len > 0)
            .map(|tier| tier.band)
            .collect();
        for band in &bands {
            self.advance(now, *band);
        }
        self.pick_by_share(config, picks);
        let boosted = picks.len();
        let models: usize = self.tiers.iter().map(|tier| tier.models.len()).sum();
        let ahead = (ahead * MODELS / models.max(1)).clamp(FEWEST.min(ahead), ahead);
        let mut left: Vec<(ModelKey, usize)> = Vec::new();
        let mut ranked = Vec::new();
        let mut ends = Vec::new();
        for tier in self.tiers.iter().filter(|tier| !tier.parked) {
            ranked.clear();
            ends.clear();
            for (model, heads) in &tier.models {
                let at = left
                    .binary_search_by_key(model, |(known, _)| *known)
                    .unwrap_or_else(|at| {
                        left.insert(at, (*model, ahead));
                        at
                    });
                let before = ranked.len();
                self.first_of(tier, heads, left[at].1, &mut ranked);
                left[at].1 -= ranked.len() - before;
                ends.push(ranked.len());
            }
            merge(&ranked, &ends, picks);
        }
        if boosted > 0 {
            let first: Vec<Pick> = picks[..boosted].to_vec();
            let mut at = 0;
            picks.retain(|pick| {
                at += 1;
                at <= boosted || first.iter().all(|other| other.place != pick.place)
            });
        }
    }

    /// The heads of bands below others that have a guaranteed share due.
    fn pick_by_share(&self, config: &FlowConfig, picks: &mut Vec<Pick>) {
        let mut is_lower = false;
        for tier in &self.tiers {
            let is_due = is_lower
                && !tier.parked
                && tier.len > 0
                && config.band(tier.band).starvation.share() > 0.0;
            if is_due {
                self.pick_due(tier, picks);
            }
            is_lower |= tier.is_active();
        }
    }

    /// The first of every model that the share of a band covers together, so that one model whose endpoints are full or gone
    /// keeps no other from its due.
    fn pick_due(&self, tier: &Tier, picks: &mut Vec<Pick>) {
        let first = |heads: &Heads| {
            let retry = self.retries(heads).next();
            let head = || {
                heads
                    .order
                    .first()
                    .map(|head| (head.rank, head.deadline, head.place))
            };
            retry.map(|place| (0, Timestamp::ZERO, place)).or_else(head)
        };
        let mut heads: Vec<_> = tier.models.values().filter_map(first).collect();
        heads.sort_unstable();
        let mut costs = 0_u64;
        for (_, _, place) in heads {
            let Some(waiting) = self.get(place) else {
                continue;
            };
            costs = costs.saturating_add(waiting.cost);
            if !tier.share.covers(costs) {
                return;
            }
            picks.push(Pick {
                place,
                by_share: true,
            });
        }
    }

    /// Later attempts, the oldest first, of flows that are not over their quotas.
    fn retries<'a>(&'a self, heads: &'a Heads) -> impl Iterator<Item = Place> + 'a {
        heads.retries.iter().copied().filter(|place| {
            self.get(*place)
                .is_some_and(|waiting| !self.flow_of(waiting.line).parked)
        })
    }

    /// Adds the first `most` of one model in one band.
    fn first_of(&self, tier: &Tier, heads: &Heads, most: usize, ranked: &mut Vec<Ranked>) {
        let end = ranked.len() + most;
        for place in self.retries(heads).take(most) {
            ranked.push((0, Timestamp::ZERO, place));
        }
        let mut order = heads.order.iter().peekable();
        let mut rests: Vec<Rest<'_>> = Vec::new();
        // Seconds and thirds of lines whose first was taken, by the rank that taking it gave them.
        let mut later: BinaryHeap<Reverse<(Head, usize)>> = BinaryHeap::new();
        while ranked.len() < end {
            let first_head = order.peek().map(|head| **head);
            let first_later = later.peek().map(|Reverse((head, _))| *head);
            let (head, rest) = match (first_head, first_later) {
                (Some(head), None) => (head, None),
                (Some(head), Some(other)) if head <= other => (head, None),
                (_, Some(_)) => {
                    let Some(Reverse((head, rest))) = later.pop() else {
                        return;
                    };
                    (head, Some(rest))
                }
                (None, None) => return,
            };
            ranked.push((head.rank, head.deadline, head.place));
            let at = rest.unwrap_or_else(|| {
                order.next();
                rests.push(self.rest_of(tier, head.line));
                rests.len() - 1
            });
            if let Some(next) = self.following(tier, head.place, &mut rests[at]) {
                later.push(Reverse((next, at)));
            }
        }
    }

    fn rest_of(&self, tier: &Tier, line: u32) -> Rest<'_> {
        let entry = self.lines.all[line as usize]
            .as_ref()
            .expect("a head belongs to a line");
        let mut iter = if tier.codel.newest_first() {
            LineIter::Newest(entry.by_age.iter().rev())
        } else {
            LineIter::Deadline(entry.by_deadline.iter())
        };
        iter.next();
        Rest {
            line,
            taken: 0,
            iter,
        }
    }

    /// The one behind `taken` in its line, ranked as if the flow had been served `taken` already.
    fn following(&self, tier: &Tier, taken: Place, rest: &mut Rest<'_>) -> Option<Head> {
        let place = rest.iter.next()?;
        let served = self.get(taken)?;
        rest.taken += served.cost / u64::from(served.request.weight.max(1));
        let tag = self.flow_of(rest.line).tag.saturating_add(rest.taken);
        Some(Head {
            rank: tier.time.ranking.rank(tag),
            deadline: self.get(place)?.deadline,
            place,
            line: rest.line,
        })
    }
}
