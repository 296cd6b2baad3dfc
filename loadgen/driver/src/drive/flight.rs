//! Sends one request and follows it to its end. Shell.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use inference_wire::usage;
use tokio::time::{Instant, timeout};

use super::Tenant;
use super::body::Api;
use super::outcome::{Answer, End, Failure, Outcome, checked_code, error_code};
use super::reading::{Reading, Step};
use super::wire::{Site, Wire};

/// A request ready to go.
pub(super) struct Departure {
    /// Since the start of the load.
    pub(super) at: Duration,
    pub(super) due: Instant,
    pub(super) tenant: Tenant,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// The client leaves once it has seen more events with output than this.
    pub(super) leave_after: Option<u32>,
    pub(super) timeout: Duration,
    pub(super) api: Api,
    pub(super) body: Bytes,
}

/// What comes back: the outcome, and the connection if it can be used again.
pub(super) struct Landing {
    pub(super) outcome: Outcome,
    pub(super) wire: Option<Wire>,
}

/// The longest answer that is read whole; a stream has no such bound.
const MOST_BODY: usize = 4 << 20;

pub(super) async fn fly(departure: Departure, idle: Option<Wire>, site: Arc<Site>) -> Landing {
    let due = departure.due;
    let lag = due.elapsed();
    let mut waited = None;
    let follow = follow(&departure, idle, &site, &mut waited);
    let (end, wire) = match timeout(departure.timeout, follow).await {
        Ok(landed) => landed,
        Err(_) => (End::Failed(Failure::Timeout), None),
    };
    Landing {
        outcome: Outcome {
            tenant: departure.tenant.name,
            band: departure.tenant.band,
            prompt_tokens: departure.prompt_tokens,
            output_tokens: departure.output_tokens,
            at: departure.at,
            lag,
            waited,
            ended: due.elapsed(),
            end,
        },
        wire,
    }
}

async fn follow(
    departure: &Departure,
    idle: Option<Wire>,
    site: &Site,
    waited: &mut Option<Duration>,
) -> (End, Option<Wire>) {
    let (mut wire, response) = match respond(departure, idle, site).await {
        Ok(responded) => responded,
        Err(failure) => return (End::Failed(failure), None),
    };
    *waited = told_wait(response.headers());
    let status = response.status();
    let streams = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let end = if status.is_success() && streams {
        follow_stream(departure, &mut wire, response).await
    } else {
        read_whole(departure, &mut wire, response).await
    };
    // After anything but a complete answer there may be more to come on the connection.
    let reusable = matches!(end, End::Completed(_) | End::Refused { .. });
    (end, reusable.then_some(wire))
}

/// Gets the head of the answer. A kept connection may have been closed by the server at the same moment; then the
/// request goes again on a new one.
async fn respond(
    departure: &Departure,
    idle: Option<Wire>,
    site: &Site,
) -> Result<(Wire, Response<Incoming>), Failure> {
    if let Some(mut wire) = idle {
        match wire.send(request(departure, site)).await {
            Ok(response) => return Ok((wire, response)),
            Err(error) if error.is_canceled() || error.is_incomplete_message() => {}
            Err(_) => return Err(Failure::Cut),
        }
    }
    let mut wire = site.connect().await.map_err(|_| Failure::Connect)?;
    let response = wire
        .send(request(departure, site))
        .await
        .map_err(|_| Failure::Cut)?;
    Ok((wire, response))
}

fn request(departure: &Departure, site: &Site) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(departure.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = format!("{}{}", site.base, departure.api.path())
        .parse()
        .expect("a parsed base and a plain path");
    let headers = request.headers_mut();
    headers.insert(HOST, site.authority.clone());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static("headpond-load"));
    if let Some(key) = &departure.tenant.key {
        headers.insert(AUTHORIZATION, key.0.clone());
    }
    request
}

/// How long a request waited for an engine, where the server tells.
fn told_wait(headers: &HeaderMap) -> Option<Duration> {
    let told = headers.get("x-headpond-queue-ms")?.to_str().ok()?;
    told.parse().ok().map(Duration::from_millis)
}

async fn follow_stream(
    departure: &Departure,
    wire: &mut Wire,
    response: Response<Incoming>,
) -> End {
    if departure.leave_after == Some(0) {
        return End::Left;
    }
    let mut reading = Reading::new(departure.api.route(), departure.leave_after);
    let mut body = response.into_body();
    loop {
        match wire.read(&mut body).await {
            Ok(Some(bytes)) => match reading.push(departure.due.elapsed(), &bytes) {
                Step::ReadOn => {}
                Step::Leave => return End::Left,
                Step::Fail(failure) => return End::Failed(failure),
            },
            Ok(None) => break,
            Err(_) => return End::Failed(Failure::Cut),
        }
    }
    reading.end().map_or_else(End::Failed, End::Completed)
}

async fn read_whole(departure: &Departure, wire: &mut Wire, response: Response<Incoming>) -> End {
    let status = response.status();
    let reason = response
        .headers()
        .get("x-headpond-reason")
        .and_then(|reason| checked_code(reason.as_bytes()));
    let mut body = response.into_body();
    let mut whole = Vec::new();
    loop {
        match wire.read(&mut body).await {
            Ok(Some(bytes)) if whole.len() + bytes.len() <= MOST_BODY => {
                whole.extend_from_slice(&bytes);
            }
            Ok(Some(_)) => return End::Failed(Failure::Unreadable),
            Ok(None) => break,
            Err(_) => return End::Failed(Failure::Cut),
        }
    }
    if status.is_success() {
        let usage = usage::from_body(&departure.api.route(), &whole);
        return End::Completed(Answer {
            usage,
            ..Answer::default()
        });
    }
    refused(status, reason.or_else(|| error_code(&whole)))
}

fn refused(status: StatusCode, code: Option<String>) -> End {
    End::Refused {
        status: status.as_u16(),
        code: code.unwrap_or_else(|| "no_code".to_owned()),
    }
}
