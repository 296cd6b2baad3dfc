//! Mooncake's form: one JSON object a line with `timestamp` in milliseconds, lengths in tokens, and ids of 512-token
//! blocks.

use std::time::Duration;

use serde::Deserialize;

use super::problem::{MOST_BLOCK, MOST_MS, MOST_TOKENS, Problem};
use super::{Blocks, Line};

/// Other members are somebody else's notes.
#[derive(Deserialize)]
struct Object {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Option<Vec<u64>>,
}

pub(super) fn read(line: &str) -> Result<Line, Problem> {
    let object: Object =
        serde_json::from_str(line).map_err(|error| Problem::Json(in_one_line(&error)))?;
    let tokens = |column, value| at_most(column, value, MOST_TOKENS).map(|tokens| tokens as u32);
    Ok(Line {
        at: Duration::from_millis(at_most("timestamp", object.timestamp, MOST_MS)?),
        input_tokens: tokens("input_length", object.input_length)?,
        output_tokens: tokens("output_length", object.output_length)?,
        blocks: match object.hash_ids {
            Some(ids) => Blocks::Runs(
                ids.into_iter()
                    .map(|id| Ok((at_most("hash_ids", id, MOST_BLOCK)?, id)))
                    .collect::<Result<_, Problem>>()?,
            ),
            None => Blocks::Own,
        },
    })
}

/// The line is known already; the column in it is not.
fn in_one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("column {}: {what}", error.column())
}

fn at_most(column: &'static str, value: u64, most: u64) -> Result<u64, Problem> {
    if value <= most {
        Ok(value)
    } else {
        Err(Problem::Number {
            column,
            text: value.to_string(),
            most,
        })
    }
}
