//! Other schedulers of the same pool: what they have put on its endpoints.

use std::collections::BTreeMap;

use super::Pool;
use crate::endpoint::view::Foreign;
use crate::endpoint::{Endpoint, name_hash};
use crate::peers::{MOST_TOLD, SentPrompt, VECTOR_LIFE};
use crate::residency::{Block, Footprint};
use crate::rng::Rng;
use crate::{EndpointLoad, Extent, LoadVector, PeerId, Timestamp};

/// A scheduler that says nothing for so long is gone.
const GONE_S: f64 = 10.0;
/// Schedulers of one pool at most; who is heard of later is not counted.
const MOST_PEERS: usize = 64;

/// The latest vector of every other scheduler.
#[derive(Debug)]
pub(super) struct Peers {
    /// Of its own, so that what others say changes no tie.
    rng: Rng,
    heard: BTreeMap<PeerId, Timestamp>,
    /// As of which state of the fleet.
    names: (u64, Names),
}

/// Which endpoint has which name, by the hash of the name.
#[derive(Debug, Default)]
struct Names(Vec<(u64, usize)>);

impl Names {
    fn index_of(&self, name: &str) -> Option<usize> {
        let hash = name_hash(name);
        let first = self.0.partition_point(|(other, _)| *other < hash);
        let (found, index) = self.0.get(first)?;
        (*found == hash).then_some(*index)
    }
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
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            heard: BTreeMap::new(),
            names: (0, Names::default()),
        }
    }

    /// Uniform in 0..1.
    pub(super) fn chance(&mut self) -> f64 {
        self.rng.unit()
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.names.1.index_of(name)
    }

    /// Schedulers that are there.
    pub(super) fn count(&self, now: Timestamp) -> usize {
        let ages = self.heard.values().map(|at| now.seconds_since(*at));
        ages.filter(|seconds| *seconds < GONE_S).count()
    }

    /// How old the newest word of any other scheduler is; nothing while there is none.
    pub(super) fn silence(&self, now: Timestamp) -> Option<f64> {
        let newest = self.heard.values().max()?;
        Some(now.seconds_since(*newest)).filter(|seconds| *seconds < GONE_S)
    }
}

impl Pool {
    pub(super) fn peer_load(&mut self, now: Timestamp, peer: PeerId, vector: LoadVector) {
        let heard = &mut self.peers.heard;
        heard.retain(|_, at| now.seconds_since(*at) < GONE_S);
        if !heard.contains_key(&peer) && heard.len() >= MOST_PEERS {
            return;
        }
        heard.insert(peer, now);
        self.name_endpoints();
        self.follow_peer(&vector.sent);
        if vector.extent == Extent::Whole {
            self.forget_vectors(now, peer);
        }
        for load in vector.endpoints {
            let Some(index) = self.peers.index_of(&load.endpoint) else {
                continue;
            };
            let known = &mut self.endpoints[index].peers;
            known.retain(|(other, at, _)| *other != peer && now.since(*at) < VECTOR_LIFE);
            known.push((peer, now, load.bounded()));
        }
        self.plan_apart(now);
    }

    /// What `peer` said before is over, and what anybody said too long ago.
    fn forget_vectors(&mut self, now: Timestamp, peer: PeerId) {
        let is_over = |(other, at, _): &(PeerId, Timestamp, EndpointLoad)| {
            *other == peer || now.since(*at) >= VECTOR_LIFE
        };
        for index in 0..self.endpoints.len() {
            if self.endpoints[index].peers.iter().any(is_over) {
                self.endpoints[index].peers.retain(|entry| !is_over(entry));
            }
        }
    }

    /// Brings the names up to date.
    fn name_endpoints(&mut self) {
        let (version, names) = &mut self.peers.names;
        if std::mem::replace(version, self.fleet_version) == self.fleet_version {
            return;
        }
        let hashes = self.endpoints.iter().map(|endpoint| endpoint.name_hash);
        names.0.clear();
        names.0.extend(hashes.zip(0..));
        names.0.sort_unstable();
    }

    /// What others send is cached there for our requests too, and takes the place of what was.
    fn follow_peer(&mut self, sent: &[SentPrompt]) {
        let mut left = MOST_TOLD;
        for prompt in sent {
            let index = self.peers.index_of(&prompt.endpoint);
            let Some(holder) = index.and_then(|index| self.endpoints[index].holder) else {
                continue;
            };
            // A cache is bounded by its tokens, so a block without any would not be.
            let mut end = 0;
            let adds = |(_, tokens): &&(u64, u32)| std::mem::replace(&mut end, *tokens) < *tokens;
            let told = prompt.blocks.iter().take(left).take_while(adds);
            let blocks: Vec<Block> = told
                .map(|(hash, end_tokens)| Block {
                    hash: *hash,
                    end_tokens: *end_tokens,
                })
                .collect();
            left -= blocks.len();
            if self.unstored.has_room() {
                let footprint = Footprint::of_prompt(blocks);
                self.unstored.sent.push(holder, footprint);
            }
        }
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
        let unknown = f64::from(waiting.saturating_sub(others.waiting)) * self.mean_applied;
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
