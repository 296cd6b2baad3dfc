//! The Responses API: the kind of event is `type` inside the data, usage and errors are inside the nested `response`.

use super::skim::{Shape, Skim};
use super::{StreamFact, openai, stream_error};

pub(super) fn stream_fact(event_name: Option<&str>, data: &[u8]) -> StreamFact {
    let mut fact = StreamFact::default();
    let mut kind = event_name.map_or(&b""[..], str::as_bytes);
    let mut delta_bytes = 0;
    let mut whole = Skim::new(data);
    let start = whole.at();
    whole.members(|key, skim| match key {
        b"type" => {
            if let Some(span) = skim.string() {
                kind = &data[span];
            }
        }
        b"response" => response(skim, &mut fact),
        b"delta" => delta_bytes = skim.string().map_or(0, |text| text.len()),
        b"error" if skim.shape() != Shape::Null => fact.error = Some(stream_error(skim)),
        _ => skim.skip(),
    });
    match kind {
        b"response.created" | b"response.in_progress" | b"response.queued" => {}
        b"response.completed" | b"response.incomplete" => {
            fact.done = true;
            fact.finished = true;
            fact.generated = true;
        }
        b"response.failed" | b"response.cancelled" | b"error" => {
            fact.done = true;
            let whole_event = || stream_error(&mut Skim::new(&data[start..]));
            fact.error = fact.error.or_else(|| Some(whole_event()));
        }
        _ if kind.starts_with(b"response.") => {
            fact.generated = true;
            if kind.ends_with(b".delta") {
                fact.outputs = 1;
                fact.output_bytes = delta_bytes;
            }
        }
        _ => {}
    }
    fact
}

fn response(skim: &mut Skim<'_>, fact: &mut StreamFact) {
    skim.members(|key, skim| match key {
        b"usage" => fact.usage = openai::usage(skim),
        b"error" if skim.shape() != Shape::Null => fact.error = Some(stream_error(skim)),
        _ => skim.skip(),
    });
}
