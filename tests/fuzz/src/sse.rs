//! A stream from an engine.

use inference_wire::route::Route;
use inference_wire::sse::{Event, Reader, SseError};
use inference_wire::usage::{Meter, StreamFact, stream_fact};

use crate::{ROUTES, digest};

/// Lines longer than this end a stream; short, so that the limit is reached, but longer than most.
const LINE_LIMIT: usize = 1024;

/// Reads `data` as a stream, at once and in pieces.
pub fn sse(data: &[u8]) {
    let whole = read(&[data]);
    let cut = digest(data) as usize % (data.len() + 1);
    let pieces = read(&[&data[..cut], &data[cut..]]);
    let bytes = read(&data.chunks(1).collect::<Vec<_>>());
    assert_eq!(whole.events, pieces.events, "cut at {cut}");
    assert_eq!(whole.events, bytes.events, "byte by byte");
    assert_eq!(whole.error, bytes.error);
    if whole.error.is_none() {
        assert_eq!(whole.raw, data, "the raw spans are the stream");
    }
}

#[derive(Default)]
struct Seen {
    /// Name and data of each event.
    events: Vec<(Option<String>, Vec<u8>)>,
    raw: Vec<u8>,
    error: Option<SseError>,
}

fn read(chunks: &[&[u8]]) -> Seen {
    let mut reader = Reader::with_line_limit(LINE_LIMIT);
    let mut meters = ROUTES.map(|_| Meter::new());
    let mut seen = Seen::default();
    for chunk in chunks {
        reader.push(chunk);
        loop {
            match reader.next_event() {
                Ok(Some(event)) => take(&event, &mut seen, &mut meters),
                Ok(None) => break,
                Err(error) => {
                    seen.error = Some(error);
                    return seen;
                }
            }
        }
    }
    if let Some(event) = reader.finish() {
        take(&event, &mut seen, &mut meters);
    }
    seen
}

fn take(event: &Event<'_>, seen: &mut Seen, meters: &mut [Meter]) {
    assert_eq!(event.offset, seen.raw.len() as u64);
    // The LF of a CRLF whose CR has ended the last event is bytes, but no event.
    if event.raw != b"\n" || !seen.raw.ends_with(b"\r") {
        let name = event.name.map(str::to_owned);
        seen.events.push((name, event.data.to_vec()));
    }
    seen.raw.extend_from_slice(event.raw);
    for (route, meter) in ROUTES.iter().zip(meters) {
        let fact = stream_fact(route, event.name, event.data);
        check_fact(route, event, &fact);
        let before = meter.usage().unwrap_or_default();
        meter.observe(&fact);
        let after = meter.usage().unwrap_or_default();
        assert!(
            after.output_tokens >= before.output_tokens,
            "output is never taken back"
        );
        assert!(meter.estimated_output_tokens() >= after.output_tokens);
    }
}

fn check_fact(route: &Route, event: &Event<'_>, fact: &StreamFact) {
    if let Some(error) = &fact.error {
        assert!(event.data.get(error.span.clone()).is_some(), "{route:?}");
    }
    let Some(cut) = fact.usage_member.clone() else {
        return;
    };
    let rest = [&event.data[..cut.start], &event.data[cut.end..]].concat();
    let mut written = Vec::new();
    event.write_without(cut, &mut written);
    assert!(written.len() < event.raw.len() || event.data_at.is_none());
    // A key that is there twice is cut once.
    let was = serde_json::from_slice::<serde_json::Value>(event.data);
    if was.is_ok() {
        assert!(
            serde_json::from_slice::<serde_json::Value>(&rest).is_ok(),
            "{route:?}"
        );
    }
}
