//! One call of L2: the attempt itself, until there is an answer that can be judged.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use governance_context::Context;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http_body_util::BodyExt;
use inference_wire::gather::Gather;

use crate::body::{BoxBody, BoxError};
use crate::scheduler::{Reached, Scheduler};

/// What came back.
pub(crate) enum Reply {
    /// A stream of events has begun; it may still fail before its first data.
    Stream(Parts, BoxBody),
    /// A whole answer, of any status.
    Whole(Parts, Bytes),
    /// No answer.
    Failed(Failure),
}

/// Why there is no answer, or only a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing was sent: certainly no work.
    NotReached,
    /// The connection broke before there was an answer.
    Lost,
    /// The answer broke off.
    Cut,
    /// Silence for too long.
    TimedOut,
    /// The answer is larger than the limit.
    TooLarge,
    /// The scheduler panicked.
    Panicked,
}

/// A call in progress. Dropping it cancels the attempt.
pub(crate) type Call = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// What an answer may take.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    pub(crate) silence: Duration,
    pub(crate) bytes: usize,
}

pub(crate) fn call<S: Scheduler>(
    scheduler: Arc<S>,
    context: Context,
    request: http::Request<Bytes>,
    allowance: Allowance,
) -> Call {
    Box::pin(async move {
        let called = guarded(scheduler.call(&context, request));
        let response = match tokio::time::timeout(allowance.silence, called).await {
            Err(_) => return Reply::Failed(Failure::TimedOut),
            Ok(None) => return Reply::Failed(Failure::Panicked),
            Ok(Some(Err(unreachable))) => {
                tracing::warn!(error = %unreachable.source, "the scheduler did not answer");
                return Reply::Failed(match unreachable.reached {
                    Reached::No => Failure::NotReached,
                    Reached::Perhaps => Failure::Lost,
                });
            }
            Ok(Some(Ok(response))) => response,
        };
        let (parts, body) = response.into_parts();
        let mut body: BoxBody = Box::pin(body);
        if parts.status.is_success() && is_event_stream(&parts) {
            return Reply::Stream(parts, body);
        }
        match whole(&mut body, allowance).await {
            Ok(bytes) => Reply::Whole(parts, bytes),
            Err(failure) => Reply::Failed(failure),
        }
    })
}

fn is_event_stream(parts: &Parts) -> bool {
    let kind = parts
        .headers
        .get(CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes);
    kind.is_some_and(|kind| {
        kind.get(..17)
            .is_some_and(|k| k.eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// Reads a body to its end.
async fn whole(body: &mut BoxBody, allowance: Allowance) -> Result<Bytes, Failure> {
    let mut gather = Gather::new(allowance.bytes, 0).expect("nothing is announced");
    loop {
        let frame = tokio::time::timeout(allowance.silence, guarded(body.frame())).await;
        match frame {
            Err(_) => return Err(Failure::TimedOut),
            Ok(None) => return Err(Failure::Panicked),
            Ok(Some(None)) => return Ok(gather.finish()),
            Ok(Some(Some(Err(error)))) => {
                log_cut(&error);
                return Err(Failure::Cut);
            }
            Ok(Some(Some(Ok(frame)))) => {
                // Trailers carry nothing that is read here.
                if let Ok(data) = frame.into_data() {
                    gather.push(data).map_err(|_| Failure::TooLarge)?;
                }
            }
        }
    }
}

pub(crate) fn log_cut(error: &BoxError) {
    tracing::warn!(%error, "an answer of the scheduler broke off");
}

/// `None` if the future panics: the request fails, the process and its other requests go on.
pub(crate) async fn guarded<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        let poll = || future.as_mut().poll(context);
        match std::panic::catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Some),
            Err(_panic) => std::task::Poll::Ready(None),
        }
    })
    .await
}
