//! Many tenants of very different size, each with long instructions of its own before short questions.

use rand::RngExt;

use super::{Draft, exponential};
use crate::arrivals::Factor;
use crate::prompt::{Answer, BLOCK_TOKENS, Prompt, Run, own_block, shared_block};
use crate::seed::{Purpose, stream};
use crate::tenancy::Zipf;

pub(super) const COUNT: u32 = 300;
/// At factor 1.
const REQUESTS_PER_SECOND: f64 = 10.0;

pub(super) fn draw(factor: Factor, requests: u64, seed: u64, tenants: u32) -> Vec<Draft> {
    let zipf = Zipf::new(tenants);
    let mut arrivals = stream(seed, Purpose::Arrivals, 0);
    let mut at = 0.0;
    (0..requests)
        .map(|index| {
            at += exponential(&mut arrivals, REQUESTS_PER_SECOND) / factor.get();
            let random = &mut stream(seed, Purpose::Population, index);
            let tenant = zipf.rank(random.random());
            let prompt = Prompt::new([
                Run {
                    first: shared_block(tenant),
                    tokens: prefix_tokens(tenant, seed),
                },
                Run {
                    first: own_block(index),
                    tokens: random.random_range(500..=2_000),
                },
            ]);
            Draft {
                at,
                prompt,
                output_tokens: random.random_range(100..=500),
                answer: Answer::Nobodys,
                tenant,
            }
        })
        .collect()
}

/// 2k to 16k tokens, in whole blocks so that what follows is found again.
fn prefix_tokens(tenant: u32, seed: u64) -> u32 {
    stream(seed, Purpose::Group, u64::from(tenant)).random_range(4..=32) * BLOCK_TOKENS
}
