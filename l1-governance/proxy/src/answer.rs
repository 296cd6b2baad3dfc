//! What L2 and the engines answered, judged: how the hold ends, and what the client gets.

use bytes::Bytes;
use governance_context::{Work, names};
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::sanitize::headers;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{HeaderMap, Response};
use inference_wire::route::Route;
use inference_wire::usage::from_body;

use crate::body::Body;
use crate::call::Failure;
use crate::ending::End;
use crate::exchange::Exchange;
use crate::record::Scheduling;
use crate::respond::{EngineError, Refused, scrub};

/// Notes what L2 says about the attempt in its headers.
pub(crate) fn note_scheduling(scheduling: &mut Scheduling, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    scheduling.endpoint = text(names::ENDPOINT).map(str::to_owned);
    scheduling.queue_ms = text(names::QUEUE_MS).and_then(|ms| ms.parse().ok());
}

/// A whole answer: settles the hold by it, and makes it the client's.
pub(crate) fn whole(
    exchange: &mut Exchange,
    route: &Route,
    mut parts: Parts,
    bytes: Bytes,
) -> Result<Response<Body>, Refused> {
    note_scheduling(&mut exchange.record.scheduling, &parts.headers);
    if !parts.status.is_success() {
        return Err(refusal(exchange, route, &parts, &bytes));
    }
    exchange.first_data();
    exchange.settle_usage(from_body(route, &bytes), End::Complete, bytes.len());
    exchange.answered(parts.status.as_u16(), "ok");
    parts.headers = headers::answer(&parts.headers);
    exchange.tell_lead(&mut parts.headers);
    parts.extensions.clear();
    parts.version = http::Version::HTTP_11;
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// A whole answer after the status of a stream was sent: whatever it is, the stream has failed.
pub(crate) fn late(
    exchange: &mut Exchange,
    route: &Route,
    parts: &Parts,
    bytes: &Bytes,
) -> Refused {
    note_scheduling(&mut exchange.record.scheduling, &parts.headers);
    if parts.status.is_success() {
        exchange.settle_usage(from_body(route, bytes), End::Complete, bytes.len());
        return Refused::what(Code::UpstreamError, "The engine answered without a stream");
    }
    refusal(exchange, route, parts, bytes)
}

/// An error of L2 or of an engine.
fn refusal(exchange: &mut Exchange, route: &Route, parts: &Parts, bytes: &Bytes) -> Refused {
    let text = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let status = parts.status.as_u16();
    let reason = text(names::REASON);
    let said = text(names::WORK).and_then(Work::parse);
    let own = reason.and_then(Code::parse);
    let work = said.or_else(|| own.filter(|code| certainly_idle(*code)).map(|_| Work::None));
    let end = match work {
        Some(Work::None) => End::NoWork,
        // A failure L2 describes as work done is not the engine's refusal, whatever its status.
        Some(Work::Prefill | Work::Partial) => End::EngineError(status.max(500)),
        None if reason.is_some() => End::EngineError(502),
        None => End::EngineError(status),
    };
    exchange.settle_usage(from_body(route, bytes), end, 0);
    let refused = match own {
        Some(code) => scheduler_refusal(code, &parts.headers, bytes),
        None => Refused::from_engine(EngineError::read(status, &parts.headers, bytes)),
    };
    match work {
        Some(work) => refused.after(work),
        None => refused,
    }
}

/// What an error inside a stream says, if it is a refusal L2 makes before anything runs.
pub(crate) fn late_refusal(object: &[u8]) -> Option<Refused> {
    let value: serde_json::Value = serde_json::from_slice(object).ok()?;
    let error = value.get("error").unwrap_or(&value);
    let code = Code::parse(error.get("code")?.as_str()?).filter(|code| certainly_idle(*code))?;
    let mut fault = Fault::new(code);
    if let Some(message) = error.get("message").and_then(serde_json::Value::as_str) {
        fault = fault.what(scrub(first_sentence(message).trim_end_matches('.')));
    }
    if let Some(ms) = error
        .get("retry_after_ms")
        .and_then(serde_json::Value::as_u64)
    {
        fault = fault.retry_after_ms(ms);
    }
    Some(fault.into())
}

/// Refusals L2 makes before anything runs.
fn certainly_idle(code: Code) -> bool {
    matches!(
        code,
        Code::QueueFull
            | Code::QueueWait
            | Code::Shed
            | Code::OverQuota
            | Code::QueueExpired
            | Code::Displaced
            | Code::NoEndpoint
            | Code::ShuttingDown
            | Code::ContextInvalid
    )
}

fn scheduler_refusal(code: Code, headers: &HeaderMap, bytes: &Bytes) -> Refused {
    let number = |name: &str| -> Option<u64> {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())?
            .parse()
            .ok()
    };
    let after_ms = number("retry-after-ms")
        .or_else(|| number(RETRY_AFTER.as_str()).map(|seconds| seconds.saturating_mul(1000)));
    // A context L2 does not accept is our fault, and not the caller's key's.
    let code = if code == Code::ContextInvalid {
        let why = own_message(bytes).unwrap_or_default();
        tracing::error!(code = code.as_str(), %why, "the scheduler does not accept our context: both must have the same context keys");
        Code::Internal
    } else {
        code
    };
    let mut fault = Fault::new(code);
    if let Some(message) = own_message(bytes).filter(|_| code != Code::Internal) {
        fault = fault.what(scrub(message.trim_end_matches('.')));
    }
    if let Some(ms) = after_ms {
        fault = fault.retry_after_ms(ms);
    }
    fault.into()
}

/// The first sentence of L2's message; the rest is advice that the catalogue gives again.
fn own_message(bytes: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let message = value.get("error")?.get("message")?.as_str()?;
    let first = first_sentence(message);
    (!first.is_empty()).then(|| first.to_owned())
}

fn first_sentence(message: &str) -> &str {
    message.split_once(". ").map_or(message, |(first, _)| first)
}

/// No answer, or only a part of one: how the hold ends and what the client is told.
pub(crate) fn failure(failure: Failure) -> (End, Refused) {
    let upstream = |what: &str| Refused::what(Code::UpstreamError, what);
    match failure {
        Failure::NotReached => {
            let fault = Fault::new(Code::NoEndpoint).what("The scheduler is not reachable");
            (
                End::NotReached,
                Refused::from(fault.retry_after_ms(1000)).after(Work::None),
            )
        }
        Failure::Lost => (End::Cut, upstream("The connection to the scheduler broke")),
        Failure::Cut => (End::Cut, upstream("The answer of the engine broke off")),
        Failure::TooLarge => (
            End::Cut,
            upstream("The answer of the engine is larger than the limit"),
        ),
        Failure::TimedOut => (End::TimedOut, Code::UpstreamTimeout.into()),
        Failure::Panicked => (End::Panicked, Code::Internal.into()),
    }
}
