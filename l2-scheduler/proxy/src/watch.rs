//! Looks at a stream beside the bytes that pass: what it says, and where an event is still incomplete.

use inference_wire::route::Route;
use inference_wire::sse::{Reader, SseError};
use inference_wire::usage::{Meter, StreamError, StreamFact, stream_fact};
use scheduler_core::AttemptEnd;

#[cfg(test)]
mod tests;

/// Follows one stream of events.
#[derive(Debug)]
pub(crate) struct Watch {
    route: Route,
    reader: Reader,
    meter: Meter,
    /// An event has been seen that only comes once the engine works on the request.
    opened: bool,
    /// The HTTP status an error inside the stream names, if one came.
    error_status: Option<u16>,
}

/// What some bytes of a stream brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// No event with data yet.
    Nothing,
    /// Output, or anything that follows output.
    Output,
    /// The first event is an error: nothing has been generated. With its HTTP status, if it names one.
    Error(Option<u16>),
}

impl Watch {
    pub(crate) fn new(route: Route) -> Self {
        Self {
            route,
            reader: Reader::new(),
            meter: Meter::new(),
            opened: false,
            error_status: None,
        }
    }

    /// Reads the next bytes.
    pub(crate) fn see(&mut self, bytes: &[u8]) -> Result<Seen, SseError> {
        self.reader.push(bytes);
        let mut error_first = None;
        while let Some(event) = self.reader.next_event()? {
            if event.data.is_empty() {
                continue;
            }
            let fact = stream_fact(&self.route, event.name, event.data);
            if !self.opened {
                error_first = fact.error.as_ref().map(|error| error.status);
            }
            self.note(&fact);
        }
        Ok(match error_first {
            Some(status) => Seen::Error(status),
            None if self.opened => Seen::Output,
            None => Seen::Nothing,
        })
    }

    /// How many of the last bytes belong to an event that is not complete.
    pub(crate) fn incomplete(&self) -> usize {
        self.reader.pending().len()
    }

    /// The stream ended: an event without its blank line still counts.
    pub(crate) fn finish(&mut self) {
        if let Some(event) = self.reader.finish()
            && !event.data.is_empty()
        {
            let fact = stream_fact(&self.route, event.name, event.data);
            self.note(&fact);
        }
    }

    /// The stream said itself that it is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.meter.done() || self.meter.finished()
    }

    /// The stream held an error.
    pub(crate) fn failed(&self) -> bool {
        self.meter.failed()
    }

    pub(crate) fn error_status(&self) -> Option<u16> {
        self.error_status
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Output tokens so far: reported, or else estimated.
    pub(crate) fn output_tokens(&self) -> u64 {
        match self.meter.usage() {
            Some(usage) => usage.output_tokens,
            None => self.meter.estimated_output_tokens(),
        }
    }

    pub(crate) fn completed(&self) -> AttemptEnd {
        AttemptEnd::Completed {
            cached_tokens: self.meter.usage().and_then(|usage| usage.cached_tokens),
            output_tokens: self.output_tokens(),
        }
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    fn note(&mut self, fact: &StreamFact) {
        // A Responses stream announces itself before the engine has admitted it.
        let announces = matches!(self.route, Route::Responses);
        self.opened |=
            !announces || fact.generated || fact.done || fact.finished || fact.error.is_some();
        if let Some(StreamError { status, .. }) = &fact.error {
            self.error_status = *status;
        }
        self.meter.observe(fact);
    }
}
