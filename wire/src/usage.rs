//! What an answer says about tokens: usage reports, signs of output, errors and the end of a stream. It prices nothing.
//!
//! Streams are looked at through the members of each chunk's outermost objects, found by span. Engines are trusted to
//! write JSON; text that is not leads to fewer facts, never to a failure. Generated text is a JSON string and is skipped
//! as one, so it cannot pass for anything else.

mod anthropic;
mod meter;
mod openai;
mod responses;
mod skim;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use meter::Meter;

use crate::route::Route;
use skim::Skim;

/// Token counts of one answer, as the engine reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All prompt tokens, those found in a cache included.
    pub prompt_tokens: u64,
    /// How many of them were found in a cache; `None` if the engine does not say.
    pub cached_tokens: Option<u64>,
    pub output_tokens: u64,
}

/// What one event of a stream says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is seen or not seen, whatever the others say"
)]
pub struct StreamFact {
    /// A usage report. A zero in it is a value, not a gap.
    pub usage: Option<Usage>,
    /// Which choice the report counts, if it counts one: running usage is per choice, the last report is the sum.
    pub usage_choice: Option<u32>,
    /// Span in `data` of the `usage` member (also of `"usage":null`) with one comma, to cut it out. Only for chat and
    /// plain completions: elsewhere usage belongs to the protocol and no caller can ask not to get it.
    pub usage_member: Option<Range<usize>>,
    /// The engine has begun to answer: a role, text, a finish reason. The first such event is the first token.
    pub generated: bool,
    /// Choices in this event that carry output; an event may carry several tokens, so this is a lower bound of them.
    pub outputs: u32,
    /// Bytes of output text as they are written in JSON.
    pub output_bytes: usize,
    /// Nothing but usage: no choices.
    pub usage_only: bool,
    pub error: Option<StreamError>,
    /// Nothing follows: `[DONE]`, `message_stop`, or a terminal event of the Responses API.
    pub done: bool,
    /// A choice has its finish reason, or the answer its stop reason.
    pub finished: bool,
}

/// An error object inside a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamError {
    /// Its `code`, if that is an HTTP status.
    pub status: Option<u16>,
    /// Span of the error object in `data`.
    pub span: Range<usize>,
}

/// Reads one event of a stream answering `route`. Costs one look at each byte and allocates nothing.
pub fn stream_fact(route: &Route, event_name: Option<&str>, data: &[u8]) -> StreamFact {
    if data == b"[DONE]" {
        return StreamFact {
            done: true,
            ..StreamFact::default()
        };
    }
    match route {
        Route::Messages => anthropic::stream_fact(event_name, data),
        Route::Responses => responses::stream_fact(event_name, data),
        Route::ChatCompletions => openai::stream_fact(openai::Shape::Chat, data),
        Route::Completions
        | Route::Embeddings
        | Route::Rerank
        | Route::CountTokens
        | Route::Tokenize
        | Route::Detokenize
        | Route::Models
        | Route::Model(_) => openai::stream_fact(openai::Shape::Text, data),
    }
}

/// The usage report of a whole answer that is not a stream, also of an error.
pub fn from_body(route: &Route, body: &[u8]) -> Option<Usage> {
    let mut usage = None;
    Skim::new(body).members(|key, skim| match key {
        b"usage" => usage = report(route, skim),
        _ => skim.skip(),
    });
    usage
}

fn report(route: &Route, skim: &mut Skim<'_>) -> Option<Usage> {
    if *route == Route::Messages {
        anthropic::usage(skim)
    } else {
        openai::usage(skim)
    }
}

/// Reads an error object: `{"message","type","param","code"}` or a plain string.
fn stream_error(skim: &mut Skim<'_>) -> StreamError {
    let start = skim.at();
    let mut status = None;
    skim.members(|key, skim| match key {
        b"code" => status = skim.number(),
        _ => skim.skip(),
    });
    StreamError {
        status: status
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (400..600).contains(code)),
        span: start..skim.at(),
    }
}
