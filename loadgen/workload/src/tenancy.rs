//! Who sends what: tenants of very different size, as they are in life.

use crate::prompt::{BlockId, Prompt};
use crate::schedule::Planned;
use crate::seed::mix;

/// The law of Zipf with exponent 1: the tenant of rank r comes in proportion to 1/r.
pub(crate) struct Zipf {
    /// Sum of the shares up to and including each rank.
    sums: Vec<f64>,
}

impl Zipf {
    /// Of at least one rank.
    pub(crate) fn new(ranks: u32) -> Self {
        let mut sum = 0.0;
        let sums = (1..=ranks.max(1))
            .map(|rank| {
                sum += 1.0 / f64::from(rank);
                sum
            })
            .collect();
        Self { sums }
    }

    /// The rank, counted from zero, at a share of the whole (0 to 1).
    pub(crate) fn rank(&self, share: f64) -> u32 {
        let total = self.sums.last().copied().unwrap_or(1.0);
        let rank = self.sums.partition_point(|sum| *sum <= share * total);
        rank.min(self.sums.len() - 1) as u32
    }
}

/// Gives requests to `tenants` Zipf-distributed tenants. Prompts that begin alike belong to one tenant: the second block
/// decides, since everyone may share a first one.
pub fn spread_tenants(requests: &mut [Planned], tenants: u32, seed: u64) {
    spread_by(requests, tenants, seed, |prompt| {
        let mut blocks = prompt.blocks();
        let first = blocks.next();
        blocks.next().or(first).map(|(block, _)| block)
    });
}

/// Gives requests whose prompts have the same `key` to one tenant.
pub(crate) fn spread_by(
    requests: &mut [Planned],
    tenants: u32,
    seed: u64,
    key: impl Fn(&Prompt) -> Option<BlockId>,
) {
    let zipf = Zipf::new(tenants);
    for request in requests {
        let mixed = mix(seed, key(&request.prompt).map_or(0, |block| block.0));
        request.tenant = zipf.rank((mixed >> 11) as f64 / (1_u64 << 53) as f64);
    }
}
