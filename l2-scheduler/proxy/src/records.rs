//! Why each of the last requests went where it went: a bounded ring. Holds no text of any prompt or answer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use governance_context::{AttemptId, FairnessId, RequestId, TenantId, Work};
use scheduler_core::Decision;
use serde::Serialize;

use crate::limit::WaitLimit;
use crate::refusal::Refused;

#[cfg(test)]
mod tests;

/// Everything there is to say about one call.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    #[serde(skip)]
    pub(crate) id: RequestId,
    pub(crate) attempt: AttemptId,
    pub(crate) tenant: TenantId,
    pub(crate) fairness: FairnessId,
    pub(crate) band: i32,
    pub(crate) route: &'static str,
    pub(crate) model: Arc<str>,
    pub(crate) stream: bool,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_bound: u64,
    pub(crate) prefix_blocks: usize,
    pub(crate) arrived_unix_ms: u64,
    /// How long it might wait for its turn.
    pub(crate) wait_limit: Option<WaitLimit>,
    /// What an uncached prompt token cost its flow, in the WTU of `scheduling.wtu`.
    pub(crate) uncached_wtu: f64,
    pub(crate) attempts: Vec<AttemptRecord>,
    /// Why it got no turn, if it got none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refusal: Option<Refused>,
    pub(crate) outcome: &'static str,
    /// The code of the refusal or error that L2 answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    pub(crate) duration_ms: f64,
}

/// One dispatch of a call: what was expected and what came.
#[derive(Debug, Serialize)]
pub(crate) struct AttemptRecord {
    pub(crate) endpoint: Arc<str>,
    pub(crate) queue_ms: f64,
    pub(crate) decision: Box<Decision>,
    pub(crate) measured: Measured,
    /// How it ended: `completed`, `rejected`, `busy`, `failed`, `client_closed`.
    pub(crate) end: &'static str,
    /// What went wrong, without addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
}

/// What an attempt turned out to be. Absent: not reported, or it never came to that.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(crate) struct Measured {
    /// From dispatch to the first output of a streamed answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft_ms: Option<f64>,
    /// From dispatch to the head of an answer that is not streamed, which follows its last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) whole_answer_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_tokens: Option<u64>,
}

/// The last calls, and what each attempt may have computed, from its beginning on.
pub(crate) struct Records {
    capacity: usize,
    /// Locked for a look-up a few times in a call, and by readers of the admin API.
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    /// Number of the record at the front.
    first: u64,
    /// Oldest first.
    records: VecDeque<Record>,
    /// Numbers of the records of each request; L1 may call more than once for one.
    of: HashMap<RequestId, Vec<u64>>,
    /// Of every call that is open or has a record.
    work: HashMap<AttemptId, Work>,
}

impl Records {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ring: Mutex::new(Ring::default()),
        }
    }

    /// A call begins.
    pub(crate) fn begin(&self, attempt: AttemptId) {
        self.lock().work.insert(attempt, Work::None);
    }

    /// What its engines may have computed.
    pub(crate) fn note_work(&self, attempt: AttemptId, work: Work) {
        if let Some(noted) = self.lock().work.get_mut(&attempt) {
            *noted = work;
        }
    }

    /// What the engines of a call may have computed, if it is open or remembered.
    pub(crate) fn work(&self, attempt: &AttemptId) -> Option<Work> {
        self.lock().work.get(attempt).copied()
    }

    /// Keeps the record of a call that has ended; the oldest makes room.
    pub(crate) fn push(&self, record: Record) {
        // Freed after the lock is released.
        let _oldest = self.lock().push(record, self.capacity);
    }

    /// The calls made for one request, as JSON.
    pub(crate) fn json(&self, id: &RequestId) -> Option<serde_json::Value> {
        let ring = self.lock();
        let calls: Vec<_> = ring
            .of
            .get(id)?
            .iter()
            .map(|number| &ring.records[(number - ring.first) as usize])
            .collect();
        Some(serde_json::json!({ "request": id, "calls": calls }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().expect("no panic happens under this lock")
    }
}

impl Ring {
    fn push(&mut self, record: Record, capacity: usize) -> Option<Record> {
        let oldest = if self.records.len() == capacity {
            self.pop()
        } else {
            None
        };
        let number = self.first + self.records.len() as u64;
        self.of.entry(record.id).or_default().push(number);
        self.records.push_back(record);
        oldest
    }

    fn pop(&mut self) -> Option<Record> {
        let oldest = self.records.pop_front()?;
        self.work.remove(&oldest.attempt);
        if let Some(numbers) = self.of.get_mut(&oldest.id) {
            numbers.retain(|number| *number != self.first);
            if numbers.is_empty() {
                self.of.remove(&oldest.id);
            }
        }
        self.first += 1;
        Some(oldest)
    }
}
