//! What became of one request. Times count from its intended time, in real time. Pure.

use std::time::Duration;

use inference_wire::json::{Document, Value};
use inference_wire::usage::Usage;

/// One request, ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) tenant: String,
    pub(super) band: Option<i32>,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// Its intended time, since the start of the load.
    pub(super) at: Duration,
    /// How late it was sent.
    pub(super) lag: Duration,
    /// How long it waited for an engine, where that is known.
    pub(super) waited: Option<Duration>,
    /// When its last byte came, or it failed.
    pub(super) ended: Duration,
    pub(super) end: End,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    Completed(Answer),
    /// The client left, as planned.
    Left,
    /// The server said no, with a status and a code.
    Refused {
        status: u16,
        code: String,
    },
    Failed(Failure),
}

/// A complete answer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Answer {
    /// First and last event with output; absent if the answer came whole.
    pub(super) first: Option<Duration>,
    pub(super) last: Option<Duration>,
    pub(super) usage: Option<Usage>,
    /// Events with output: a lower bound of the output tokens where usage is not told.
    pub(super) outputs: u32,
}

/// How a request failed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// No connection.
    Connect,
    /// Not within the time given.
    Timeout,
    /// The connection broke or the stream ended early.
    Cut,
    /// An error object inside a stream that began with 200.
    InStream,
    /// An answer that could not be read.
    Unreadable,
}

impl Failure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
            Self::InStream => "error_in_stream",
            Self::Unreadable => "unreadable",
        }
    }
}

impl Answer {
    /// Tokens of the answer as the engine counts them, else as many as were seen.
    pub(super) fn output_tokens(&self) -> u64 {
        self.usage
            .map_or(u64::from(self.outputs), |usage| usage.output_tokens)
    }

    /// Mean time per output token after the first.
    pub(super) fn tpot(&self) -> Option<Duration> {
        let (first, last) = (self.first?, self.last?);
        let gaps = self
            .output_tokens()
            .checked_sub(1)
            .filter(|&gaps| gaps > 0)?;
        Some(last.saturating_sub(first).div_f64(gaps as f64))
    }
}

/// The code of an error body: `error.code` if it is a word, else `error.type`, else the same at the top.
pub(super) fn error_code(body: &[u8]) -> Option<String> {
    let document = Document::parse(body).ok()?;
    let root = document.root();
    let error = root.get("error").unwrap_or(root);
    word(error.get("code")).or_else(|| word(error.get("type")))
}

fn word(value: Option<Value<'_>>) -> Option<String> {
    let text = value?.as_str()?;
    checked_code(text.as_bytes())
}

/// A code goes into a table and a map: visible ASCII, of a length codes have.
pub(super) fn checked_code(text: &[u8]) -> Option<String> {
    let sound = (1..=64).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
    sound.then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::error_code;

    #[test]
    fn codes_are_found_in_the_shapes_servers_use() {
        for (body, expected) in [
            (
                r#"{"error":{"message":"m","type":"rate_limit_error","code":"queue_full"}}"#,
                Some("queue_full"),
            ),
            (
                r#"{"error":{"message":"m","type":"NotFoundError","code":404}}"#,
                Some("NotFoundError"),
            ),
            (
                r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
                Some("BadRequestError"),
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#,
                Some("overloaded_error"),
            ),
            (r#"{"detail":"Not Found"}"#, None),
            (r#"{"error":"text"}"#, None),
            ("<html>", None),
            (r#"{"error":{"code":"two words"}}"#, None),
        ] {
            assert_eq!(error_code(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }
}
