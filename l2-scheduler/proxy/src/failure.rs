//! How an attempt fails before the engine has answered, and what follows from it.

use std::time::Duration;

use bytes::Bytes;
use governance_context::Work;
use http::StatusCode;
use inference_wire::json::Document;
use scheduler_core::AttemptEnd;

use crate::answer::{Code, Problem};
use crate::flight::Cut;
use crate::upstream::SendError;

/// A failed attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// For the pool.
    pub(crate) end: AttemptEnd,
    /// For records and metrics.
    pub(crate) cause: &'static str,
    /// Whether another endpoint may be asked.
    pub(crate) retriable: bool,
    pub(crate) work: Work,
    code: Code,
    message: &'static str,
    retry_after: Option<Duration>,
    usage: Option<Bytes>,
}

impl Failure {
    /// The connection ended, or the answer, before any output.
    pub(crate) fn cut() -> Self {
        Self::failed("cut")
    }

    /// What came is no stream of events.
    pub(crate) fn unreadable() -> Self {
        Self::failed("unreadable")
    }

    /// 429 or 503: back-pressure, nothing against the endpoint.
    pub(crate) fn busy(retry_after: Option<Duration>) -> Self {
        Self {
            end: AttemptEnd::Busy,
            work: Work::None,
            code: Code::QueueFull,
            message: "every engine asked is busy; try again later",
            retry_after: Some(retry_after.unwrap_or(Duration::from_secs(1))),
            ..Self::failed("busy")
        }
    }

    /// An error status; with the body, if that reports usage.
    pub(crate) fn status(status: StatusCode, body: Option<Bytes>) -> Self {
        let cause = if status.is_server_error() {
            "server_error"
        } else {
            "unexpected_status"
        };
        Self {
            usage: body.and_then(|body| usage_member(&body)),
            ..Self::failed(cause)
        }
    }

    /// An error in place of the first output.
    pub(crate) fn error_event(status: Option<u16>) -> Self {
        match status {
            Some(429 | 503) => Self::busy(None),
            Some(_) | None => Self::failed("error_event"),
        }
    }

    pub(crate) fn from_cut(cut: Cut) -> Self {
        match cut {
            Cut::Hung => Self {
                code: Code::UpstreamTimeout,
                message: "the engine gave no answer in time",
                ..Self::failed(cut.as_str())
            },
            // Its client has waited as long as anyone may.
            Cut::Late | Cut::Silent => Self {
                code: Code::UpstreamTimeout,
                message: "the engine gave no answer in time",
                retriable: false,
                ..Self::failed(cut.as_str())
            },
            Cut::Shutdown => Self {
                end: AttemptEnd::ClientClosed,
                code: Code::ShuttingDown,
                message: "the scheduler is shutting down",
                retriable: false,
                ..Self::failed(cut.as_str())
            },
        }
    }

    /// What the client is told when no other endpoint is asked.
    pub(crate) fn problem(self) -> Problem {
        let mut problem = Problem::new(self.code, self.message);
        problem.retry_after = self.retry_after;
        problem.usage = self.usage;
        problem
    }

    fn failed(cause: &'static str) -> Self {
        Self {
            end: AttemptEnd::Failed,
            cause,
            retriable: true,
            work: Work::Prefill,
            code: Code::UpstreamError,
            message: "the engine failed before its answer was complete",
            retry_after: None,
            usage: None,
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(_) => Self {
                work: Work::None,
                ..Self::failed("connect")
            },
            SendError::Unsendable(_) => Self {
                work: Work::None,
                ..Self::failed("unsendable")
            },
            SendError::NoAnswer(_) => Self::cut(),
        }
    }
}

fn usage_member(body: &Bytes) -> Option<Bytes> {
    let span = Document::parse(body).ok()?.root().get("usage")?.span();
    Some(body.slice(span))
}
