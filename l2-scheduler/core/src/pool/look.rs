//! Where a prompt is cached.

use super::Pool;
use super::turn::Scratch;
use crate::Timestamp;
use crate::flow::queue::{Found, Place, Waiting};
use crate::request::Request;
use crate::residency::{Block, Holder};

/// What the index says is looked up again after this many nanoseconds; own dispatches are followed at once.
const LOOK_UP_LIFE: u64 = 200_000_000;

/// No prompt is taken to be longer, in tokens: sums over the attention areas of many must not overflow.
const MOST_PROMPT: u64 = 1 << 24;

impl Pool {
    /// Looks up where the prompt of a waiting request is cached, unless it is known well enough.
    pub(super) fn look_up(&mut self, now: Timestamp, place: Place) {
        let fleet = self.fleet_version;
        let Some(waiting) = self.queue.get_mut(place) else {
            return;
        };
        let is_known = waiting.found.at.is_some_and(|(at, version)| {
            version == fleet && now.0.saturating_sub(at.0) < LOOK_UP_LIFE
        });
        if is_known {
            return;
        }
        let mut found = std::mem::take(&mut waiting.found);
        found.at = Some((now, fleet));
        found.holders.clear();
        let blocks = &waiting.request.blocks;
        self.residency.lookup(blocks, |holder, depth| {
            found.holders.push((holder, depth as u32));
        });
        let deepest = found.holders.iter().map(|(_, depth)| *depth).max();
        found.deepest = deepest.unwrap_or(0);
        let prompt = u64::from(prompt_tokens(&waiting.request));
        let cached = u64::from(cached_tokens(&waiting.request, found.deepest));
        let output = waiting.output as u64;
        let cost = self.config.flow.cost.of(prompt - cached, cached, output);
        waiting.found = found;
        self.queue.set_cost(place, cost);
    }

    /// Which endpoints hold how many tokens of the prompt of a request that was looked up.
    pub(super) fn holdings(&self, waiting: &Waiting) -> impl Iterator<Item = (u32, u32)> {
        waiting.found.holders.iter().filter_map(|(holder, depth)| {
            let index = (*self.by_holder.get(holder.index())?)?;
            Some((index, cached_tokens(&waiting.request, *depth)))
        })
    }

    /// Others that share a prefix with what `holder` was just sent will find it there.
    pub(super) fn follow(&mut self, scratch: &Scratch, holder: Holder, blocks: &[Block]) {
        for pick in &scratch.picks {
            let Some(waiting) = self.queue.get_mut(pick.place) else {
                continue;
            };
            if waiting.found.at.is_none() {
                continue;
            }
            let shared = common(&waiting.request.blocks, blocks) as u32;
            if shared > 0 {
                note(&mut waiting.found, holder, shared);
            }
        }
    }
}

fn note(found: &mut Found, holder: Holder, depth: u32) {
    found.deepest = found.deepest.max(depth);
    match found.holders.iter_mut().find(|(known, _)| *known == holder) {
        Some((_, known)) => *known = (*known).max(depth),
        None => found.holders.push((holder, depth)),
    }
}

/// Blocks two prompts have in common. Hashes are chained, so equal ones mean equal prefixes.
fn common(a: &[Block], b: &[Block]) -> usize {
    let (mut low, mut high) = (0, a.len().min(b.len()));
    while low < high {
        let middle = usize::midpoint(low, high);
        if a[middle].hash == b[middle].hash {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Prompt size: counted, or estimated by the blocks.
pub(super) fn prompt_tokens(request: &Request) -> u32 {
    match request.prompt_tokens.min(MOST_PROMPT) as u32 {
        0 => request
            .blocks
            .last()
            .map_or(0, |block| block.end_tokens)
            .clamp(1, MOST_PROMPT as u32),
        tokens => tokens,
    }
}

/// Prompt tokens in the first `depth` blocks.
pub(super) fn cached_tokens(request: &Request, depth: u32) -> u32 {
    let Some(block) = depth
        .checked_sub(1)
        .and_then(|at| request.blocks.get(at as usize))
    else {
        return 0;
    };
    let prompt = prompt_tokens(request);
    let counted = request.blocks.last().map_or(1, |last| last.end_tokens);
    // Blocks estimate tokens from bytes where the prompt was counted.
    let scale = (f64::from(prompt) / f64::from(counted.max(1))).min(1.0);
    // An engine always computes the last token.
    ((f64::from(block.end_tokens) * scale) as u32).min(prompt - 1)
}

/// The hash that spreads prompts nobody holds: of the first block behind what any endpoint has. (The first block of all
/// would send everyone with one system prompt to one endpoint.)
pub(super) fn spread(request: &Request, found: &Found) -> Option<u64> {
    request
        .blocks
        .get(found.deepest as usize)
        .or(request.blocks.last())
        .map(|block| block.hash)
}
