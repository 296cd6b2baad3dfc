//! Which of several endpoints that cost the same is taken.

use std::cmp::Reverse;

use super::Spot;
use crate::Timestamp;
use crate::residency::hash_bytes;

/// So many of those that cost the same are looked at, at most.
const MOST: usize = 8;

/// What is asked of many endpoints in a row, but not for a price: small, so that few lines of memory hold them all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    name_hash: u64,
    pub(super) holds_until: Timestamp,
    kv_percent: u32,
    pub(super) is_full: bool,
}

impl Tag {
    pub(super) fn of(spot: &Spot, kv_use: f64) -> Self {
        Self {
            name_hash: spot.name_hash,
            holds_until: spot.holds_until,
            // Whole percents: a difference nobody can feel decides nothing.
            kv_percent: (kv_use * 100.0) as u32,
            is_full: spot.in_flight >= spot.places,
        }
    }
}

/// One of several that cost the same: least KV use first, then rendezvous of prompt and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tied {
    pub(super) kv_percent: u32,
    lot: Reverse<u64>,
    pub(super) index: u32,
}

/// The first of those that cost the same, in the order in which they win.
#[derive(Debug, Default)]
pub(super) struct Ties(Vec<Tied>);

impl Ties {
    pub(super) fn first(&self) -> &[Tied] {
        &self.0
    }

    /// Takes in `equals`, which have these `tags` by their index.
    pub(super) fn fill(&mut self, equals: impl Iterator<Item = u32>, tags: &[Tag], spread: u64) {
        self.0.clear();
        for index in equals {
            let tag = &tags[index as usize];
            let is_crowded = self.0.len() == MOST;
            if is_crowded && self.0[MOST - 1].kv_percent < tag.kv_percent {
                continue;
            }
            let next = Tied {
                kv_percent: tag.kv_percent,
                lot: Reverse(hash_bytes(spread, &tag.name_hash.to_le_bytes())),
                index,
            };
            if !is_crowded || next < self.0[MOST - 1] {
                self.0.truncate(MOST - 1);
                let at = self.0.partition_point(|other| *other < next);
                self.0.insert(at, next);
            }
        }
    }
}
