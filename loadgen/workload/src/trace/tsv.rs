//! Our own form: `t_ms`, `input_tokens`, `output_tokens` and, in all lines or in none, `block_ids`.

use std::time::Duration;

use super::problem::{MOST_BLOCK, MOST_MS, Problem, number, tokens};
use super::{Blocks, Line};

#[derive(Default)]
pub(super) struct Reader {
    columns: Columns,
}

/// What the first line showed.
#[derive(Clone, Copy, Default)]
enum Columns {
    #[default]
    Unknown,
    WithBlocks,
    WithoutBlocks,
}

impl Columns {
    fn expected(self) -> &'static str {
        match self {
            Self::Unknown => {
                "3 or 4 (t_ms, input_tokens, output_tokens and perhaps block_ids, separated by tabs; a CSV begins with TIMESTAMP,ContextTokens,GeneratedTokens)"
            }
            Self::WithBlocks => {
                "4 (t_ms, input_tokens, output_tokens, block_ids, separated by tabs)"
            }
            Self::WithoutBlocks => {
                "3 (t_ms, input_tokens, output_tokens, separated by tabs, as above)"
            }
        }
    }
}

impl Reader {
    pub(super) fn read(&mut self, line: &str) -> Result<Line, Problem> {
        let columns: Vec<&str> = line.split('\t').collect();
        let (at, input, output, blocks) = match (self.columns, &columns[..]) {
            (Columns::Unknown | Columns::WithBlocks, &[at, input, output, blocks]) => {
                self.columns = Columns::WithBlocks;
                (at, input, output, Some(blocks))
            }
            (Columns::Unknown | Columns::WithoutBlocks, &[at, input, output]) => {
                self.columns = Columns::WithoutBlocks;
                (at, input, output, None)
            }
            (known, columns) => {
                return Err(Problem::Columns {
                    found: columns.len(),
                    expected: known.expected(),
                });
            }
        };
        Ok(Line {
            at: Duration::from_millis(number("t_ms", at, MOST_MS)?),
            input_tokens: tokens("input_tokens", input)?,
            output_tokens: tokens("output_tokens", output)?,
            blocks: match blocks {
                Some(blocks) => Blocks::Runs(ranges(blocks)?),
                None => Blocks::Own,
            },
        })
    }
}

fn ranges(text: &str) -> Result<Vec<(u64, u64)>, Problem> {
    text.split_ascii_whitespace().map(range).collect()
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
