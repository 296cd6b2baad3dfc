//! An engine's answer on its way to the client: the same frames, watched beside.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::SizeHint;
use inference_wire::route::Route;
use inference_wire::usage;
use scheduler_core::AttemptEnd;
use thiserror::Error;

use crate::body::BodyError;
use crate::failure::Failure;
use crate::journey::Journey;
use crate::upstream::AnswerBody;
use crate::watch::Watch;

/// The pool hears of a stream's progress this often.
const PROGRESS_MS: u64 = 50;
/// Pieces of a stream that are there at once go on as one, since each would cost a chunk of its own: up to this many,
const JOINED_PIECES: usize = 32;
/// and up to one of this size, which is worth its chunk.
const LARGE_BYTES: usize = 4 << 10;
/// A longer answer is not read for its usage.
const USAGE_BYTES: usize = 1 << 20;

/// An answer being passed on. Dropped before its end, the engine is told by its connection closing.
pub(crate) struct Relay {
    /// What is to be sent before anything more is read.
    ready: VecDeque<Bytes>,
    upstream: Upstream,
    kind: Kind,
    journey: Box<Journey>,
    progress_ms: u64,
}

enum Upstream {
    Flowing(AnswerBody),
    Ended,
    /// The client must see that the answer is incomplete.
    Broken,
}

pub(crate) enum Kind {
    Stream(Streaming),
    Whole(Whole),
}

/// A stream of events.
pub(crate) struct Streaming {
    watch: Box<Watch>,
    /// The beginning of an event, held until the rest is there: after a cut, an error event must be readable.
    held: VecDeque<Bytes>,
}

/// One JSON text.
pub(crate) struct Whole {
    route: Route,
    kept: Vec<Bytes>,
    kept_bytes: usize,
    verdict: Verdict,
}

/// What the status of a whole answer says about the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A success: completed, with the usage it reports.
    Success,
    /// The engine refused the request.
    Rejected,
}

/// The engine's answer ended before its time.
#[derive(Debug, Error)]
#[error("the engine's answer ended before it was complete")]
struct Incomplete;

impl Relay {
    /// Passes on a stream whose first frames have been read.
    pub(crate) fn stream(
        frames: VecDeque<Bytes>,
        watch: Box<Watch>,
        body: AnswerBody,
        journey: Box<Journey>,
    ) -> Self {
        let mut ready = frames;
        let mut held = VecDeque::new();
        hold_back(&mut ready, watch.incomplete(), &mut held);
        let kind = Kind::Stream(Streaming { watch, held });
        Self::new(ready, body, kind, journey)
    }

    /// Passes on a whole answer.
    pub(crate) fn whole(
        route: Route,
        verdict: Verdict,
        body: AnswerBody,
        journey: Box<Journey>,
    ) -> Self {
        let kind = Kind::Whole(Whole {
            route,
            kept: Vec::new(),
            kept_bytes: 0,
            verdict,
        });
        let mut relay = Self::new(VecDeque::new(), body, kind, journey);
        relay.end_if_read();
        relay
    }

    /// The next bytes for the client.
    pub(crate) fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            if self.has_enough()
                && let Some(bytes) = self.hand_over()
            {
                return Poll::Ready(Some(Ok(bytes)));
            }
            let body = match &mut self.upstream {
                Upstream::Flowing(body) => body,
                Upstream::Ended => return Poll::Ready(None),
                Upstream::Broken => {
                    self.upstream = Upstream::Ended;
                    return Poll::Ready(Some(Err(Incomplete.into())));
                }
            };
            match body.poll_data(context) {
                Poll::Ready(Some(Ok(bytes))) => self.take(bytes),
                Poll::Ready(Some(Err(_))) => self.broken(Failure::cut()),
                Poll::Ready(None) => self.ended(),
                Poll::Pending if !self.ready.is_empty() => {
                    return Poll::Ready(self.hand_over().map(Ok));
                }
                Poll::Pending => match self.journey.poll_cut(context) {
                    Poll::Ready(cut) => self.broken(Failure::from_cut(cut)),
                    Poll::Pending => {
                        self.journey.reader_waits();
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    /// Whether what is ready goes on before more is read.
    fn has_enough(&self) -> bool {
        let is_flowing = matches!(self.upstream, Upstream::Flowing(_));
        match &self.kind {
            Kind::Stream(_) if is_flowing => {
                let newest = self.ready.back().map_or(0, Bytes::len);
                newest >= LARGE_BYTES || self.ready.len() >= JOINED_PIECES
            }
            Kind::Stream(_) | Kind::Whole(_) => !self.ready.is_empty(),
        }
    }

    /// Takes what is ready: of a stream everything, of a whole answer a piece.
    fn hand_over(&mut self) -> Option<Bytes> {
        let bytes = match &self.kind {
            Kind::Stream(_) => join(&mut self.ready)?,
            Kind::Whole(_) => self.ready.pop_front()?,
        };
        self.journey.handed_over();
        Some(bytes)
    }

    /// Whether nothing follows.
    pub(crate) fn is_over(&self) -> bool {
        self.ready.is_empty() && matches!(self.upstream, Upstream::Ended)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match (&self.kind, &self.upstream) {
            (Kind::Whole(_), Upstream::Flowing(body)) if self.ready.is_empty() => body.size_hint(),
            _ if self.is_over() => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }

    fn new(ready: VecDeque<Bytes>, body: AnswerBody, kind: Kind, journey: Box<Journey>) -> Self {
        Self {
            ready,
            upstream: Upstream::Flowing(body),
            kind,
            progress_ms: journey.now_ms(),
            journey,
        }
    }

    fn take(&mut self, bytes: Bytes) {
        let now_ms = self.journey.touch();
        match &mut self.kind {
            Kind::Whole(whole) => {
                whole.keep(&bytes);
                self.ready.push_back(bytes);
                self.end_if_read();
            }
            Kind::Stream(stream) => {
                if stream.watch.see(&bytes).is_err() {
                    return self.broken(Failure::unreadable());
                }
                stream.pass(bytes, &mut self.ready);
                if now_ms - self.progress_ms >= PROGRESS_MS {
                    self.progress_ms = now_ms;
                    self.journey.progress(stream.watch.output_tokens());
                }
            }
        }
    }

    /// A whole answer of stated length is over with its last byte: nobody asks for more.
    fn end_if_read(&mut self) {
        if let Upstream::Flowing(body) = &self.upstream
            && body.is_read()
        {
            self.ended();
        }
    }

    fn ended(&mut self) {
        let end = match &mut self.kind {
            Kind::Whole(whole) => whole.end(&mut self.journey),
            Kind::Stream(stream) => {
                stream.watch.finish();
                if !stream.watch.is_complete() && !stream.watch.failed() {
                    return self.broken(Failure::cut());
                }
                self.ready.append(&mut stream.held);
                stream.end(&mut self.journey)
            }
        };
        if let Upstream::Flowing(body) = std::mem::replace(&mut self.upstream, Upstream::Ended) {
            body.give_back();
        }
        let cause = (end == AttemptEnd::Failed).then_some("error_in_stream");
        self.journey.attempt_ended(end, cause);
        self.journey.over(outcome(end), None);
    }

    fn broken(&mut self, failure: Failure) {
        let (end, cause) = (failure.end, failure.cause);
        let problem = failure.problem();
        self.upstream = match &mut self.kind {
            Kind::Whole(_) => Upstream::Broken,
            Kind::Stream(stream) => {
                stream.held.clear();
                stream.measure(&mut self.journey);
                self.ready.push_back(problem.event(stream.watch.route()));
                Upstream::Ended
            }
        };
        self.journey.attempt_ended(end, Some(cause));
        self.journey.over("interrupted", Some(problem.code));
    }
}

/// A reader may close once it knows how the answer ends, before the connection's own end.
impl Drop for Relay {
    fn drop(&mut self) {
        let Upstream::Flowing(_) = &self.upstream else {
            return;
        };
        let end = match &self.kind {
            Kind::Stream(stream) => {
                stream.measure(&mut self.journey);
                if !stream.watch.meter().done() {
                    return;
                }
                stream.end(&mut self.journey)
            }
            // The status said all there is to say of the attempt, whether or not its text is read to the end.
            Kind::Whole(whole) if whole.verdict == Verdict::Rejected => AttemptEnd::Rejected,
            Kind::Whole(_) => return,
        };
        self.journey.attempt_ended(end, None);
        self.journey.over(outcome(end), None);
    }
}

impl Streaming {
    /// Passes on what is complete.
    fn pass(&mut self, bytes: Bytes, ready: &mut VecDeque<Bytes>) {
        let incomplete = self.watch.incomplete();
        ready.append(&mut self.held);
        ready.push_back(bytes);
        hold_back(ready, incomplete, &mut self.held);
    }

    fn end(&self, journey: &mut Journey) -> AttemptEnd {
        self.measure(journey);
        match (self.watch.failed(), self.watch.error_status()) {
            (false, _) => self.watch.completed(),
            (true, Some(400..=499)) => AttemptEnd::Rejected,
            (true, _) => AttemptEnd::Failed,
        }
    }

    fn measure(&self, journey: &mut Journey) {
        journey.measured(self.watch.meter().usage(), Some(self.watch.output_tokens()));
    }
}

impl Whole {
    fn keep(&mut self, bytes: &Bytes) {
        self.kept_bytes += bytes.len();
        if self.kept_bytes <= USAGE_BYTES {
            self.kept.push(bytes.clone());
        } else {
            self.kept.clear();
        }
    }

    fn end(&self, journey: &mut Journey) -> AttemptEnd {
        if self.verdict == Verdict::Rejected {
            return AttemptEnd::Rejected;
        }
        let usage = match self.kept.as_slice() {
            [] => None,
            [one] => usage::from_body(&self.route, one),
            parts => usage::from_body(&self.route, &parts.concat()),
        };
        journey.measured(usage, usage.map(|usage| usage.output_tokens));
        AttemptEnd::Completed {
            cached_tokens: usage.and_then(|usage| usage.cached_tokens),
            output_tokens: usage.map_or(0, |usage| usage.output_tokens),
        }
    }
}

/// Takes the last `bytes` bytes out of `ready`, which ends with them.
fn hold_back(ready: &mut VecDeque<Bytes>, mut bytes: usize, held: &mut VecDeque<Bytes>) {
    while bytes > 0 {
        let Some(mut last) = ready.pop_back() else {
            return;
        };
        if last.len() > bytes {
            let rest = last.split_off(last.len() - bytes);
            ready.push_back(last);
            held.push_front(rest);
            return;
        }
        bytes -= last.len();
        held.push_front(last);
    }
}

/// All pieces as one; a single one is not copied.
fn join(pieces: &mut VecDeque<Bytes>) -> Option<Bytes> {
    if pieces.len() < 2 {
        return pieces.pop_front();
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    for piece in pieces.drain(..) {
        joined.extend_from_slice(&piece);
    }
    Some(joined.freeze())
}

fn outcome(end: AttemptEnd) -> &'static str {
    match end {
        AttemptEnd::Completed { .. } => "completed",
        AttemptEnd::Rejected => "rejected",
        AttemptEnd::ClientClosed => "client_closed",
        AttemptEnd::Busy | AttemptEnd::Failed => "interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_are_there_at_once_go_on_as_one_in_their_order() {
        for pieces in [
            &[][..],
            &["data: a\n\n"],
            &["data: a", "\n\n", "data: b\n\n"],
        ] {
            let mut ready: VecDeque<Bytes> = pieces
                .iter()
                .map(|piece| Bytes::from_static(piece.as_bytes()))
                .collect();
            let joined = join(&mut ready);
            assert_eq!(
                joined.as_deref().unwrap_or_default(),
                pieces.concat().as_bytes()
            );
            assert_eq!(joined.is_some(), !pieces.is_empty());
            assert!(ready.is_empty());
        }
    }

    #[test]
    fn a_single_piece_is_not_copied() {
        let piece = Bytes::from(vec![b'x'; 100]);
        let mut ready = VecDeque::from([piece.clone()]);
        let joined = join(&mut ready).expect("one piece");
        assert_eq!(joined.as_ptr(), piece.as_ptr());
    }
}
