//! Recorded traffic: times, lengths and prefix blocks, read from the tab-separated form in `traces/`.

mod embedded;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::prompt::{BLOCK_TOKENS, BlockId, Prompt, Run};

pub use embedded::{Embedded, UnknownTrace};

/// Requests in order of their time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<Recorded>,
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Since the start of the trace.
    pub at: Duration,
    pub prompt: Prompt,
    pub output_tokens: u32,
}

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
    #[error(
        "{0} columns in place of 4 (t_ms, input_tokens, output_tokens, block_ids, separated by tabs)"
    )]
    Columns(usize),
    #[error("{column} {text:?} is not a whole number of at most {most}")]
    Number {
        column: &'static str,
        text: String,
        most: u64,
    },
    #[error("a request without input tokens")]
    NoInput,
    #[error("t_ms {at} is before the line above ({before}); sort the trace by time")]
    Backwards { at: u64, before: u64 },
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

const MOST_MS: u64 = 10 * 365 * 86_400_000;
const MOST_TOKENS: u64 = 1 << 24;
const MOST_BLOCK: u64 = u32::MAX as u64;
/// The parent of a prompt's first block.
const ROOT: u64 = u64::MAX;

impl Trace {
    /// Reads and checks a trace. Lines that start with `#` and empty lines are skipped.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut requests: Vec<Recorded> = Vec::new();
        let mut chain = FxHashMap::default();
        let mut before = 0;
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let request = request(line, before)
                .and_then(|request| follows(&mut chain, &request.prompt).map(|()| request))
                .map_err(|problem| TraceError {
                    line: index + 1,
                    problem,
                })?;
            before = u64::try_from(request.at.as_millis()).unwrap_or(u64::MAX);
            requests.push(request);
        }
        Ok(Self { requests })
    }

    pub fn requests(&self) -> &[Recorded] {
        &self.requests
    }

    /// Time of the last request.
    pub fn duration(&self) -> Duration {
        self.requests
            .last()
            .map_or(Duration::ZERO, |request| request.at)
    }
}

fn request(line: &str, before: u64) -> Result<Recorded, Problem> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [at, input, output, blocks] = columns[..] else {
        return Err(Problem::Columns(columns.len()));
    };
    let at = number("t_ms", at, MOST_MS)?;
    if at < before {
        return Err(Problem::Backwards { at, before });
    }
    let input = number("input_tokens", input, MOST_TOKENS)? as u32;
    if input == 0 {
        return Err(Problem::NoInput);
    }
    let output = number("output_tokens", output, MOST_TOKENS)? as u32;
    Ok(Recorded {
        at: Duration::from_millis(at),
        prompt: prompt(blocks, input)?,
        output_tokens: output,
    })
}

fn prompt(blocks: &str, tokens: u32) -> Result<Prompt, Problem> {
    let ranges: Vec<(u64, u64)> = blocks
        .split_ascii_whitespace()
        .map(range)
        .collect::<Result<_, _>>()?;
    let found = ranges.iter().map(|(first, last)| last - first + 1).sum();
    let expected = u64::from(tokens.div_ceil(BLOCK_TOKENS));
    if found != expected {
        return Err(Problem::Blocks {
            found,
            expected,
            tokens,
        });
    }
    let mut left = tokens;
    Ok(Prompt::new(ranges.into_iter().map(|(first, last)| {
        let whole = (last - first + 1) as u32 * BLOCK_TOKENS;
        let run = Run {
            first: BlockId(first),
            tokens: whole.min(left),
        };
        left -= run.tokens;
        run
    })))
}

/// `7` or `7-9`, inclusive.
fn range(text: &str) -> Result<(u64, u64), Problem> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (
        number("block_ids", first, MOST_BLOCK)?,
        number("block_ids", last, MOST_BLOCK)?,
    );
    if last < first {
        return Err(Problem::Run(text.to_owned()));
    }
    Ok((first, last))
}

fn number(column: &'static str, text: &str, most: u64) -> Result<u64, Problem> {
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

/// Every block has the same parent wherever it stands.
fn follows(chain: &mut FxHashMap<u64, u64>, prompt: &Prompt) -> Result<(), Problem> {
    let mut parent = ROOT;
    for (BlockId(block), _) in prompt.blocks() {
        if *chain.entry(block).or_insert(parent) != parent {
            return Err(Problem::Chain(block));
        }
        parent = block;
    }
    Ok(())
}
