//! `SGLang`'s families. Scheduler gauges are set per rank; with priority scheduling the series with `priority=""` is the
//! total and the others are its parts. Counters are counted by request, so there every series is a part of its own.

use super::total::{PerRank, Total, count, large_count, share};
use super::{Counters, Page, Vocabulary};
use crate::sample::{Malformed, Sample};

#[derive(Default)]
pub(super) struct Families {
    running: PerRank,
    queued: PerRank,
    /// The largest use of any pool, rounded to two digits.
    token_use: PerRank,
    /// The use of each kind of pool, not rounded.
    full_use: PerRank,
    window_use: PerRank,
    state_use: PerRank,
    page_size: PerRank,
    pages: PerRank,
    tokens: PerRank,
    context: PerRank,
    prompt_tokens: Total,
    generation_tokens: Total,
    cached_tokens: Total,
}

impl Families {
    /// Takes in a line whose name is `sglang:` and `family`.
    pub(super) fn line(&mut self, family: &[u8], line: &[u8]) {
        let gauge = match family {
            b"num_running_reqs" => &mut self.running,
            b"num_queue_reqs" => &mut self.queued,
            b"token_usage" => &mut self.token_use,
            b"full_token_usage" => &mut self.full_use,
            b"swa_token_usage" => &mut self.window_use,
            b"mamba_usage" => &mut self.state_use,
            b"page_size" => &mut self.page_size,
            b"num_pages" => &mut self.pages,
            b"max_total_num_tokens" => &mut self.tokens,
            b"context_len" => &mut self.context,
            _ => return self.counter(family, line),
        };
        if let Some(value) = total_of_rank(line).transpose() {
            gauge.add(value);
        }
    }

    fn counter(&mut self, family: &[u8], line: &[u8]) {
        let total = match family {
            b"prompt_tokens_total" => &mut self.prompt_tokens,
            b"generation_tokens_total" => &mut self.generation_tokens,
            b"cached_tokens_total" => &mut self.cached_tokens,
            _ => return,
        };
        total.add(Sample::parse(line).map(|sample| sample.value));
    }

    pub(super) fn finish(self) -> Page {
        let pools = [&self.full_use, &self.window_use, &self.state_use]
            .map(|pool| share(pool.total().mean()));
        let fullest = pools[0].and_then(|_| pools.into_iter().flatten().reduce(f64::max));
        Page {
            vocabulary: Some(Vocabulary::Sglang),
            waiting: count(self.queued.total().sum()),
            running: count(self.running.total().sum()),
            kv_use: fullest.or_else(|| share(self.token_use.total().mean())),
            block_size: count(self.page_size.total().largest()).filter(|&size| size > 0),
            num_blocks: large_count(self.pages.total().sum()).filter(|&pages| pages > 0),
            kv_tokens: large_count(self.tokens.total().sum()).filter(|&tokens| tokens > 0),
            max_context: count(self.context.total().smallest()).filter(|&tokens| tokens > 0),
            counters: Counters {
                prompt_tokens: self.prompt_tokens.sum(),
                generation_tokens: self.generation_tokens.sum(),
                cached_tokens: self.cached_tokens.sum(),
                preemptions: None,
            },
            ..Page::default()
        }
    }
}

/// Data-parallel rank and value of a gauge's line; `None` if the line tells only a part of the rank's total.
fn total_of_rank(line: &[u8]) -> Result<Option<(u32, f64)>, Malformed> {
    let sample = Sample::parse(line)?;
    let mut rank = 0;
    for label in sample.labels.iter() {
        match label? {
            (b"priority", priority) if !priority.is_empty() => return Ok(None),
            (b"dp_rank", value) => {
                rank = std::str::from_utf8(value)
                    .ok()
                    .and_then(|rank| rank.parse().ok())
                    .ok_or(Malformed)?;
            }
            _ => {}
        }
    }
    Ok(Some((rank, sample.value)))
}
