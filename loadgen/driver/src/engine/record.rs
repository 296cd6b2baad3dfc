//! The engine's own truth about what it generated, for tests that check metering.

use std::collections::VecDeque;

use serde::Serialize;

/// Sequences remembered; older ones count in the totals only.
const REMEMBERED: usize = 16_384;

/// One sequence that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsageRecord {
    /// Id in the response body, which carries the caller's `X-Request-Id` if it sent one.
    pub id: String,
    pub model: String,
    /// Position among the sequences of the request.
    pub sequence: u32,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub generated_tokens: u32,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Finished,
    /// The client left, or the server stopped.
    Aborted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageTotals {
    pub sequences: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
}

/// Everything that ended since the server began; a restart fault does not forget it.
#[derive(Default, Serialize)]
pub(super) struct Records {
    totals: UsageTotals,
    most_waiting: u32,
    requests: VecDeque<UsageRecord>,
}

impl Records {
    pub(super) fn add(&mut self, record: UsageRecord) {
        self.totals.sequences += 1;
        self.totals.prompt_tokens += u64::from(record.prompt_tokens);
        self.totals.cached_tokens += u64::from(record.cached_tokens);
        self.totals.generated_tokens += u64::from(record.generated_tokens);
        if self.requests.len() == REMEMBERED {
            self.requests.pop_front();
        }
        self.requests.push_back(record);
    }

    /// Takes in how many requests wait between two steps.
    pub(super) fn waiting(&mut self, waiting: u32) {
        self.most_waiting = self.most_waiting.max(waiting);
    }

    pub(super) fn most_waiting(&self) -> u32 {
        self.most_waiting
    }

    pub(super) fn all(&self) -> Vec<UsageRecord> {
        self.requests.iter().cloned().collect()
    }

    pub(super) fn totals(&self) -> UsageTotals {
        self.totals
    }
}
