//! The life of one call: wait for a turn, ask the engine, and until its first output try another one.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use governance_context::{AttemptId, CacheDomain, Context, names};
use http::{HeaderValue, Request, Response, StatusCode, header};
use inference_wire::json::JsonError;
use inference_wire::route::Route;
use inference_wire::usage;
use scheduler_core::residency::Block;
use scheduler_core::{EndpointId, RequestKey, Targets, Timestamp};

use crate::answer::{Code, Problem, passed_headers, whole_ms};
use crate::body::Body;
use crate::dispatcher::{Booking, Turn};
use crate::facts::Facts;
use crate::failure::Failure;
use crate::flight::Flight;
use crate::forward::{attempt_value, engine_headers};
use crate::journey::Journey;
use crate::patience::wants_comments;
use crate::proxy::Shared;
use crate::refusal;
use crate::relay::{Relay, Verdict};
use crate::upstream::{Answer, AnswerBody, Outbound};
use crate::watch::{Seen, Watch};

/// Frames kept while a stream has said nothing yet: comments, and a Responses stream repeats its whole request first.
const SILENT_BYTES: usize = 4 << 20;
/// Of an engine's error this much is read, for its usage and to use the connection again.
const ERROR_BYTES: usize = 64 << 10;

/// A call that has not been answered.
pub(crate) struct Call {
    shared: Arc<Shared>,
    route: Route,
    attempt: AttemptId,
    /// Without its blocks: they go to the pool, and are read again in the rare case of a retry.
    request: scheduler_core::Request,
    blocks: Vec<Block>,
    cache_domain: CacheDomain,
    wants_comments: bool,
    outbound: Outbound,
    journey: Option<Box<Journey>>,
}

/// An engine has begun to answer: no other will be asked.
enum Opened {
    Stream {
        frames: VecDeque<Bytes>,
        watch: Box<Watch>,
        body: AnswerBody,
    },
    Whole {
        verdict: Verdict,
        body: AnswerBody,
    },
}

impl Call {
    /// Reads what the choice of an endpoint needs.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        context: &Context,
        route: Route,
        request: Request<Bytes>,
    ) -> Result<Self, Problem> {
        let (head, body) = request.into_parts();
        let mut facts = Facts::read(&route, &body, context.cache_domain.as_str())
            .map_err(|error| unreadable(&error))?;
        let journey = Journey::new(Arc::clone(shared), context, &route, &facts);
        Ok(Self {
            blocks: std::mem::take(&mut facts.blocks),
            cache_domain: context.cache_domain.clone(),
            request: scheduler_request(shared, context, facts, body.len(), journey.arrived()),
            attempt: context.attempt,
            wants_comments: wants_comments(&head.headers),
            outbound: Outbound {
                method: head.method,
                path: route.upstream_path(),
                headers: engine_headers(head.headers, context.attempt),
                body,
            },
            route,
            journey: Some(Box::new(journey)),
            shared: Arc::clone(shared),
        })
    }

    /// Carries out the call, whatever happens. Dropping the future takes it back everywhere.
    pub(crate) async fn outcome(mut self) -> Result<Response<Body>, Problem> {
        match self.ask_around().await {
            Ok(response) => Ok(response),
            Err((outcome, problem)) => {
                let journey = self.journey_mut();
                journey.over(outcome, Some(problem.code));
                let problem = problem.with_work(journey.work());
                Err(problem.queued(journey.queued()))
            }
        }
    }

    /// Whether the caller wants to hear of its wait, and an answer exists that could tell it.
    pub(crate) fn is_told(&self) -> bool {
        self.wants_comments && self.request.streaming
    }

    pub(crate) fn key(&self) -> RequestKey {
        self.request.key
    }

    pub(crate) fn arrived(&self) -> Timestamp {
        self.request.first_arrived.unwrap_or_default()
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    async fn ask_around(&mut self) -> Result<Response<Body>, (&'static str, Problem)> {
        let mut tries = 0;
        loop {
            let asked = self.shared.dispatcher.now();
            let booking = match self.turn().await {
                Turn::Go(booking) => booking,
                Turn::Refused(refusal) => {
                    let journey = self.journey_mut();
                    journey.refused(&refusal, asked);
                    let problem = refusal::problem(&refusal, journey.limit());
                    return Err((problem.code.as_str(), problem));
                }
            };
            let endpoint = booking.endpoint;
            let failure = match self.attempt(booking, asked).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            tries += 1;
            self.journey_mut().attempt_failed(&failure);
            if tries >= self.shared.config.attempts || !failure.retriable {
                return Err(("failed", failure.problem()));
            }
            self.shared.metrics.retry(failure.cause);
            self.prepare_retry(endpoint, tries);
        }
    }

    fn prepare_retry(&mut self, failed: EndpointId, tries: u32) {
        self.request.tried.push(failed);
        self.blocks = Facts::read(&self.route, &self.outbound.body, self.cache_domain.as_str())
            .map(|facts| facts.blocks)
            .unwrap_or_default();
        self.outbound
            .headers
            .insert(names::REQUEST_ID, attempt_value(self.attempt, tries));
    }

    async fn turn(&mut self) -> Turn {
        let request = scheduler_core::Request {
            blocks: std::mem::take(&mut self.blocks),
            ..self.request.clone()
        };
        self.journey_mut().waits();
        self.shared.dispatcher.arrive(Box::new(request)).await
    }

    async fn attempt(
        &mut self,
        booking: Booking,
        asked: Timestamp,
    ) -> Result<Response<Body>, Failure> {
        let endpoint = booking.endpoint;
        self.shared.picked(endpoint);
        let flight = Arc::clone(&booking.flight);
        self.journey_mut().attempt_begins(booking, asked);
        let (mut response, opened) = unless_cut(&flight, self.exchange(endpoint)).await?;
        let mut journey = self.journey.take().expect("a call is answered once");
        let queued = whole_ms(journey.queued());
        let headers = response.headers_mut();
        headers.insert(
            names::ENDPOINT,
            self.shared.endpoints[endpoint.0 as usize].label.clone(),
        );
        headers.insert(names::QUEUE_MS, HeaderValue::from(queued));
        let relay = match opened {
            Opened::Stream {
                frames,
                watch,
                body,
            } => {
                journey.first_output();
                Relay::stream(frames, watch, body, journey)
            }
            Opened::Whole { verdict, body } => {
                match verdict {
                    Verdict::Success => journey.whole_answer(),
                    Verdict::Rejected => journey.rejected(),
                }
                Relay::whole(self.route.clone(), verdict, body, journey)
            }
        };
        Ok(response.map(|()| Body::relay(relay)))
    }

    /// Sends the request and reads as far as it takes to know that this engine answers.
    async fn exchange(&mut self, endpoint: EndpointId) -> Result<(Response<()>, Opened), Failure> {
        let upstream = &self.shared.endpoints[endpoint.0 as usize].upstream;
        let answer = upstream.exchange(&self.outbound).await?;
        let status = answer.head.status;
        self.journey_mut().status(status);
        let events = is_event_stream(answer.head.headers.get(header::CONTENT_TYPE));
        if status.is_success() && self.request.streaming && events {
            return self.open_stream(answer).await;
        }
        let verdict = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let after = retry_after(answer.head.headers.get(header::RETRY_AFTER));
                answer.body.read_short(ERROR_BYTES).await;
                return Err(Failure::busy(after));
            }
            status if status.is_success() => Verdict::Success,
            status if status.is_client_error() => Verdict::Rejected,
            _ => {
                let body = answer.body.read_short(ERROR_BYTES).await;
                let reported = body.filter(|body| usage::from_body(&self.route, body).is_some());
                return Err(Failure::status(status, reported));
            }
        };
        let mut response = head(status, answer.head.headers);
        if verdict == Verdict::Rejected {
            let work = self.journey_mut().work().as_str();
            response
                .headers_mut()
                .insert(names::WORK, HeaderValue::from_static(work));
        }
        let opened = Opened::Whole {
            verdict,
            body: answer.body,
        };
        Ok((response, opened))
    }

    /// Headers prove nothing: the engine answers with its first event.
    async fn open_stream(&mut self, answer: Answer) -> Result<(Response<()>, Opened), Failure> {
        let mut watch = Box::new(Watch::new(self.route.clone()));
        let mut frames = VecDeque::new();
        let mut silent_bytes = 0;
        let Answer {
            head: parts,
            mut body,
        } = answer;
        loop {
            let Some(Ok(bytes)) = body.data().await else {
                return Err(Failure::cut());
            };
            let seen = watch.see(&bytes).map_err(|_| Failure::unreadable())?;
            silent_bytes += bytes.len();
            frames.push_back(bytes);
            match seen {
                Seen::Output => break,
                // Not the engine's fault, and no other would say otherwise.
                Seen::Error(Some(status)) if is_rejection(status) => break,
                Seen::Error(status) => return Err(Failure::error_event(status)),
                Seen::Nothing if silent_bytes > SILENT_BYTES => return Err(Failure::unreadable()),
                Seen::Nothing => {}
            }
        }
        let opened = Opened::Stream {
            frames,
            watch,
            body,
        };
        Ok((head(parts.status, parts.headers), opened))
    }

    fn journey_mut(&mut self) -> &mut Journey {
        self.journey.as_mut().expect("a call is answered once")
    }
}

fn unreadable(error: &JsonError) -> Problem {
    let code = match error {
        JsonError::DuplicateKey { .. } => Code::DuplicateKey,
        JsonError::Syntax { .. }
        | JsonError::Utf8 { .. }
        | JsonError::TooDeep { .. }
        | JsonError::TooComplex { .. }
        | JsonError::TooLong { .. } => Code::InvalidJson,
    };
    Problem::new(code, error.to_string())
}

fn scheduler_request(
    shared: &Shared,
    context: &Context,
    facts: Facts,
    body_bytes: usize,
    arrived: Timestamp,
) -> scheduler_core::Request {
    scheduler_core::Request {
        key: shared.dispatcher.next_key(),
        model: facts.model,
        fairness: context.fairness.clone(),
        band: context.band,
        weight: context.weight,
        prompt_tokens: context.prompt_tokens,
        output_bound: context.output_bound,
        blocks: Vec::new(),
        streaming: facts.stream,
        bytes: body_bytes as u64,
        expires_at: Some(arrived + Duration::from_millis(context.ttl_ms)),
        targets: Targets {
            ttft: millis(context.targets.ttft_ms),
            tpot: millis(context.targets.tpot_ms),
        },
        first_arrived: Some(arrived),
        tried: Vec::new(),
    }
}

fn millis(target: Option<u32>) -> Option<Duration> {
    target.map(|ms| Duration::from_millis(u64::from(ms)))
}

/// Runs `work` until it is done or the attempt is cut; then dropping it closes the connection.
async fn unless_cut<T>(
    flight: &Flight,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        flight
            .poll_cut(context)
            .map(|cut| Err(Failure::from_cut(cut)))
    })
    .await
}

fn head(status: StatusCode, headers: http::HeaderMap) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = passed_headers(headers);
    response
}

fn is_event_stream(content_type: Option<&HeaderValue>) -> bool {
    content_type.is_some_and(|value| {
        let value = value.as_bytes();
        value.len() >= EVENT_STREAM.len()
            && value[..EVENT_STREAM.len()].eq_ignore_ascii_case(EVENT_STREAM)
    })
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// A client's fault. Too many requests and time-outs are not.
fn is_rejection(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 429)
}

/// Seconds; a date is not worth parsing here.
fn retry_after(value: Option<&HeaderValue>) -> Option<Duration> {
    let seconds = value?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
