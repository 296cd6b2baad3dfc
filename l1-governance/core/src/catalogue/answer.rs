//! An error as it is sent: status, headers and body in the shape the client's family can read.

use std::borrow::Cow;
use std::fmt::Write as _;

use governance_context::{MicroWtu, names};
use inference_wire::route::{Family, Route};
use serde::Serialize;

use super::code::{Code, Retry};

/// One error for one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What it is.
    pub code: Code,
    /// The field it is about.
    pub param: Option<Cow<'static, str>>,
    /// What happened to this very request; the code's meaning if absent.
    pub what: Option<String>,
    /// What to do about it, where the code's own advice does not fit; that if absent.
    pub how: Option<&'static str>,
    /// Whether to try again, where this very request differs from its code; what that says if absent.
    pub retry: Option<Retry>,
    /// When the same request would be admitted, if that is known.
    pub retry_after_ms: Option<u64>,
    /// The account that has not enough left.
    pub quota: Option<Box<QuotaFacts>>,
}

/// Which limit refused a request, as its caller may know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuotaFacts {
    /// The account's name.
    pub account: String,
    /// The window the limit counts in, such as `month` or `balance`.
    pub window: String,
    /// All in micro-WTU.
    pub limit: MicroWtu,
    /// What was spent.
    pub used: MicroWtu,
    /// What is set aside for running requests.
    pub held: MicroWtu,
    /// RFC 3339; absent when only a grant helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<String>,
}

impl Answer {
    /// An error with nothing more to say than its code does.
    pub fn new(code: Code) -> Self {
        Self {
            code,
            param: None,
            what: None,
            how: None,
            retry: None,
            retry_after_ms: None,
            quota: None,
        }
    }

    /// Says what happened to this request: a sentence without a full stop, and without anything secret.
    #[must_use]
    pub fn what(mut self, what: impl Into<String>) -> Self {
        self.what = Some(what.into());
        self
    }

    /// Says what to do, in place of what its code says: whole sentences.
    #[must_use]
    pub fn how(mut self, how: &'static str) -> Self {
        self.how = Some(how);
        self
    }

    /// Names the field the error is about.
    #[must_use]
    pub fn param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Says whether to try again, in place of what its code says.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Says when the same request would be admitted.
    #[must_use]
    pub fn retry_after_ms(mut self, delay: u64) -> Self {
        self.retry_after_ms = Some(delay);
        self
    }

    /// Shows the account that refused.
    #[must_use]
    pub fn quota(mut self, facts: QuotaFacts) -> Self {
        self.quota = Some(Box::new(facts));
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.code.status()
    }

    fn judged(&self) -> Retry {
        self.retry.unwrap_or_else(|| self.code.retry())
    }

    /// The headers that belong to it, in lower case, beside `content-type: application/json` and the request id.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![(names::REASON, self.code.as_str().to_owned())];
        if let Some(ms) = self
            .retry_after_ms
            .filter(|_| self.judged() != Retry::Never)
        {
            headers.push(("retry-after", ms.div_ceil(1000).to_string()));
            headers.push(("retry-after-ms", ms.to_string()));
        }
        // Clients retry 408, 409, 429 and 5xx unless told otherwise.
        let retried_by_default = matches!(self.status(), 408 | 409 | 429 | 500..);
        match self.judged() {
            Retry::Soon => headers.push(("x-should-retry", "true".to_owned())),
            Retry::AtReset => headers.push(("x-should-retry", "false".to_owned())),
            Retry::Never if retried_by_default => {
                headers.push(("x-should-retry", "false".to_owned()));
            }
            Retry::Never => {}
        }
        headers
    }

    /// What to do about it: the message ends with it.
    pub fn advice(&self) -> &'static str {
        self.how.unwrap_or_else(|| self.code.fact().how)
    }

    /// What happened, when to try again and what to do.
    pub fn message(&self) -> String {
        let fact = self.code.fact();
        let mut message = self.what.as_deref().unwrap_or(fact.meaning).to_owned();
        message.push('.');
        if let Some(quota) = &self.quota {
            let QuotaFacts {
                account,
                window,
                limit,
                used,
                held,
                resets_at,
            } = &**quota;
            let _ = write!(
                message,
                " Account `{account}` has used {used} of {limit} WTU ({held} held by requests that are not settled), window {window}"
            );
            match resets_at {
                Some(at) => drop(write!(message, ", resets at {at}.")),
                None => message.push('.'),
            }
        }
        if let Some(ms) = self.retry_after_ms.filter(|_| self.judged() == Retry::Soon) {
            let _ = write!(message, " Please try again in {}.", seconds(ms));
        }
        message.push(' ');
        message.push_str(self.advice());
        message
    }

    /// The JSON body for a family.
    pub fn body(&self, family: Family, request_id: &str) -> Vec<u8> {
        match family {
            Family::OpenAi => to_json(&OpenAi {
                error: self.openai(),
            }),
            Family::Anthropic => to_json(&self.anthropic(request_id)),
        }
    }

    /// The error as the last event of a stream whose status is already sent.
    pub fn event(&self, route: &Route, request_id: &str) -> Vec<u8> {
        let (name, data) = match (route, route.family()) {
            (Route::Responses, _) => {
                let error = ResponsesError {
                    code: self.code.as_str(),
                    message: self.message(),
                };
                let response = FailedResponse {
                    id: request_id,
                    object: "response",
                    status: "failed",
                    error,
                };
                (
                    "response.failed",
                    to_json(&ResponsesEvent {
                        kind: "response.failed",
                        response,
                    }),
                )
            }
            (_, Family::Anthropic) => ("error", self.body(Family::Anthropic, request_id)),
            (_, Family::OpenAi) => ("", self.body(Family::OpenAi, request_id)),
        };
        let mut event = Vec::with_capacity(data.len() + 32);
        if !name.is_empty() {
            event.extend_from_slice(format!("event: {name}\n").as_bytes());
        }
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(&data);
        event.extend_from_slice(b"\n\n");
        event
    }

    fn openai(&self) -> OpenAiError<'_> {
        let fact = self.code.fact();
        OpenAiError {
            message: self.message(),
            kind: fact.openai_type,
            param: self.param.as_deref(),
            code: fact.code,
            quota: self.quota.as_deref(),
        }
    }

    fn anthropic<'a>(&'a self, request_id: &'a str) -> Anthropic<'a> {
        let mut message = self.message();
        if let Some(param) = &self.param {
            message.insert_str(0, &format!("{param}: "));
        }
        let error = AnthropicError {
            kind: self.code.fact().anthropic_type,
            message,
        };
        Anthropic {
            kind: "error",
            error,
            request_id,
        }
    }
}

impl From<Code> for Answer {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

/// `1.2s`, `20ms`, `6m0s`: as clients of `Family::OpenAi` read it.
fn seconds(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => {
            let tenths = ms.div_ceil(100);
            format!("{}.{}s", tenths / 10, tenths % 10)
        }
        _ => {
            let seconds = ms.div_ceil(1000);
            format!("{}m{}s", seconds / 60, seconds % 60)
        }
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("errors are strings and integers")
}

#[derive(Serialize)]
struct OpenAi<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'a QuotaFacts>,
}

#[derive(Serialize)]
struct Anthropic<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError,
    request_id: &'a str,
}

#[derive(Serialize)]
struct AnthropicError {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

#[derive(Serialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    response: FailedResponse<'a>,
}

#[derive(Serialize)]
struct FailedResponse<'a> {
    id: &'a str,
    object: &'static str,
    status: &'static str,
    error: ResponsesError,
}

#[derive(Serialize)]
struct ResponsesError {
    code: &'static str,
    message: String,
}
