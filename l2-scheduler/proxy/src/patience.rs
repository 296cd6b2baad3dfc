//! Answers for callers who want to hear of their wait: after a while in the queue the answer begins, with a comment every
//! second until the engine's own stream follows.
//!
//! Whoever did not ask for it keeps the status of its answer until there is one.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use governance_context::names;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use inference_wire::route::Route;
use scheduler_core::{Queued, RequestKey, Timestamp};
use tokio::sync::watch;

use crate::answer::{Code, Problem, whole_ms};
use crate::body::{Body, BodyError};
use crate::call::Call;
use crate::dispatcher::Dispatcher;
use crate::events::{self, Standing};
use crate::proxy::Shared;

/// The line is told so far; whoever stands behind hears only how long it has waited.
const TOLD: usize = 1024;
/// Of an engine's refusal this much is read; a longer one is no JSON that could be passed on.
const ERROR_BYTES: usize = 64 << 10;

type Line = Arc<HashMap<RequestKey, Queued>>;
type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Problem>> + Send>>;

/// Where everybody stands who wants to hear of it.
pub(crate) struct Board {
    line: watch::Sender<Line>,
}

/// A caller's wish in its request.
pub(crate) fn wants_comments(headers: &HeaderMap) -> bool {
    headers
        .get(names::QUEUE_COMMENTS)
        .is_some_and(|wish| wish == "1")
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            line: watch::Sender::new(Arc::default()),
        }
    }

    /// Looks at the line every so often while somebody wants to know. Never returns.
    pub(crate) async fn keep(
        self: Arc<Self>,
        dispatcher: Arc<Dispatcher>,
        every: std::time::Duration,
    ) {
        loop {
            tokio::time::sleep(every).await;
            if self.line.receiver_count() > 0 {
                let line = dispatcher.line(TOLD);
                let line = line.into_iter().map(|queued| (queued.request, queued));
                self.line.send_replace(Arc::new(line.collect()));
            }
        }
    }
}

/// Answers a call, and tells its caller how it stands if that takes long.
pub(crate) async fn answer(shared: &Arc<Shared>, call: Call) -> Response<Body> {
    let after = shared.config.comments.after;
    let (key, arrived, route) = (call.key(), call.arrived(), call.route().clone());
    let mut answering: Answering = Box::pin(call.outcome());
    loop {
        match tokio::time::timeout(after, &mut answering).await {
            Ok(outcome) => return outcome.unwrap_or_else(Problem::into_response),
            // What an engine works on keeps its status until the engine has answered.
            Err(_) if !shared.dispatcher.is_waiting(key) => {}
            Err(_) => break,
        }
    }
    let board = shared.board.line.subscribe();
    let now = shared.dispatcher.now();
    let wait = Wait {
        answering,
        board,
        dispatcher: Arc::clone(&shared.dispatcher),
        key,
        arrived,
    };
    let mut response = Response::new(Body::announced(Announced {
        route,
        state: State::Telling(wait.comment(), Some(Box::new(wait))),
    }));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(names::QUEUE_MS, whole_ms(now.since(arrived)).into());
    response
}

/// The body of an answer that began before the engine's. Dropped, the call is taken back.
pub(crate) struct Announced {
    route: Route,
    state: State,
}

enum State {
    /// This is to be told, and then there is more to wait for, or nothing.
    Telling(Bytes, Option<Box<Wait>>),
    Waiting(Pin<Box<dyn Future<Output = Step> + Send>>),
    /// The engine's own stream.
    Answer(Box<Body>),
    Over,
}

/// What a wait led to.
enum Step {
    Still(Box<Wait>),
    Stream(Box<Body>),
    Failed(Bytes),
}

struct Wait {
    answering: Answering,
    board: watch::Receiver<Line>,
    dispatcher: Arc<Dispatcher>,
    key: RequestKey,
    arrived: Timestamp,
}

impl Announced {
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            match &mut self.state {
                State::Telling(bytes, wait) => {
                    let bytes = std::mem::take(bytes);
                    self.state = match wait.take() {
                        Some(wait) => State::Waiting(Box::pin(wait.on(self.route.clone()))),
                        None => State::Over,
                    };
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                State::Waiting(step) => {
                    self.state = match ready!(step.as_mut().poll(context)) {
                        Step::Still(wait) => State::Telling(wait.comment(), Some(wait)),
                        Step::Stream(body) => State::Answer(body),
                        Step::Failed(event) => State::Telling(event, None),
                    };
                }
                State::Answer(body) => {
                    return http_body::Body::poll_frame(Pin::new(&mut **body), context);
                }
                State::Over => return Poll::Ready(None),
            }
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Answer(body) => http_body::Body::is_end_stream(&**body),
            State::Over => true,
            State::Telling(..) | State::Waiting(_) => false,
        }
    }
}

impl Wait {
    async fn on(mut self: Box<Self>, route: Route) -> Step {
        let outcome = tokio::select! {
            biased;
            outcome = &mut self.answering => outcome,
            Ok(()) = self.board.changed() => return Step::Still(self),
        };
        match outcome {
            Ok(response) => opened(&route, response).await,
            Err(problem) => Step::Failed(problem.event(&route)),
        }
    }

    fn comment(&self) -> Bytes {
        let standing = if self.dispatcher.is_waiting(self.key) {
            let queued = self.board.borrow().get(&self.key).copied();
            Standing::Waiting {
                position: queued.map(|queued| queued.position),
                wait: queued.and_then(|queued| queued.wait),
            }
        } else {
            Standing::Dispatched
        };
        let waited = self.dispatcher.now().since(self.arrived);
        events::comment(standing, waited)
    }
}

/// The engine's answer, after the status has been sent.
async fn opened(route: &Route, response: Response<Body>) -> Step {
    let (head, body) = response.into_parts();
    let is_stream = head
        .headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if head.status == StatusCode::OK && is_stream {
        return Step::Stream(Box::new(body));
    }
    let error = Beginning::read(body).await;
    if !head.status.is_success() {
        return Step::Failed(events::engine_error(route, head.status, &error));
    }
    let unexpected = Problem::new(Code::UpstreamError, "The engine answered without a stream");
    Step::Failed(unexpected.event(route))
}

/// As much of an engine's answer as is looked at, whatever its length.
pub(crate) struct Beginning {
    pub(crate) bytes: Vec<u8>,
    /// Whether that is all.
    pub(crate) whole: bool,
}

impl Beginning {
    async fn read(mut body: Body) -> Self {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Self {
                    bytes,
                    whole: false,
                };
            };
            let data = frame.into_data().unwrap_or_default();
            let room = ERROR_BYTES - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                return Self {
                    bytes,
                    whole: false,
                };
            }
        }
        Self { bytes, whole: true }
    }
}
