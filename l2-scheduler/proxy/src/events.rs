//! Events that we put into a stream ourselves: errors in the form of each family, and what a waiting caller is told.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use inference_wire::route::Route;
use serde_json::{Map, Value, json};

use crate::answer::{Problem, whole_ms};
use crate::patience::Beginning;

/// What is quoted of an error that cannot be read.
const QUOTED_BYTES: usize = 1024;

impl Problem {
    /// The event that ends a stream with this problem.
    pub(crate) fn event(&self, route: &Route) -> Bytes {
        let (code, message) = (self.code.as_str(), &self.message);
        let error = match Form::of(route) {
            Form::Messages => {
                json!({"type": self.anthropic_type(), "message": message, "code": code})
            }
            Form::Responses => json!({"code": code, "message": message}),
            Form::OpenAi => {
                json!({"message": message, "type": self.code.kind(), "param": null, "code": code})
            }
        };
        Form::of(route).event(&self.with_advice(error))
    }

    /// A stream has no header left to say when to come back.
    fn with_advice(&self, mut error: Value) -> Value {
        if let Some(after) = self.retry_after {
            error["retry_after_ms"] = whole_ms(after).into();
        }
        error
    }

    fn anthropic_type(&self) -> &'static str {
        match self.code.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }
}

/// An error that an engine answered with, as the event that ends a stream which has begun already.
pub(crate) fn engine_error(route: &Route, status: StatusCode, answer: &Beginning) -> Bytes {
    let mut error = readable(answer).unwrap_or_else(|| {
        let message = match quoted(answer) {
            words if words.is_empty() => format!("The engine refused the request with {status}"),
            words => format!("The engine refused the request with {status}: {words}"),
        };
        Map::from_iter([
            ("message".to_owned(), message.into()),
            ("type".to_owned(), "invalid_request_error".into()),
        ])
    });
    // Whoever reads the stream knows the status by its code only.
    error.insert("code".to_owned(), status.as_u16().into());
    Form::of(route).event(&error.into())
}

/// An error object as engines write them.
fn readable(answer: &Beginning) -> Option<Map<String, Value>> {
    let mut body: Value = serde_json::from_slice(answer.bytes.as_slice()).ok()?;
    let error = match body.get_mut("error").filter(|error| !error.is_null()) {
        Some(error) => error.take(),
        None => body,
    };
    if let Value::Object(error) = error {
        Some(error)
    } else {
        None
    }
}

/// The first words of a text of any kind and length.
fn quoted(answer: &Beginning) -> String {
    let text = String::from_utf8_lossy(&answer.bytes[..answer.bytes.len().min(QUOTED_BYTES)]);
    let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    if answer.whole && answer.bytes.len() <= QUOTED_BYTES {
        text.to_owned()
    } else {
        format!("{text}… (the rest of its answer is left out)")
    }
}

/// The forms an error can have in a stream.
#[derive(Clone, Copy)]
enum Form {
    OpenAi,
    Responses,
    Messages,
}

impl Form {
    fn of(route: &Route) -> Self {
        match route {
            Route::Messages => Self::Messages,
            Route::Responses => Self::Responses,
            Route::ChatCompletions
            | Route::Completions
            | Route::Embeddings
            | Route::Rerank
            | Route::CountTokens
            | Route::Tokenize
            | Route::Detokenize
            | Route::Models
            | Route::Model(_) => Self::OpenAi,
        }
    }

    fn event(self, error: &Value) -> Bytes {
        match self {
            Self::OpenAi => event(None, &json!({ "error": error })),
            Self::Messages => event(Some("error"), &json!({"type": "error", "error": error})),
            Self::Responses => {
                let response = json!({"object": "response", "status": "failed", "error": error});
                event(
                    Some("response.failed"),
                    &json!({"type": "response.failed", "response": response}),
                )
            }
        }
    }
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In the queue; with the requests before it and the wait to be expected, as far as they are known.
    Waiting {
        position: Option<usize>,
        wait: Option<Duration>,
    },
    /// At an engine.
    Dispatched,
}

/// A comment for whoever waits. Readers of events skip it.
pub(crate) fn comment(standing: Standing, waited: Duration) -> Bytes {
    let mut text = match standing {
        Standing::Waiting { .. } => ": headpond queue".to_owned(),
        Standing::Dispatched => ": headpond dispatched".to_owned(),
    };
    if let Standing::Waiting { position, wait } = standing {
        if let Some(position) = position {
            let _ = write!(text, " position={position}");
        }
        if let Some(wait) = wait {
            let _ = write!(text, " wait_ms={}", wait.as_millis());
        }
    }
    let _ = write!(text, " waited_ms={}\n\n", waited.as_millis());
    Bytes::from(text)
}

fn event(name: Option<&str>, data: &Value) -> Bytes {
    let name = name.map_or(String::new(), |name| format!("event: {name}\n"));
    Bytes::from(format!("{name}data: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::answer::Code;

    #[test]
    fn a_refusal_in_a_stream_has_the_form_of_its_family() {
        let problem = Problem::new(Code::QueueExpired, "Too long. Come back.")
            .retry_after(Duration::from_millis(1500));
        let told: String = [Route::ChatCompletions, Route::Messages, Route::Responses]
            .iter()
            .map(|route| String::from_utf8(problem.event(route).to_vec()).expect("text"))
            .collect();
        expect![[r#"
            data: {"error":{"code":"queue_expired","message":"Too long. Come back.","param":null,"retry_after_ms":1500,"type":"rate_limit_error"}}

            event: error
            data: {"error":{"code":"queue_expired","message":"Too long. Come back.","retry_after_ms":1500,"type":"rate_limit_error"},"type":"error"}

            event: response.failed
            data: {"response":{"error":{"code":"queue_expired","message":"Too long. Come back.","retry_after_ms":1500},"object":"response","status":"failed"},"type":"response.failed"}

        "#]].assert_eq(&told);
    }

    #[test]
    fn an_engines_error_keeps_its_words_and_tells_its_status() {
        let body = br#"{"error":{"message":"bad image","type":"BadRequestError","param":"messages","code":"x"}}"#;
        let told: String = [Route::ChatCompletions, Route::Messages]
            .iter()
            .map(|route| told(route, body, true))
            .collect();
        expect![[r#"
            data: {"error":{"code":400,"message":"bad image","param":"messages","type":"BadRequestError"}}

            event: error
            data: {"error":{"code":400,"message":"bad image","param":"messages","type":"BadRequestError"},"type":"error"}

        "#]].assert_eq(&told);
    }

    fn told(route: &Route, body: &[u8], whole: bool) -> String {
        let answer = Beginning {
            bytes: body.to_vec(),
            whole,
        };
        let event = engine_error(route, StatusCode::BAD_REQUEST, &answer);
        String::from_utf8(event.to_vec()).expect("text")
    }

    #[test]
    fn an_error_that_cannot_be_read_is_quoted_and_cut() {
        let chat = Route::ChatCompletions;
        for (body, whole, message) in [
            ("no such adapter", true, "no such adapter"),
            ("\"a string\"", true, "\\\"a string\\\""),
            (
                "{\"error\":{\"message\":\"x",
                false,
                "{\\\"error\\\":{\\\"message\\\":\\\"x… (the rest of its answer is left out)",
            ),
        ] {
            let expected = format!(
                "data: {{\"error\":{{\"code\":400,\"message\":\"The engine refused the request with 400 Bad Request: {message}\",\"type\":\"invalid_request_error\"}}}}\n\n"
            );
            assert_eq!(told(&chat, body.as_bytes(), whole), expected);
        }
        let silent = told(&chat, b"", true);
        assert!(silent.contains("with 400 Bad Request\""), "{silent}");
        let long = told(&chat, "é".repeat(40_000).as_bytes(), true);
        assert_eq!(long.matches('é').count(), QUOTED_BYTES / 2);
        let broken = [b"x".repeat(QUOTED_BYTES - 1), "é".as_bytes().to_vec()].concat();
        assert!(!told(&chat, &broken, true).contains(char::REPLACEMENT_CHARACTER));
    }

    #[test]
    fn a_comment_tells_what_is_known() {
        let waited = Duration::from_secs(2);
        for (standing, expected) in [
            (
                Standing::Waiting {
                    position: Some(3),
                    wait: Some(Duration::from_millis(1200)),
                },
                ": headpond queue position=3 wait_ms=1200 waited_ms=2000\n\n",
            ),
            (
                Standing::Waiting {
                    position: None,
                    wait: None,
                },
                ": headpond queue waited_ms=2000\n\n",
            ),
            (
                Standing::Dispatched,
                ": headpond dispatched waited_ms=2000\n\n",
            ),
        ] {
            assert_eq!(comment(standing, waited), expected);
        }
    }
}
