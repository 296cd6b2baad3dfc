//! Other schedulers of the same pool: what they have put on its endpoints.

use std::collections::BTreeMap;

use super::Pool;
use crate::endpoint::view::Foreign;
use crate::endpoint::{Endpoint, name_hash};
use crate::peers::{SLACK_EDGES, VECTOR_LIFE};
use crate::{EndpointLoad, LoadVector, PeerId, Timestamp};

/// A scheduler that says nothing for so long is gone.
const GONE_S: f64 = 10.0;
/// Schedulers of one pool at most; who is heard of later is not counted.
const MOST_PEERS: usize = 64;

/// The latest vector of every other scheduler.
#[derive(Debug, Default)]
pub(super) struct Peers {
    heard: BTreeMap<PeerId, Timestamp>,
}

/// What others have on one endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    pub(super) waiting: u32,
    pub(super) running: u32,
    pub(super) context: f64,
    /// Context of what has not begun to decode.
    pub(super) pending_context: f64,
    pub(super) pending_tokens: f64,
    pub(super) pending_area: f64,
    pub(super) slack: [u32; 8],
}

impl Peers {
    /// Schedulers heard of.
    pub(super) fn count(&self) -> usize {
        self.heard.len()
    }

    /// How old the newest word of any other scheduler is; nothing while there is none.
    pub(super) fn silence(&self, now: Timestamp) -> Option<f64> {
        let newest = self.heard.values().max()?;
        Some(now.seconds_since(*newest)).filter(|seconds| *seconds < GONE_S)
    }
}

impl Pool {
    /// What this scheduler has put on the endpoints, for the others.
    pub fn load_vector(&self, now: Timestamp) -> LoadVector {
        let endpoints = self
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.load.count() > 0)
            .map(|endpoint| self.own_load(now, endpoint))
            .collect();
        LoadVector { endpoints }
    }

    fn own_load(&self, now: Timestamp, endpoint: &Endpoint) -> EndpointLoad {
        let load = &endpoint.load;
        let model = self.classes[endpoint.class].calibration.model();
        let over = model.over(f64::from(load.decoding()), load.decoding_context() as f64);
        let step_s = model.decode_step(over) * endpoint.pace.factor();
        let mut slack = [0; 8];
        for stream in load.streams() {
            let seconds = stream.slack(now, step_s);
            slack[SLACK_EDGES.partition_point(|edge| *edge < seconds)] += 1;
        }
        EndpointLoad {
            endpoint: endpoint.name.clone(),
            prefilling: load.prefilling(),
            pending_tokens: load.pending_tokens(),
            pending_double_area: load.pending_double_area(),
            pending_context: load.pending_context(),
            decoding: load.decoding(),
            decoding_context: load.decoding_context(),
            slack,
        }
    }

    pub(super) fn peer_load(&mut self, now: Timestamp, peer: PeerId, vector: LoadVector) {
        let heard = &mut self.peers.heard;
        heard.retain(|_, at| now.seconds_since(*at) < GONE_S);
        let is_known = self.peers.heard.contains_key(&peer);
        if !is_known && self.peers.heard.len() >= MOST_PEERS {
            return;
        }
        self.peers.heard.insert(peer, now);
        for index in 0..self.endpoints.len() {
            let is_over = |(other, at, _): &(PeerId, Timestamp, EndpointLoad)| {
                *other == peer || now.since(*at) >= VECTOR_LIFE
            };
            if self.endpoints[index].peers.iter().any(is_over) {
                self.endpoints[index].peers.retain(|entry| !is_over(entry));
            }
        }
        let mut by_name: Vec<(u64, usize)> = Vec::with_capacity(self.endpoints.len());
        by_name.extend(
            self.endpoints
                .iter()
                .enumerate()
                .map(|(index, endpoint)| (endpoint.name_hash, index)),
        );
        by_name.sort_unstable();
        for load in vector.endpoints {
            let hash = name_hash(&load.endpoint);
            let first = by_name.partition_point(|(other, _)| *other < hash);
            let Some((_, index)) = by_name.get(first).filter(|(other, _)| *other == hash) else {
                continue;
            };
            let peers = &self.endpoints[*index].peers;
            if peers.iter().all(|(other, ..)| *other != peer) {
                self.endpoints[*index]
                    .peers
                    .push((peer, now, load.bounded()));
            }
        }
        self.plan_soon(now);
    }

    /// What others have on an endpoint: what their vectors say, and what scrapes show beyond that.
    pub(super) fn others(&self, now: Timestamp, endpoint: &Endpoint) -> Others {
        let Foreign {
            waiting,
            running,
            context,
        } = endpoint.view.foreign(self.oldest_metrics(now));
        let mut others = Others::default();
        let fresh = endpoint
            .peers
            .iter()
            .filter(|(_, at, _)| now.since(*at) < VECTOR_LIFE);
        for (_, _, load) in fresh {
            others.waiting = others.waiting.saturating_add(load.prefilling);
            others.running = others.running.saturating_add(load.decoding);
            others.context += load.decoding_context as f64;
            others.pending_context += load.pending_context as f64;
            others.pending_tokens += load.pending_tokens as f64;
            others.pending_area += load.pending_double_area as f64 / 2.0;
            for (sum, count) in others.slack.iter_mut().zip(load.slack) {
                *sum = sum.saturating_add(count);
            }
        }
        // Prompts nobody describes are taken to be as long as our own on average.
        let unknown = f64::from(waiting.saturating_sub(others.waiting)) * self.mean_uncached;
        others.pending_tokens += unknown;
        others.pending_area += unknown * unknown / 2.0;
        others.waiting = others.waiting.max(waiting);
        others.running = others.running.max(running);
        others.context = others
            .context
            .max(context - others.pending_context)
            .max(0.0);
        others
    }
}
