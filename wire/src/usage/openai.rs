//! Chat and plain completions, embeddings, and the `usage` object they share with the Responses API.

use std::ops::Range;

use super::skim::{Shape as Json, Skim};
use super::{StreamFact, Usage, stream_error};

/// Where a choice carries its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// In the members of `delta`.
    Chat,
    /// In `text`.
    Text,
}

pub(super) fn stream_fact(shape: Shape, data: &[u8]) -> StreamFact {
    let mut fact = StreamFact::default();
    let mut choices = None;
    let mut first_choice = None;
    let mut is_error_object = false;
    let mut skim = Skim::new(data);
    let start = skim.at();
    skim.members(|key, skim| match key {
        b"choices" => {
            let mut count = 0_u32;
            let read = skim.elements(|skim| {
                count += 1;
                let index = choice(shape, skim, &mut fact);
                first_choice.get_or_insert(index);
            });
            choices = read.then_some(count);
        }
        b"usage" => {
            let value = skim.at();
            fact.usage = usage(skim);
            fact.usage_member = member_span(data, value, skim.at());
        }
        b"error" if skim.shape() != Json::Null => fact.error = Some(stream_error(skim)),
        b"object" => {
            let object = skim.string();
            is_error_object = object.is_some_and(|span| &data[span] == b"error");
        }
        _ => skim.skip(),
    });
    if is_error_object && fact.error.is_none() {
        // SGLang: the error's fields stand at top level.
        fact.error = Some(stream_error(&mut Skim::new(&data[start..])));
    }
    fact.generated = choices.is_some_and(|count| count > 0);
    fact.usage_only = choices == Some(0) && fact.usage.is_some();
    if choices.is_some_and(|count| count > 0) {
        fact.usage_choice = fact.usage.and(first_choice);
    }
    fact
}

/// Reads one element of `choices`; its index.
fn choice(shape: Shape, skim: &mut Skim<'_>, fact: &mut StreamFact) -> u32 {
    let mut index = 0;
    let mut bytes = None;
    skim.members(|key, skim| match key {
        b"index" => {
            index = skim
                .number()
                .and_then(|index| u32::try_from(index).ok())
                .unwrap_or(0);
        }
        b"finish_reason" => {
            fact.finished |= skim.shape() == Json::String;
            skim.skip();
        }
        b"delta" if shape == Shape::Chat => bytes = delta(skim),
        b"text" if shape == Shape::Text => bytes = skim.string().map(|text| text.len()),
        _ => skim.skip(),
    });
    fact.outputs += u32::from(bytes.is_some());
    fact.output_bytes += bytes.unwrap_or(0);
    index
}

/// The bytes of output in a chat delta: text, reasoning, tool calls. `None` for the role chunk, which is written before
/// there is any text, and for the chunk that only says why it ended. Empty text without a role is output: a token may
/// end in the middle of a character.
fn delta(skim: &mut Skim<'_>) -> Option<usize> {
    let mut role = false;
    let mut carries = false;
    let mut bytes = 0;
    skim.members(|key, skim| {
        role |= key == b"role";
        let start = skim.at();
        let shape = skim.shape();
        skim.skip();
        let carries_text = matches!(shape, Json::String | Json::Array | Json::Object);
        if carries_text && key != b"role" {
            carries = true;
            // Without the quotes or brackets.
            bytes += (skim.at() - start).saturating_sub(2);
        }
    });
    (carries && (bytes > 0 || !role)).then_some(bytes)
}

/// Reads a `usage` object. `None` if it is not an object, is cut off, or counts nothing.
pub(super) fn usage(skim: &mut Skim<'_>) -> Option<Usage> {
    let (mut prompt, mut output, mut total, mut cached) = (None, None, None, None);
    let complete = skim.members(|key, skim| match key {
        b"prompt_tokens" | b"input_tokens" => prompt = skim.number(),
        b"completion_tokens" | b"output_tokens" => output = skim.number(),
        b"total_tokens" => total = skim.number(),
        b"prompt_tokens_details" | b"input_tokens_details" => {
            skim.members(|key, skim| match key {
                b"cached_tokens" => cached = skim.number(),
                _ => skim.skip(),
            });
        }
        _ => skim.skip(),
    });
    if !complete || (prompt, output, total) == (None, None, None) {
        return None;
    }
    let output_tokens = output.unwrap_or(0);
    Some(Usage {
        // A reranker may report the total alone.
        prompt_tokens: prompt
            .or_else(|| total?.checked_sub(output_tokens))
            .unwrap_or(0),
        cached_tokens: cached,
        output_tokens,
    })
}

/// The span of a member whose value is known, with the comma before it, or after it if it is the first one.
fn member_span(data: &[u8], value_start: usize, value_end: usize) -> Option<Range<usize>> {
    let key_end = data[..value_start]
        .trim_ascii_end()
        .strip_suffix(b":")?
        .trim_ascii_end();
    let before = key_end.strip_suffix(b"\"usage\"")?;
    let trimmed = before.trim_ascii_end();
    if trimmed.ends_with(b",") {
        return Some(trimmed.len() - 1..value_end);
    }
    let rest = &data[value_end..];
    let after = rest.trim_ascii_start();
    let end = match after.strip_prefix(b",") {
        Some(after) => data.len() - after.len(),
        None => value_end,
    };
    Some(before.len()..end)
}
