//! What became of every request of a run.

use governance_context::Band;

/// One request's end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    pub tenant: u32,
    pub band: Band,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub end: End,
    /// Seconds since the start.
    pub arrived_s: f64,
    /// Seconds from arrival until it was sent to an engine; NaN if it never was.
    pub waited_s: f64,
    /// Seconds from arrival to the first token; NaN without one.
    pub ttft_s: f64,
    /// Seconds per token after the first; NaN without a complete answer.
    pub tpot_s: f64,
    /// Longest time between two tokens, in seconds.
    pub stall_s: f64,
    /// Seconds from arrival to the last token; NaN without a complete answer.
    pub total_s: f64,
    /// Seconds an idle engine with the best possible cache would take to the first token.
    pub best_ttft_s: f64,
    /// Prompt tokens the scheduler believed to be in the engine's cache when it sent it.
    pub believed_tokens: u32,
    /// Prompt tokens the engine found in its cache.
    pub cached_tokens: u32,
    /// Prompt tokens engines computed for it, attempts that were given up included.
    pub computed_tokens: u32,
    pub met_ttft: bool,
    /// Met both targets.
    pub good: bool,
    /// Completed while requests still arrived, or within its target: not what was left over at the end.
    pub in_time: bool,
}

/// Answers shorter than this have no pace to speak of: their TPOT counts for nothing.
const PACED_TOKENS: u32 = 16;

impl Record {
    /// Whether the time between its tokens counts.
    pub fn is_paced(&self) -> bool {
        self.output_tokens >= PACED_TOKENS
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Completed,
    /// With the stable code of the refusal.
    Refused(&'static str),
    /// The run was given up before.
    Open,
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// In order of arrival.
    pub records: Vec<Record>,
    /// Seconds of prefill assigned to each engine.
    pub assigned_s: Vec<f64>,
    /// Attempts taken from an engine that was believed to hang.
    pub abandoned: u64,
    /// Running requests that lost their memory to others.
    pub preemptions: u64,
    /// Steps of all engines.
    pub steps: u64,
    /// What schedulers still believe to wait or run; nothing, unless the run was given up.
    pub left: usize,
    /// Virtual seconds until the last request ended.
    pub seconds: f64,
    /// Most requests that ever waited inside one engine.
    pub deepest_engine_queue: u32,
}
