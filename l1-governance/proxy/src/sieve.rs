//! Looks at a stream beside the bytes that are forwarded, and takes out what was only asked for by
//! L1: usage the caller did not want. Every other byte stays as it came.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use inference_wire::route::Route;
use inference_wire::sse::{Event, Reader, SseError};
use inference_wire::usage::{Meter, StreamFact, stream_fact};

#[cfg(test)]
mod tests;

/// The usage a caller asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// None: `stream_options.include_usage` is not set.
    Nothing,
    /// The last report.
    Final,
    /// A report in every chunk.
    Running,
}

/// What a piece of a stream amounts to.
#[derive(Debug, Default)]
pub(crate) struct Sifted {
    /// What the caller gets of it.
    pub(crate) forward: Bytes,
    /// Whether it held data, and not just comments.
    pub(crate) data: bool,
    /// Whether the usage in it is the last report, or nothing follows.
    pub(crate) complete: bool,
    /// Why the stream cannot go on; what came before is in `forward`.
    pub(crate) failure: Option<StreamFailure>,
}

/// Why a stream cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamFailure {
    /// The engine says so.
    Engine {
        /// The status in its error, if it names one.
        status: Option<u16>,
        /// The error object, as the engine wrote it.
        object: Bytes,
    },
    /// It is not a stream of events that can be read.
    Unreadable(SseError),
}

pub(crate) struct Sieve {
    route: Route,
    wanted: Wanted,
    reader: Reader,
    out: BytesMut,
    scratch: Vec<u8>,
    taken: u64,
}

enum Fate {
    Keep,
    Drop,
    Cut(Range<usize>),
}

impl Sieve {
    pub(crate) fn new(route: Route, wanted: Wanted) -> Self {
        Self {
            route,
            wanted,
            reader: Reader::new(),
            out: BytesMut::new(),
            scratch: Vec::new(),
            taken: 0,
        }
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn push(&mut self, frame: &Bytes, meter: &mut Meter) -> Sifted {
        let mut sifted = Sifted::default();
        let frame_at = self.taken;
        self.taken += frame.len() as u64;
        // While true, everything of this frame up to the current event goes on as it came.
        let mut whole = self.reader.pending().is_empty();
        let mut passed = 0;
        self.reader.push(frame);
        loop {
            let event = match self.reader.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    sifted.failure = Some(StreamFailure::Unreadable(error));
                    break;
                }
            };
            let (fate, failure) = look(&self.route, self.wanted, &event, meter, &mut sifted);
            if whole && (failure.is_some() || !matches!(fate, Fate::Keep)) {
                let start = (event.offset - frame_at) as usize;
                self.out.extend_from_slice(&frame[..start]);
                whole = false;
            }
            if failure.is_some() {
                sifted.failure = failure;
                break;
            }
            if whole {
                passed = (event.offset - frame_at) as usize + event.raw.len();
            } else {
                write(&event, fate, &mut self.out, &mut self.scratch);
            }
        }
        sifted.forward = if whole {
            frame.slice(..passed)
        } else {
            self.out.split().freeze()
        };
        sifted
    }

    /// What is left when the stream ends without a blank line.
    pub(crate) fn finish(&mut self, meter: &mut Meter) -> Sifted {
        let mut sifted = Sifted::default();
        let Some(event) = self.reader.finish() else {
            return sifted;
        };
        let (fate, failure) = look(&self.route, self.wanted, &event, meter, &mut sifted);
        if failure.is_none() {
            write(&event, fate, &mut self.out, &mut self.scratch);
        }
        sifted.failure = failure;
        sifted.forward = self.out.split().freeze();
        sifted
    }
}

fn look(
    route: &Route,
    wanted: Wanted,
    event: &Event<'_>,
    meter: &mut Meter,
    sifted: &mut Sifted,
) -> (Fate, Option<StreamFailure>) {
    if event.data.is_empty() {
        return (Fate::Keep, None);
    }
    let fact = stream_fact(route, event.name, event.data);
    meter.observe(&fact);
    sifted.data = true;
    sifted.complete |= fact.usage_only || fact.done;
    let failure = fact.error.as_ref().map(|error| StreamFailure::Engine {
        status: error.status,
        object: Bytes::copy_from_slice(&event.data[error.span.clone()]),
    });
    (fate(fact, wanted), failure)
}

fn fate(fact: StreamFact, wanted: Wanted) -> Fate {
    let unwanted = match wanted {
        Wanted::Nothing => true,
        Wanted::Final => !fact.usage_only && fact.usage.is_some(),
        Wanted::Running => false,
    };
    match fact.usage_member {
        Some(_) if unwanted && fact.usage_only => Fate::Drop,
        Some(member) if unwanted => Fate::Cut(member),
        Some(_) | None => Fate::Keep,
    }
}

fn write(event: &Event<'_>, fate: Fate, out: &mut BytesMut, scratch: &mut Vec<u8>) {
    match (fate, event.data_at) {
        (Fate::Drop, _) => {}
        (Fate::Keep, _) => out.extend_from_slice(event.raw),
        (Fate::Cut(span), Some(at)) => {
            out.extend_from_slice(&event.raw[..at + span.start]);
            out.extend_from_slice(&event.raw[at + span.end..]);
        }
        (Fate::Cut(span), None) => {
            scratch.clear();
            event.write_without(span, scratch);
            out.extend_from_slice(scratch);
        }
    }
}
