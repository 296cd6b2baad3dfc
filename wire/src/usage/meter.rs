//! The running count of one stream, so that a stream that ends anywhere can be settled.

use super::{StreamFact, Usage};

/// Choices counted one by one; more share the last place. Requests are limited to fewer.
const MAX_CHOICES: usize = 128;

/// Bytes of text per token assumed when an engine did not report: below that of English and most code, so that the
/// estimate is rather too high than too low when chunks carry several tokens.
const BYTES_PER_TOKEN: u64 = 4;

/// Follows the facts of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is seen or not seen, whatever the others say"
)]
pub struct Meter {
    usage: Option<Usage>,
    /// Latest running output of choices after the first; empty until there is a second one.
    other_choices: Vec<u64>,
    first_choice: u64,
    seen: Output,
    /// What had been seen when usage was last reported: what came after is not in the report.
    reported: Output,
    generated: bool,
    finished: bool,
    done: bool,
    failed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Output {
    chunks: u64,
    bytes: u64,
}

impl Meter {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the facts of the next event.
    pub fn observe(&mut self, fact: &StreamFact) {
        self.generated |= fact.generated;
        self.finished |= fact.finished;
        self.done |= fact.done;
        self.failed |= fact.error.is_some();
        if fact.error.is_none() {
            self.seen.chunks += u64::from(fact.outputs);
            self.seen.bytes += fact.output_bytes as u64;
        }
        if let Some(usage) = fact.usage {
            self.report(usage, fact.usage_choice);
        }
    }

    /// The latest usage the engine reported, over all choices. `None` if it reported none; a report of zeros is one.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Output tokens as well as they are known: what was reported, and for output that came after the report (or
    /// without one) a guess of at least one for each chunk. Exact unless [`Meter::has_unreported_output`].
    pub fn estimated_output_tokens(&self) -> u64 {
        let reported = self.usage.map_or(0, |usage| usage.output_tokens);
        let chunks = self.seen.chunks - self.reported.chunks;
        let bytes = self.seen.bytes - self.reported.bytes;
        reported.saturating_add(chunks.max(bytes.div_ceil(BYTES_PER_TOKEN)))
    }

    /// Whether output arrived after the latest report (or without any): the report is then a lower bound.
    pub fn has_unreported_output(&self) -> bool {
        self.seen != self.reported
    }

    /// Whether the engine began to answer.
    pub fn generated(&self) -> bool {
        self.generated
    }

    /// Whether a choice had its finish reason.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Whether the stream said that nothing follows.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Whether the stream held an error object.
    pub fn failed(&self) -> bool {
        self.failed
    }

    fn report(&mut self, report: Usage, choice: Option<u32>) {
        let output_tokens = match choice {
            None => report.output_tokens,
            Some(index) => {
                self.note_choice(index as usize, report.output_tokens);
                let others: u64 = self.other_choices.iter().sum();
                self.first_choice.saturating_add(others)
            }
        };
        let earlier = self.usage.unwrap_or_default();
        // Reports are cumulative and may leave out what an earlier one said.
        self.usage = Some(Usage {
            prompt_tokens: report.prompt_tokens.max(earlier.prompt_tokens),
            cached_tokens: report.cached_tokens.or(earlier.cached_tokens),
            output_tokens: output_tokens.max(earlier.output_tokens),
        });
        self.reported = self.seen;
    }

    fn note_choice(&mut self, index: usize, output_tokens: u64) {
        let Some(other) = index.checked_sub(1) else {
            self.first_choice = output_tokens;
            return;
        };
        let other = other.min(MAX_CHOICES - 2);
        if self.other_choices.len() <= other {
            self.other_choices.resize(other + 1, 0);
        }
        self.other_choices[other] = output_tokens;
    }
}
