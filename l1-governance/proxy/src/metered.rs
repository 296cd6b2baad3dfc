//! The body of a streamed answer: forwards, meters beside, keeps the connection alive while L2 is
//! silent, and ends with an error of the right family when something breaks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use governance_context::RequestId;
use governance_core::catalogue::{Answer as Fault, Code};
use http::response::Parts;
use http_body::Frame;
use inference_wire::route::Route;
use inference_wire::usage::Meter;
use tokio::time::{Instant, Sleep};

use crate::answer;
use crate::body::{BoxBody, BoxError};
use crate::call::{Call, Failure, Reply, log_cut};
use crate::closing::Notice;
use crate::ending::End;
use crate::exchange::Exchange;
use crate::respond::{EngineError, Refused};
use crate::sieve::{Sieve, Sifted, StreamFailure, Wanted};

const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// A streamed answer.
pub(crate) struct Metered {
    source: Source,
    sieve: Sieve,
    exchange: Box<Exchange>,
    route: Route,
    request: RequestId,
    /// Counts into nothing once the hold is settled.
    spare: Meter,
    /// Bytes that are ready for the client.
    ready: Option<Bytes>,
    quiet: Quiet,
    notice: Notice,
}

enum Source {
    /// L2 has not answered.
    Calling(Call),
    /// It streams.
    Open(BoxBody),
    /// Nothing follows what is in `ready`.
    Over,
}

/// What an attempt to get the first data led to.
pub(crate) enum First {
    /// There is data: the stream can go to the client.
    Data,
    /// A whole answer came in place of a stream.
    Whole(Parts, Bytes),
    /// It failed before there was any data.
    Refused(Refused),
}

impl Metered {
    pub(crate) fn new(exchange: Box<Exchange>, call: Call, route: Route, wanted: Wanted) -> Self {
        let timeouts = &exchange.shared.config.timeouts;
        let quiet = Quiet::new(timeouts.keep_alive_every, timeouts.answer);
        let notice = Notice::of(&exchange.shared.closing);
        Self {
            source: Source::Calling(call),
            sieve: Sieve::new(route.clone(), wanted),
            request: exchange.record.request,
            exchange,
            route,
            spare: Meter::new(),
            ready: None,
            quiet,
            notice,
        }
    }

    pub(crate) fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }

    pub(crate) fn into_exchange(self) -> Box<Exchange> {
        self.exchange
    }

    /// Says something at once, so that everyone on the way sees a living connection.
    pub(crate) fn greet(&mut self) {
        self.ready = Some(KEEP_ALIVE);
        self.quiet.sent();
    }

    /// Waits for the first data, or for a failure that can still have a status of its own.
    pub(crate) fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<First> {
        if let Some(refused) = self.close_early(context) {
            return Poll::Ready(First::Refused(refused));
        }
        loop {
            match &mut self.source {
                Source::Calling(call) => match ready!(call.as_mut().poll(context)) {
                    Reply::Stream(parts, body) => self.opened(&parts, body),
                    Reply::Whole(parts, bytes) => return Poll::Ready(First::Whole(parts, bytes)),
                    Reply::Failed(failure) => {
                        return Poll::Ready(First::Refused(self.failed(failure)));
                    }
                },
                Source::Open(_) => match ready!(self.poll_source(context)) {
                    Ok(true) => return Poll::Ready(First::Data),
                    // A comment about the wait is what the caller asked for.
                    Ok(false) if self.exchange.tells_wait && self.ready.is_some() => {
                        return Poll::Ready(First::Data);
                    }
                    Ok(false) => {}
                    // What came with the error is already an answer: the error ends it.
                    Err(refused) if self.ready.is_some() => {
                        self.close_with(&refused);
                        return Poll::Ready(First::Data);
                    }
                    Err(refused) => return Poll::Ready(First::Refused(refused)),
                },
                Source::Over => return Poll::Ready(First::Data),
            }
        }
    }

    fn opened(&mut self, parts: &Parts, body: BoxBody) {
        answer::note_scheduling(&mut self.exchange.record.scheduling, &parts.headers);
        self.source = Source::Open(body);
    }

    /// Takes the next piece of an open stream; whether it held data. An error has been settled.
    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Refused>> {
        let Source::Open(body) = &mut self.source else {
            return Poll::Ready(Ok(true));
        };
        let frame = match poll_guarded(body, context) {
            Poll::Pending => {
                if self.quiet.is_lost(context) {
                    return Poll::Ready(Err(self.failed(Failure::TimedOut)));
                }
                return Poll::Pending;
            }
            Poll::Ready(frame) => frame,
        };
        self.quiet.heard();
        let sifted = match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => self.sieve.push(&data, self.exchange.meter(&mut self.spare)),
                Err(_trailers) => return Poll::Ready(Ok(false)),
            },
            Some(Err(Some(error))) => {
                log_cut(&error);
                return Poll::Ready(Err(self.failed(Failure::Cut)));
            }
            Some(Err(None)) => return Poll::Ready(Err(self.failed(Failure::Panicked))),
            None => return Poll::Ready(self.ended()),
        };
        Poll::Ready(self.take(sifted))
    }

    fn take(&mut self, sifted: Sifted) -> Result<bool, Refused> {
        if sifted.complete && sifted.failure.is_none() {
            self.exchange.settle(End::Complete);
            self.exchange.answered(200, "ok");
        }
        if !sifted.forward.is_empty() {
            self.ready = Some(sifted.forward);
        }
        match sifted.failure {
            None if sifted.data => {
                self.exchange.first_data();
                Ok(true)
            }
            None => Ok(false),
            Some(StreamFailure::Engine { status, object }) => {
                if let Some(refused) = self.no_turn(&object) {
                    return Err(refused);
                }
                let error = EngineError::in_stream(status, &object);
                self.exchange.settle(End::EngineError(error.status));
                Err(Refused::from_engine(error))
            }
            Some(StreamFailure::Unreadable(error)) => {
                self.exchange.settle(End::Cut);
                Err(Refused::what(
                    Code::UpstreamError,
                    format!("The engine's stream is unreadable: {error}"),
                ))
            }
        }
    }

    /// A refusal of L2 after it had begun to tell of the wait: nothing ran.
    fn no_turn(&mut self, object: &[u8]) -> Option<Refused> {
        let has_begun = self.exchange.record.timing.first_data_us.is_some();
        if has_begun || !self.exchange.tells_wait {
            return None;
        }
        let refused = answer::late_refusal(object)?;
        self.exchange.settle(End::NoWork);
        Some(refused)
    }

    /// L2 ended the stream.
    fn ended(&mut self) -> Result<bool, Refused> {
        let rest = self.sieve.finish(self.exchange.meter(&mut self.spare));
        let data = self.take(rest)?;
        let finished = self
            .exchange
            .attempt()
            .is_some_and(|attempt| attempt.meter.finished());
        if finished {
            self.exchange.settle(End::Complete);
        }
        if self.exchange.attempt().is_some() {
            return Err(self.failed(Failure::Cut));
        }
        self.exchange.answered(200, "ok");
        self.source = Source::Over;
        Ok(data || self.ready.is_some())
    }

    fn failed(&mut self, failure: Failure) -> Refused {
        let (end, refused) = answer::failure(failure);
        self.exchange.settle(end);
        refused
    }

    /// Ends what is still open when the process does. It is settled as if the client had left.
    fn close_early(&mut self, context: &mut Context<'_>) -> Option<Refused> {
        let over = matches!(self.source, Source::Over);
        if over || !self.notice.is_due(&self.exchange.shared.closing, context) {
            return None;
        }
        self.source = Source::Over;
        if self.exchange.record.outcome.is_some() {
            return None;
        }
        self.exchange.leave();
        Some(Fault::new(Code::ShuttingDown).retry_after_ms(1000).into())
    }

    /// The stream cannot go on; its status is sent. What came before the error comes before it.
    fn close_with(&mut self, refused: &Refused) {
        self.exchange.refused(refused);
        let event = match &refused.engine {
            Some(engine) => engine.event(&self.route, &self.request.to_string()),
            None => refused.fault.event(&self.route, &self.request.to_string()),
        };
        self.ready = Some(match self.ready.take() {
            Some(before) => Bytes::from([&before[..], &event[..]].concat()),
            None => Bytes::from(event),
        });
        self.source = Source::Over;
    }

    /// Moves on until there is something for the client; `None` when nothing follows.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(refused) = self.close_early(context) {
            self.close_with(&refused);
        }
        loop {
            if let Some(bytes) = self.ready.take() {
                self.quiet.sent();
                return Poll::Ready(Some(bytes));
            }
            let step = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::Calling(call) => match call.as_mut().poll(context) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Reply::Stream(parts, body)) => {
                        self.opened(&parts, body);
                        Poll::Ready(Ok(false))
                    }
                    Poll::Ready(Reply::Whole(parts, bytes)) => Poll::Ready(Err(answer::late(
                        &mut self.exchange,
                        &self.route,
                        &parts,
                        &bytes,
                    ))),
                    Poll::Ready(Reply::Failed(failure)) => Poll::Ready(Err(self.failed(failure))),
                },
                Source::Open(_) => self.poll_source(context),
            };
            match step {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(refused)) => self.close_with(&refused),
                Poll::Pending if self.quiet.is_long(context) => self.ready = Some(KEEP_ALIVE),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

type Piece = Option<Result<Frame<Bytes>, Option<BoxError>>>;

/// Polls L2's body; a panic inside is an error without a source.
fn poll_guarded(body: &mut BoxBody, context: &mut Context<'_>) -> Poll<Piece> {
    let poll = || body.as_mut().poll_frame(context);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)) {
        Ok(poll) => poll.map(|frame| frame.map(|frame| frame.map_err(Some))),
        Err(_panic) => Poll::Ready(Some(Err(None))),
    }
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_ready(context)
            .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Over) && self.ready.is_none()
    }
}

/// Silence, in both directions. One timer serves both: it looks at what happened since it was set,
/// so that a piece of the stream costs no timer. Silence begins when there is nothing more to do, so
/// that a piece costs no look at the clock either.
struct Quiet {
    timer: Pin<Box<Sleep>>,
    every: Duration,
    limit: Duration,
    sent: Since,
    heard: Since,
}

/// Since when it is quiet.
enum Since {
    /// It has not been quiet since something came.
    Now,
    At(Instant),
}

impl Since {
    fn begin(&mut self) -> Instant {
        match self {
            Self::At(at) => *at,
            Self::Now => {
                let now = Instant::now();
                *self = Self::At(now);
                now
            }
        }
    }
}

impl Quiet {
    fn new(every: Duration, limit: Duration) -> Self {
        let now = Instant::now();
        let timer = Box::pin(tokio::time::sleep_until(now + every.min(limit)));
        Self {
            timer,
            every,
            limit,
            sent: Since::At(now),
            heard: Since::At(now),
        }
    }

    fn sent(&mut self) {
        self.sent = Since::Now;
    }

    fn heard(&mut self) {
        self.heard = Since::Now;
    }

    /// Whether L2 has said nothing for too long.
    fn is_lost(&mut self, context: &mut Context<'_>) -> bool {
        self.tick(context);
        self.heard.begin().elapsed() >= self.limit
    }

    /// Whether the client has heard nothing for too long.
    fn is_long(&mut self, context: &mut Context<'_>) -> bool {
        self.tick(context);
        self.sent.begin().elapsed() >= self.every
    }

    /// Sees to it that the task wakes when either silence becomes too long.
    fn tick(&mut self, context: &mut Context<'_>) {
        while self.timer.as_mut().poll(context).is_ready() {
            let (sent, heard) = (self.sent.begin(), self.heard.begin());
            let next = (sent + self.every).min(heard + self.limit);
            // What is due already is answered now; look again in a moment if it is not.
            let soon = Instant::now() + Duration::from_millis(10);
            self.timer.as_mut().reset(next.max(soon));
        }
    }
}
