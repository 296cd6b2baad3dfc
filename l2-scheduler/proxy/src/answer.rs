//! What L2 answers itself, and what of an engine's answer it lets through. The one place where refusals become HTTP.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use governance_context::{Work, names};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::body::Body;

#[cfg(test)]
mod tests;

/// Headers of an engine's answer that pass. Everything else may name internal hosts, and is dropped.
const PASSED: [HeaderName; 8] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-should-retry"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("openai-processing-ms"),
];

/// Why L2 answers instead of an engine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) message: Cow<'static, str>,
    pub(crate) retry_after: Option<Duration>,
    /// What engines may have computed all the same.
    pub(crate) work: Work,
    /// How long the request waited for its turn.
    pub(crate) queued: Duration,
    /// The `usage` member of an engine's error, as it was written.
    pub(crate) usage: Option<Bytes>,
}

/// The stable codes L2 uses; all stand in the error catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    QueueFull,
    QueueWait,
    Shed,
    OverQuota,
    QueueExpired,
    Displaced,
    NoEndpoint,
    ShuttingDown,
    UpstreamError,
    UpstreamTimeout,
    ContextInvalid,
    InvalidRequest,
    RequestTimeout,
    InvalidJson,
    DuplicateKey,
    RequestTooLarge,
    NotFound,
    ModelNotFound,
    MethodNotAllowed,
}

impl Code {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::QueueWait => "queue_wait",
            Self::Shed => "shed",
            Self::OverQuota => "over_quota",
            Self::QueueExpired => "queue_expired",
            Self::Displaced => "displaced",
            Self::NoEndpoint => "no_endpoint",
            Self::ShuttingDown => "shutting_down",
            Self::UpstreamError => "upstream_error",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::ContextInvalid => "context_invalid",
            Self::InvalidRequest => "invalid_request",
            Self::RequestTimeout => "request_timeout",
            Self::InvalidJson => "invalid_json",
            Self::DuplicateKey => "duplicate_key",
            Self::RequestTooLarge => "request_too_large",
            Self::NotFound => "not_found",
            Self::ModelNotFound => "model_not_found",
            Self::MethodNotAllowed => "method_not_allowed",
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::QueueFull
            | Self::QueueWait
            | Self::Shed
            | Self::OverQuota
            | Self::QueueExpired
            | Self::Displaced => StatusCode::TOO_MANY_REQUESTS,
            Self::NoEndpoint | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamError => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::ContextInvalid => StatusCode::UNAUTHORIZED,
            Self::InvalidRequest | Self::InvalidJson | Self::DuplicateKey => {
                StatusCode::BAD_REQUEST
            }
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotFound | Self::ModelNotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl Problem {
    /// A problem that reached no engine.
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after: None,
            work: Work::None,
            queued: Duration::ZERO,
            usage: None,
        }
    }

    #[must_use]
    pub(crate) fn retry_after(self, after: Duration) -> Self {
        Self {
            retry_after: Some(after),
            ..self
        }
    }

    #[must_use]
    pub(crate) fn with_work(self, work: Work) -> Self {
        Self { work, ..self }
    }

    #[must_use]
    pub(crate) fn queued(self, queued: Duration) -> Self {
        Self { queued, ..self }
    }

    /// The OpenAI-shaped answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::whole(Bytes::from(self.json())));
        *response.status_mut() = self.code.status();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(names::REASON, HeaderValue::from_static(self.code.as_str()));
        headers.insert(names::WORK, HeaderValue::from_static(self.work.as_str()));
        headers.insert(names::QUEUE_MS, whole_ms(self.queued).into());
        if let Some(after) = self.retry_after {
            let ms = whole_ms(after);
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(ms.div_ceil(1000).max(1)),
            );
            headers.insert("retry-after-ms", HeaderValue::from(ms.max(1)));
        }
        response
    }

    fn json(&self) -> String {
        let error = serde_json::json!({
            "message": self.message,
            "type": self.code.kind(),
            "param": null,
            "code": self.code.as_str(),
        });
        match self
            .usage
            .as_deref()
            .and_then(|raw| std::str::from_utf8(raw).ok())
        {
            Some(usage) => format!(r#"{{"error":{error},"usage":{usage}}}"#),
            None => format!(r#"{{"error":{error}}}"#),
        }
    }
}

/// Whole milliseconds, as headers state them.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The headers of an engine's answer that may leave.
pub(crate) fn passed_headers(mut upstream: HeaderMap) -> HeaderMap {
    let mut passed = HeaderMap::with_capacity(8);
    for name in PASSED {
        if let Some(value) = upstream.remove(&name) {
            passed.insert(name, value);
        }
    }
    passed
}
