//! Errors as the imitated servers word them.

use http::StatusCode;
use serde_json::json;

use super::config::Vocabulary;

/// Whose error shape an endpoint answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    OpenAi,
    Anthropic,
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<String>,
    /// Found by the framework before the endpoint saw the request: always in the OpenAI shape.
    by_framework: bool,
}

/// Which server words the message.
fn words<'a>(vocabulary: Vocabulary, vllm: &'a str, sglang: &'a str) -> &'a str {
    if vocabulary.is_sglang() { sglang } else { vllm }
}

impl Problem {
    fn bad_request(message: String, param: Option<&str>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message,
            kind: "BadRequestError",
            param: param.map(str::to_owned),
            by_framework: false,
        }
    }

    /// A value the endpoint refuses, worded like `message (parameter=p, value=v)`.
    pub(super) fn invalid(message: &str, param: &str, value: Option<&str>) -> Self {
        let value = value.map_or(String::new(), |v| format!(", value={v}"));
        Self::bad_request(format!("{message} (parameter={param}{value})"), Some(param))
    }

    /// A request the endpoint refuses without naming a parameter.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::bad_request(message.into(), None)
    }

    /// A body that does not fit the endpoint's types.
    pub(super) fn validation(vocabulary: Vocabulary, what: &Validation<'_>) -> Self {
        let Validation {
            kind,
            loc,
            message,
            input,
            context,
        } = what;
        let (loc_text, param) = if vocabulary.is_sglang() {
            let parts: Vec<String> = loc
                .split('.')
                .map(|p| {
                    if p.parse::<u64>().is_ok() {
                        p.to_owned()
                    } else {
                        format!("'{p}'")
                    }
                })
                .collect();
            (format!("({})", parts.join(", ")), None)
        } else {
            (format!("'{loc}'"), Some((*loc).to_owned()))
        };
        let context = context.map_or(String::new(), |c| format!(", 'ctx': {{'error': '{c}'}}"));
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': {loc_text}, 'msg': '{message}', 'input': '{input}'{context}}}"
        );
        Self {
            status: StatusCode::BAD_REQUEST,
            message,
            kind: "Bad Request",
            param,
            by_framework: true,
        }
    }

    pub(super) fn unknown_model(model: &str, known: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            message: format!("The model `{model}` does not exist. Valid aliases: {known}."),
            kind: "NotFoundError",
            param: Some("model".to_owned()),
            by_framework: false,
        }
    }

    pub(super) fn context_too_long(vocabulary: Vocabulary, tokens: u32, limit: u32) -> Self {
        if vocabulary.is_sglang() {
            return Self::refused(format!(
                "The input ({tokens} tokens) is longer than the model's context length ({limit} tokens)."
            ));
        }
        // The real server stops counting at one too many.
        let seen = limit + 1;
        Self::invalid(
            &format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains at least \
                 {seen} input tokens, which exceeds this limit even without any output tokens. Please reduce the \
                 length of the input prompt."
            ),
            "input_tokens",
            Some(&seen.to_string()),
        )
    }

    pub(super) fn busy(vocabulary: Vocabulary) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: words(
                vocabulary,
                "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                 different instance.",
                "The request queue is full.",
            )
            .to_owned(),
            kind: "Service Unavailable",
            param: None,
            by_framework: false,
        }
    }

    pub(super) fn internal() -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: "EngineCore encountered an issue. See stack trace (above) for the root cause."
                .to_owned(),
            kind: "InternalServerError",
            param: None,
            by_framework: false,
        }
    }

    pub(super) fn scale_out_disabled() -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            message: "Scale-out endpoints are disabled. Start the server with --enable-scale-out."
                .to_owned(),
            kind: "PermissionDeniedError",
            param: None,
            by_framework: false,
        }
    }

    /// The body, with `usage` beside the error if it is known.
    pub(super) fn body(&self, vocabulary: Vocabulary, shape: Shape, usage: Option<&str>) -> String {
        let code = self.status.as_u16();
        let (message, kind, param) = (&self.message, self.kind, &self.param);
        let body = if shape == Shape::Anthropic && !self.by_framework {
            json!({"type": "error", "error": {"type": kind, "message": message}})
        } else if vocabulary.is_sglang() {
            json!({"object": "error", "message": message, "type": kind, "param": null, "code": code})
        } else {
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
        };
        let mut text = body.to_string();
        if let Some(usage) = usage {
            text.pop();
            text.push_str(",\"usage\":");
            text.push_str(usage);
            text.push('}');
        }
        text
    }
}

/// What the type check of a body found.
pub(super) struct Validation<'a> {
    pub(super) kind: &'a str,
    /// Path such as `body.messages`.
    pub(super) loc: &'a str,
    pub(super) message: &'a str,
    pub(super) input: &'a str,
    pub(super) context: Option<&'a str>,
}
