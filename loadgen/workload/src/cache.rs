//! How much of a trace prefix caches can re-use: one LRU cache of whole blocks per engine, and ways to spread requests
//! over them. No time passes in this model: it bounds what routing can gain, not what an engine does.

mod lru;
#[cfg(test)]
mod tests;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::prompt::{BLOCK_TOKENS, Prompt};
use crate::seed::{Purpose, stream};
use crate::trace::Trace;

pub use lru::Lru;

/// How requests are spread over engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// To any engine; the number is the seed.
    Random(u64),
    /// To the engine with the least uncached blocks plus a hundredth of all it was ever assigned: affinity first, and
    /// balance where affinity does not say.
    PrefixAndLoad,
}

/// Caches of a fleet of engines.
#[derive(Debug)]
pub struct Fleet {
    engines: Vec<Engine>,
    spread: Spread,
    random: ChaCha8Rng,
}

#[derive(Debug)]
struct Engine {
    cache: Lru,
    /// Uncached blocks it was given so far.
    assigned: u64,
}

/// Blocks assigned that weigh as much as one block to compute now.
const LOAD_WEIGHT: u64 = 100;

impl Fleet {
    /// `engines` caches of `blocks` blocks each.
    pub fn new(engines: usize, blocks: usize, spread: Spread) -> Self {
        let seed = match spread {
            Spread::Random(seed) => seed,
            Spread::PrefixAndLoad => 0,
        };
        Self {
            engines: (0..engines.max(1))
                .map(|_| Engine {
                    cache: Lru::new(blocks),
                    assigned: 0,
                })
                .collect(),
            spread,
            random: stream(seed, Purpose::Endpoint, 0),
        }
    }

    /// Sends a prompt to an engine and returns the tokens it found there.
    pub fn serve(&mut self, prompt: &Prompt) -> u32 {
        let (engine, cached) = self.pick(prompt);
        let engine = &mut self.engines[engine];
        engine.cache.insert(prompt);
        engine.assigned += blocks(prompt) - cached;
        u32::try_from(cached)
            .unwrap_or(u32::MAX)
            .saturating_mul(BLOCK_TOKENS)
            .min(prompt.tokens())
    }

    /// Place of the engine, and how many blocks it holds of the prompt.
    fn pick(&mut self, prompt: &Prompt) -> (usize, u64) {
        match self.spread {
            Spread::Random(_) => {
                let place = self.random.random_range(0..self.engines.len());
                (place, self.engines[place].cache.matched(prompt))
            }
            Spread::PrefixAndLoad => {
                let costs = self.engines.iter().enumerate().map(|(place, engine)| {
                    let cached = engine.cache.matched(prompt);
                    (
                        (blocks(prompt) - cached) * LOAD_WEIGHT + engine.assigned,
                        place,
                        cached,
                    )
                });
                costs
                    .min()
                    .map_or((0, 0), |(_, place, cached)| (place, cached))
            }
        }
    }
}

/// Share of a trace's input tokens that a fleet finds cached.
pub fn hit_ratio(trace: &Trace, mut fleet: Fleet) -> f64 {
    let (mut hit, mut all) = (0, 0);
    for request in trace.requests() {
        hit += u64::from(fleet.serve(&request.prompt));
        all += u64::from(request.prompt.tokens());
    }
    hit as f64 / (all as f64).max(1.0)
}

fn blocks(prompt: &Prompt) -> u64 {
    prompt
        .runs()
        .iter()
        .map(|run| u64::from(run.tokens.div_ceil(BLOCK_TOKENS)))
        .sum()
}
