//! Recorded traffic: times, lengths and, where they were kept, prefix blocks. Read from the tab-separated form in
//! `traces/`, from Mooncake's JSON lines, or from the CSV of the Azure LLM inference traces; the text itself says which.

mod azure;
mod embedded;
mod mooncake;
mod problem;
#[cfg(test)]
mod tests;
mod tsv;

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::prompt::{BLOCK_TOKENS, BlockId, Prompt, Run, own_block};

pub use embedded::{Embedded, UnknownTrace};
pub use problem::{Problem, TraceError};

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

/// The parent of a prompt's first block.
const ROOT: u64 = u64::MAX;

/// One form of a trace, reading line after line.
enum Reader {
    Tsv(tsv::Reader),
    Mooncake,
    Azure(azure::Reader),
}

/// What a line says, with its time as it is written.
struct Line {
    /// Since an origin that is the same for all lines.
    at: Duration,
    input_tokens: u32,
    output_tokens: u32,
    blocks: Blocks,
}

/// What a line says of its blocks.
enum Blocks {
    /// Runs of ids: the first and the last of each.
    Runs(Vec<(u64, u64)>),
    /// Nothing: it shares none.
    Own,
}

impl Trace {
    /// Reads and checks a trace. Empty lines and, outside of JSON, lines that start with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut reader = Reader::of(text);
        let mut requests: Vec<Recorded> = Vec::new();
        let mut chain = FxHashMap::default();
        let mut before: Option<Duration> = None;
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let problem = |problem| TraceError {
                line: index + 1,
                problem,
            };
            let Some(line) = reader.read(line).map_err(problem)? else {
                continue;
            };
            let origin = reader.origin();
            let request = line
                .into_request(requests.len() as u64, origin, before)
                .and_then(|request| follows(&mut chain, &request.prompt).map(|()| request))
                .map_err(problem)?;
            before = Some(request.at);
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

impl Reader {
    /// The first line that is neither empty nor a comment shows the form.
    fn of(text: &str) -> Self {
        let first = text
            .lines()
            .find(|line| !line.trim().is_empty() && !line.starts_with('#'));
        match first {
            Some(line) if line.trim_start().starts_with('{') => Self::Mooncake,
            Some(line) if azure::is_header(line) => Self::Azure(azure::Reader::default()),
            _ => Self::Tsv(tsv::Reader::default()),
        }
    }

    /// Nothing where the line is a header.
    fn read(&mut self, line: &str) -> Result<Option<Line>, Problem> {
        match self {
            Self::Tsv(reader) => reader.read(line).map(Some),
            Self::Mooncake => mooncake::read(line).map(Some),
            Self::Azure(reader) => reader.read(line),
        }
    }

    /// What its times count from: where they are dates, the first one.
    fn origin(&self) -> Duration {
        match self {
            Self::Azure(reader) => reader.origin(),
            Self::Tsv(_) | Self::Mooncake => Duration::ZERO,
        }
    }
}

impl Line {
    fn into_request(
        self,
        index: u64,
        origin: Duration,
        before: Option<Duration>,
    ) -> Result<Recorded, Problem> {
        if self.input_tokens == 0 {
            return Err(Problem::NoInput);
        }
        let at = self.at.checked_sub(origin).ok_or(Problem::Backwards)?;
        if before.is_some_and(|before| at < before) {
            return Err(Problem::Backwards);
        }
        Ok(Recorded {
            at,
            prompt: self.blocks.into_prompt(index, self.input_tokens)?,
            output_tokens: self.output_tokens,
        })
    }
}

impl Blocks {
    fn into_prompt(self, index: u64, tokens: u32) -> Result<Prompt, Problem> {
        let runs = match self {
            Self::Own => {
                let first = own_block(index);
                return Ok(Prompt::new([Run { first, tokens }]));
            }
            Self::Runs(runs) => runs,
        };
        let found = runs.iter().map(|(first, last)| last - first + 1).sum();
        let expected = u64::from(tokens.div_ceil(BLOCK_TOKENS));
        if found != expected {
            return Err(Problem::Blocks {
                found,
                expected,
                tokens,
            });
        }
        let mut left = tokens;
        Ok(Prompt::new(runs.into_iter().map(|(first, last)| {
            let whole = (last - first + 1) as u32 * BLOCK_TOKENS;
            let run = Run {
                first: BlockId(first),
                tokens: whole.min(left),
            };
            left -= run.tokens;
            run
        })))
    }
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
