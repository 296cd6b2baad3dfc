//! The waiting line: first come first served per model, bounded in requests and bytes.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::endpoint::ModelKey;
use crate::{Request, RequestKey, Timestamp};

/// Retries go before requests that were never sent.
const FIRST_ARRIVAL: u64 = 1 << 62;

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Box<Request>,
    pub(super) model: ModelKey,
    pub(super) arrived: Timestamp,
    pub(super) expires: Timestamp,
    /// Requests for the same model ahead of it on arrival.
    pub(super) position: usize,
    pub(super) timer: Option<Timestamp>,
}

/// Waiting requests by place; places are given in order of arrival and never twice.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places: BTreeMap<u64, Waiting>,
    by_key: FxHashMap<RequestKey, u64>,
    lanes: BTreeMap<ModelKey, BTreeSet<u64>>,
    bytes: u64,
    next: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, key: RequestKey) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(super) fn lane_length(&self, model: ModelKey) -> usize {
        self.lanes.get(&model).map_or(0, BTreeSet::len)
    }

    /// Puts a request at the end of its lane; returns its place.
    pub(super) fn push(&mut self, waiting: Waiting) -> u64 {
        self.next += 1;
        let place = if waiting.request.tried.is_empty() {
            FIRST_ARRIVAL + self.next
        } else {
            self.next
        };
        self.by_key.insert(waiting.request.key, place);
        self.lanes.entry(waiting.model).or_default().insert(place);
        self.bytes += waiting.request.bytes;
        self.places.insert(place, waiting);
        place
    }

    pub(super) fn get(&self, place: u64) -> Option<&Waiting> {
        self.places.get(&place)
    }

    pub(super) fn get_mut(&mut self, place: u64) -> Option<&mut Waiting> {
        self.places.get_mut(&place)
    }

    pub(super) fn place_of(&self, key: RequestKey) -> Option<u64> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn remove(&mut self, place: u64) -> Option<Waiting> {
        let waiting = self.places.remove(&place)?;
        self.by_key.remove(&waiting.request.key);
        self.bytes -= waiting.request.bytes;
        if let Some(lane) = self.lanes.get_mut(&waiting.model) {
            lane.remove(&place);
            if lane.is_empty() {
                self.lanes.remove(&waiting.model);
            }
        }
        Some(waiting)
    }

    /// Models somebody waits for.
    pub(super) fn models(&self) -> impl Iterator<Item = ModelKey> + '_ {
        self.lanes.keys().copied()
    }

    /// The first place of a lane after `place`.
    pub(super) fn next_in_lane(&self, model: ModelKey, place: u64) -> Option<u64> {
        self.lanes.get(&model)?.range(place + 1..).next().copied()
    }
}
