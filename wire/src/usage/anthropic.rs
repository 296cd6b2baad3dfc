//! The Messages API.

use super::skim::{Shape, Skim};
use super::{StreamFact, Usage, stream_error};

pub(super) fn stream_fact(event_name: Option<&str>, data: &[u8]) -> StreamFact {
    let mut fact = StreamFact::default();
    let mut kind = event_name.map_or(&b""[..], str::as_bytes);
    let mut output_bytes = 0;
    Skim::new(data).members(|key, skim| match key {
        b"type" => {
            if let Some(span) = skim.string() {
                kind = &data[span];
            }
        }
        b"message" => {
            skim.members(|key, skim| match key {
                b"usage" => fact.usage = usage(skim),
                _ => skim.skip(),
            });
        }
        b"usage" => fact.usage = usage(skim),
        b"delta" => output_bytes = delta(skim, &mut fact),
        b"error" if skim.shape() != Shape::Null => fact.error = Some(stream_error(skim)),
        _ => skim.skip(),
    });
    match kind {
        b"content_block_delta" => {
            fact.outputs = 1;
            fact.output_bytes = output_bytes;
        }
        b"message_stop" => fact.done = true,
        _ => {}
    }
    fact.generated = matches!(
        kind,
        b"message_start"
            | b"content_block_start"
            | b"content_block_delta"
            | b"content_block_stop"
            | b"message_delta"
    );
    fact
}

/// The bytes of text in a delta; notes a stop reason.
fn delta(skim: &mut Skim<'_>, fact: &mut StreamFact) -> usize {
    let mut bytes = 0;
    skim.members(|key, skim| match key {
        b"text" | b"thinking" | b"partial_json" => {
            bytes += skim.string().map_or(0, |text| text.len());
        }
        b"stop_reason" => {
            fact.finished = skim.shape() == Shape::String;
            skim.skip();
        }
        _ => skim.skip(),
    });
    bytes
}

/// Reads a `usage` object. Here `input_tokens` leaves out what a cache was read for or written with, so the prompt is
/// the sum of the three.
pub(super) fn usage(skim: &mut Skim<'_>) -> Option<Usage> {
    let (mut input, mut output, mut read, mut written) = (None, None, None, None);
    let complete = skim.members(|key, skim| match key {
        b"input_tokens" => input = skim.number(),
        b"output_tokens" => output = skim.number(),
        b"cache_read_input_tokens" => read = skim.number(),
        b"cache_creation_input_tokens" => written = skim.number(),
        _ => skim.skip(),
    });
    if !complete || (input, output) == (None, None) {
        return None;
    }
    let parts = [input, read, written].into_iter().flatten();
    Some(Usage {
        prompt_tokens: parts.fold(0, u64::saturating_add),
        cached_tokens: read,
        output_tokens: output.unwrap_or(0),
    })
}
