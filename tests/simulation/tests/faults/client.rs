//! One request and where it is.

use engine_model::{BlockHash, ContentSeed, RequestId, hash_trace_blocks};
use governance_context::{Band, FairnessId};
use scheduler_core::residency::Block;
use scheduler_core::{BookingId, EndpointId, Input, Request, RequestKey, Targets, Timestamp};
use workload::BLOCK_TOKENS;

use crate::money::Purse;
use crate::world::World;

/// Bits of an engine's id of a request that are its place; those above count attempts.
const INDEX_BITS: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// For a hold that is not on disk yet.
    Asks {
        scheduler: usize,
    },
    Waits {
        scheduler: usize,
    },
    Runs {
        scheduler: usize,
        booking: BookingId,
        engine: u32,
    },
    Over,
}

pub(crate) struct Client {
    pub(crate) place: Place,
    pub(crate) band: Band,
    pub(crate) tenant: u64,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    pub(crate) family: u64,
    pub(crate) bytes: u64,
    pub(crate) arrived: u64,
    pub(crate) own_limit: Option<u64>,
    /// Its scheduler must have let it go by then.
    pub(crate) expires: u64,
    pub(crate) tried: Vec<EndpointId>,
    pub(crate) attempt: u64,
    /// It has had its first token.
    pub(crate) streams: bool,
    /// When anything was last heard of it.
    pub(crate) heard: u64,
    /// Of the engine it runs on.
    pub(crate) generation: u64,
    pub(crate) purse: Purse,
}

impl Client {
    pub(crate) fn id(&self, index: usize) -> RequestId {
        RequestId(index as u64 | self.attempt << INDEX_BITS)
    }

    /// The same request, asked for anew.
    pub(crate) fn again(&self, now: u64) -> Self {
        let purse = &self.purse;
        Self {
            place: Place::Over,
            arrived: now,
            expires: 0,
            tried: Vec::new(),
            attempt: 0,
            streams: false,
            heard: now,
            generation: 0,
            purse: Purse::new(purse.key.clone(), purse.size, purse.reports),
            ..*self
        }
    }

    pub(crate) fn index(id: RequestId) -> usize {
        (id.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    pub(crate) fn is_attempt(&self, of: usize, meant: BookingId) -> bool {
        matches!(self.place, Place::Runs { scheduler, booking, .. } if scheduler == of && booking == meant)
    }

    /// Tokens of its whole answer: the engine is held to the bound.
    pub(crate) fn answer(&self) -> u32 {
        self.output.min(self.purse.size.bound as u32)
    }

    fn contents(&self) -> Box<[BlockHash]> {
        let count = u64::from(self.prompt.div_ceil(BLOCK_TOKENS));
        let ids: Vec<u64> = (0..count).map(|at| self.family << 20 | at).collect();
        hash_trace_blocks(
            ContentSeed::default(),
            BLOCK_TOKENS,
            &ids,
            BLOCK_TOKENS,
            self.prompt,
        )
    }

    pub(crate) fn for_engine(&self, index: usize) -> engine_model::Request {
        engine_model::Request {
            id: self.id(index),
            prompt_tokens: self.prompt,
            output_tokens: self.answer(),
            blocks: self.contents(),
            priority: 0,
        }
    }

    fn for_scheduler(&self, index: usize) -> Request {
        let whole = (self.prompt / BLOCK_TOKENS) as usize;
        let contents = self.contents();
        let blocks = contents[..whole]
            .iter()
            .zip(1..)
            .map(|(hash, count)| Block {
                hash: hash.0,
                end_tokens: count * BLOCK_TOKENS,
            });
        Request {
            key: RequestKey(index as u64),
            model: "model".into(),
            fairness: FairnessId::new(format!("tenant-{}", self.tenant)).expect("a short name"),
            band: self.band,
            weight: 1 + (self.tenant % 3) as u32,
            prompt_tokens: u64::from(self.prompt),
            output_bound: self.purse.size.bound,
            blocks: blocks.collect(),
            streaming: true,
            bytes: self.bytes,
            expires_at: self.own_limit.map(Timestamp),
            targets: Targets::default(),
            first_arrived: (self.attempt > 0).then_some(Timestamp(self.arrived)),
            tried: self.tried.clone(),
        }
    }
}

impl World {
    /// A client asks a scheduler, for the first time or again.
    pub(crate) fn ask(&mut self, index: usize, scheduler: usize) {
        let ttl = self.schedulers[scheduler]
            .flow
            .band(self.clients[index].band)
            .ttl;
        let client = &mut self.clients[index];
        client.place = Place::Waits { scheduler };
        let by_band = self.now + ttl.as_nanos() as u64;
        client.expires = by_band.min(client.own_limit.unwrap_or(u64::MAX));
        let request = client.for_scheduler(index);
        self.feed(scheduler, Input::Arrive(Box::new(request)));
    }
}
