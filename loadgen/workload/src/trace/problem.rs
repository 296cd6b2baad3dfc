//! What can be wrong with a trace, and the checks that every form of it shares.

/// A line that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// Counted from one.
    pub line: usize,
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{found} columns in place of {expected}")]
    Columns {
        found: usize,
        expected: &'static str,
    },
    #[error("{column} {text:?} is not a whole number of at most {most}")]
    Number {
        column: &'static str,
        text: String,
        most: u64,
    },
    #[error(
        "TIMESTAMP {0:?} is not like 2023-11-16 18:15:46.6805900, with or without +00:00 behind it"
    )]
    Date(String),
    #[error(
        "{0}; a line is an object like {{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47]}}"
    )]
    Json(String),
    #[error("a request without input tokens")]
    NoInput,
    #[error("its time is before that of the line above; sort the trace by time")]
    Backwards,
    #[error("block run {0:?} goes backwards")]
    Run(String),
    #[error("{found} blocks where {tokens} input tokens make {expected} blocks of 512")]
    Blocks {
        found: u64,
        expected: u64,
        tokens: u32,
    },
    #[error(
        "block {0} follows another block than before; an id stands for everything before it, too"
    )]
    Chain(u64),
}

pub(super) const MOST_MS: u64 = 10 * 365 * 86_400_000;
/// 16 Mi: no model reads more, and a block id of 32 bits suffices.
pub(super) const MOST_TOKENS: u64 = 1 << 24;
pub(super) const MOST_BLOCK: u64 = u32::MAX as u64;

/// Digits alone: no sign, no blank, no fraction.
pub(super) fn number(column: &'static str, text: &str, most: u64) -> Result<u64, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits { text.parse().ok() } else { None };
    value
        .filter(|&value| value <= most)
        .ok_or_else(|| Problem::Number {
            column,
            text: text.to_owned(),
            most,
        })
}

pub(super) fn tokens(column: &'static str, text: &str) -> Result<u32, Problem> {
    number(column, text, MOST_TOKENS).map(|tokens| tokens as u32)
}
