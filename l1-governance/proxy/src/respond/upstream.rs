//! What passes on of an engine's error: its code, its param and its words, but no hosts, paths or keys.

use std::borrow::Cow;

use governance_core::catalogue::Code;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};
use inference_wire::route::{Family, Route};
use serde::Serialize;
use serde_json::Value;

use super::set;

/// Longer messages are cut: they are somebody's stack trace.
const MESSAGE_CAP: usize = 2000;
/// Codes and parameter names are short.
const WORD_CAP: usize = 200;

/// An error an engine made: its words, in the caller's shape.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EngineError {
    pub(crate) status: u16,
    message: String,
    kind: Option<String>,
    param: Option<String>,
    code: Option<String>,
    retry_after: Option<String>,
}

impl EngineError {
    /// Reads an error answer in any of the shapes engines use.
    pub(crate) fn read(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let retry_after = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok());
        let mut error = Self::from_object(status, &value);
        error.retry_after = retry_after.map(str::to_owned);
        error
    }

    /// Reads the error object inside a stream.
    pub(crate) fn in_stream(status: Option<u16>, object: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(object).unwrap_or(Value::Null);
        Self::from_object(status.unwrap_or(500), &value)
    }

    fn from_object(status: u16, value: &Value) -> Self {
        // {"error":{…}}, {"object":"error",…}, {"detail":…}, {"error":"…"}, a bare string
        let object = value
            .get("error")
            .filter(|inner| !inner.is_null())
            .unwrap_or(value);
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        let message = text("message")
            .or_else(|| object.as_str())
            .or_else(|| object.get("detail").and_then(Value::as_str));
        let word = |name: &str| match object.get(name) {
            Some(Value::String(word)) => Some(scrub(&clipped(word, WORD_CAP)).into_owned()),
            _ => None,
        };
        let message = message.filter(|message| !message.trim().is_empty());
        Self {
            status: shown(status),
            message: match message {
                Some(message) => scrub(&clipped(message, MESSAGE_CAP)).into_owned(),
                None => format!("The engine answered {status} without a message"),
            },
            kind: text("type").map(|kind| clipped(kind, WORD_CAP)),
            param: word("param"),
            code: word("code"),
            retry_after: None,
        }
    }

    /// The code as it stands in records and metrics.
    pub(crate) fn reason(&self) -> Code {
        match self.status {
            400 | 422 if self.is_context_length() => Code::ContextLengthExceeded,
            400..500 => Code::InvalidRequest,
            504 => Code::UpstreamTimeout,
            _ => Code::UpstreamError,
        }
    }

    fn is_context_length(&self) -> bool {
        self.code.as_deref() == Some("context_length_exceeded")
            || self.message.contains("maximum context length")
            || self
                .message
                .contains("longer than the model's context length")
    }

    /// A word of the engine's own stays. A number only repeats the status, which no client branches on.
    fn code(&self) -> &str {
        match &self.code {
            Some(word) => word,
            None => self.reason().as_str(),
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn body(&self, family: Family, request_id: &str) -> Vec<u8> {
        let fact = self.reason().fact();
        let body = match family {
            Family::OpenAi => serde_json::to_vec(&OpenAi {
                error: OpenAiError {
                    message: &self.message,
                    kind: self.openai_kind(),
                    param: self.param.as_deref(),
                    code: self.code(),
                },
            }),
            Family::Anthropic => serde_json::to_vec(&Anthropic {
                kind: "error",
                error: AnthropicError {
                    kind: fact.anthropic_type,
                    message: &self.message,
                },
                request_id,
            }),
        };
        body.expect("strings and JSON values serialise")
    }

    /// `BadRequestError` and the like are names of an engine's classes, not types clients know.
    fn openai_kind(&self) -> &str {
        match self.kind.as_deref() {
            Some(kind) if kind.contains('_') => kind,
            Some(_) | None => self.reason().fact().openai_type,
        }
    }

    /// The error as the last event of a stream.
    pub(crate) fn event(&self, route: &Route, request_id: &str) -> Vec<u8> {
        let (name, data) = match (route, route.family()) {
            (Route::Responses, _) => {
                let code = self.code();
                let response = serde_json::json!({
                    "id": request_id, "object": "response", "status": "failed",
                    "error": {"code": code, "message": self.message},
                });
                let event = serde_json::json!({"type": "response.failed", "response": response});
                ("event: response.failed\n", event.to_string().into_bytes())
            }
            (_, Family::Anthropic) => ("event: error\n", self.body(Family::Anthropic, request_id)),
            (_, Family::OpenAi) => ("", self.body(Family::OpenAi, request_id)),
        };
        [name.as_bytes(), b"data: ", &data, b"\n\n"].concat()
    }

    /// The reason is ours; when to come back is the engine's to say.
    pub(super) fn correct_headers(&self, headers: &mut HeaderMap) {
        if let Some(after) = &self.retry_after {
            set(headers, RETRY_AFTER, after);
        }
        if self.status < 500 && self.status != 429 && self.status != 408 && self.status != 409 {
            headers.remove("x-should-retry");
        } else if self.status == 429 {
            headers.insert("x-should-retry", HeaderValue::from_static("true"));
        }
    }
}

/// The status a caller gets for an engine's.
fn shown(status: u16) -> u16 {
    match status {
        // The engine does not know our key: that is between us and it.
        401 | 403 | 407 => 502,
        400..500 | 503 | 504 => status,
        _ => 502,
    }
}

#[derive(Serialize)]
struct OpenAi<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

#[derive(Serialize)]
struct Anthropic<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
    request_id: &'a str,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Replaces what tells of the inside: addresses, URLs, absolute paths, keys.
pub(crate) fn scrub(text: &str) -> Cow<'_, str> {
    let suspicious = |word: &str| {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '/' && c != '[');
        is_url(bare) || is_path(bare) || is_address(bare) || is_key(bare)
    };
    if !text.split_whitespace().any(suspicious) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        if suspicious(bare) {
            out.push_str("[removed]");
            out.push_str(&word[bare.len()..]);
        } else {
            out.push_str(word);
        }
    }
    Cow::Owned(out)
}

fn is_url(word: &str) -> bool {
    word.contains("://")
}

fn is_path(word: &str) -> bool {
    // `/v1/messages` is an API path, `/usr/lib/python3/x.py` is not; `and/or` is a word.
    let inside = word.starts_with('/') && word.len() > 1 && !word.starts_with("/v1/");
    inside
        || word.contains(".svc")
        || word.contains(".internal")
        || word.rsplit('.').next() == Some("local")
}

fn is_address(word: &str) -> bool {
    let host = word.rsplit_once(':').map_or(word, |(host, port)| {
        if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) {
            host
        } else {
            word
        }
    });
    let host = host.trim_matches(['[', ']']);
    host.parse::<std::net::IpAddr>().is_ok()
        || (host != word && (host == "localhost" || host.contains('.') || host.contains('-')))
}

fn is_key(word: &str) -> bool {
    let tail = ["hp-", "sk-", "hf_", "Bearer"]
        .iter()
        .find_map(|prefix| word.split_once(prefix));
    tail.is_some_and(|(_, tail)| tail.len() >= 12)
}

#[cfg(test)]
mod tests;
