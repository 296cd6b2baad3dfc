//! Response bodies: whole ones, streams fed by the engine, and the broken ones that faults ask for.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use engine_model::token;
use http_body::{Frame, SizeHint};

use super::{
    answer::{Delta, Events, Writer},
    fault::Fault,
    flight::{End, Guard, Progress},
    plan::{Finish, Reply, Totals},
};

/// The connection breaks here.
#[derive(Debug, thiserror::Error)]
#[error("the simulated engine breaks the connection")]
pub(super) struct Broken;

pub(super) enum Body {
    Whole(Option<Bytes>),
    /// A whole body sent in one chunk, as some servers do.
    Chunked(Option<Bytes>),
    /// The beginning of a longer body whose end never comes.
    Truncated {
        sent: Option<Bytes>,
        announced: u64,
        breaking: Break,
    },
    Stream(Box<Stream>),
    /// Nothing, ever.
    Silent,
}

impl Body {
    pub(super) fn whole(text: impl Into<Bytes>) -> Self {
        Self::Whole(Some(text.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Self::Whole(bytes) | Self::Chunked(bytes) => Poll::Ready(
                bytes
                    .take()
                    .filter(|b| !b.is_empty())
                    .map(|b| Ok(Frame::data(b))),
            ),
            Self::Truncated { sent, breaking, .. } => match sent.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => breaking.poll(cx).map(|broken| Some(Err(broken))),
            },
            Self::Stream(stream) => stream.poll(cx).map(|f| f.map(|r| r.map(Frame::data))),
            Self::Silent => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) | Self::Chunked(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Truncated { .. } | Self::Stream(_) | Self::Silent => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Truncated { announced, .. } => SizeHint::with_exact(*announced),
            Self::Chunked(_) | Self::Stream(_) | Self::Silent => SizeHint::default(),
        }
    }
}

/// An end by breaking the connection, once what was written before has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Break {
    #[default]
    Flushing,
    Now,
}

impl Break {
    /// Waits once, because an error makes hyper forget what it has not flushed.
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Broken> {
        match std::mem::replace(self, Self::Now) {
            Self::Now => Poll::Ready(Broken),
            Self::Flushing => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// A stream of events that follows its sequences through the engine.
pub(super) struct Stream {
    guard: Guard,
    reply: Reply,
    writer: Writer,
    events: Events,
    /// What was sent of each choice.
    sent: Vec<Sent>,
    progress: Vec<Progress>,
    fault: Option<Fault>,
    chunks: u32,
    stage: Stage,
    breaking: Break,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    tokens: u32,
    bytes: usize,
    ended: bool,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Running,
    /// What is left to send is in `events`.
    Closing,
    /// Breaks when the events are sent.
    Breaking,
    Hanging,
}

impl Stream {
    pub(super) fn new(guard: Guard, reply: Reply, fault: Option<Fault>) -> Self {
        Self {
            guard,
            writer: Writer::new(reply.ask.family),
            events: Events::default(),
            sent: vec![Sent::default(); reply.outputs.len()],
            progress: Vec::new(),
            reply,
            fault,
            chunks: 0,
            stage: Stage::Running,
            breaking: Break::default(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            self.strike();
            if self.stage == Stage::Hanging {
                return Poll::Pending;
            }
            if let Some(event) = self.events.pop() {
                self.chunks += 1;
                return Poll::Ready(Some(Ok(event)));
            }
            match self.stage {
                Stage::Closing => return Poll::Ready(None),
                Stage::Breaking => return self.breaking.poll(cx).map(|broken| Some(Err(broken))),
                Stage::Running | Stage::Hanging => {}
            }
            let sent = &self.sent;
            let news = |all: &[Progress]| {
                all.iter()
                    .zip(sent)
                    .any(|(p, s)| !s.ended && (p.generated > s.tokens || p.end.is_some()))
            };
            if self
                .guard
                .flight
                .poll(cx, &mut self.progress, news)
                .is_pending()
            {
                return Poll::Pending;
            }
            self.write_news();
        }
    }

    /// Lets a fault strike once its chunk is reached.
    fn strike(&mut self) {
        let strikes = match self.fault {
            Some(Fault::Cut { chunks } | Fault::ErrorInStream { chunks }) => self.chunks >= chunks,
            Some(Fault::HangAfterFirstToken) => {
                self.sent.iter().any(|s| s.tokens > 0) && self.events.is_empty()
            }
            _ => false,
        };
        if !strikes {
            return;
        }
        self.guard.abort();
        let fault = self.fault.take();
        match fault {
            Some(Fault::HangAfterFirstToken) => self.stage = Stage::Hanging,
            Some(Fault::ErrorInStream { .. }) => {
                self.events = Events::default();
                self.events.engine_failed();
                self.stage = Stage::Closing;
            }
            _ => {
                self.events = Events::default();
                self.stage = Stage::Breaking;
            }
        }
    }

    fn write_news(&mut self) {
        for choice in 0..self.sent.len() {
            if !self.sent[choice].ended {
                self.write_choice(choice);
            }
        }
        if self.stage == Stage::Running && self.sent.iter().all(|s| s.ended) {
            let totals = self.reply.totals(&self.progress);
            let finish = self.finish_of(0);
            self.writer
                .end(&self.reply, totals, finish, &mut self.events);
            self.guard.requests.clear();
            self.stage = Stage::Closing;
        }
    }

    fn finish_of(&self, choice: usize) -> Finish {
        match self.progress[choice].end {
            Some(End::Aborted) => Finish::Abort,
            _ => self.reply.outputs[choice].finish,
        }
    }

    fn write_choice(&mut self, choice: usize) {
        let progress = self.progress[choice];
        let output = &self.reply.outputs[choice];
        let complete = progress.generated >= output.tokens;
        if progress.end == Some(End::Failed) && !complete {
            self.stage = Stage::Breaking;
            return;
        }
        let finish = match progress.end {
            _ if complete => Some(output.finish),
            Some(End::Aborted) => Some(Finish::Abort),
            _ => None,
        };
        let sent = &mut self.sent[choice];
        let new = progress.generated - sent.tokens;
        if new == 0 && finish.is_none() {
            return;
        }
        let totals = Totals {
            prompt: self.reply.prompt_tokens[output.prompt],
            cached: progress.cached_tokens,
            output: progress.generated,
            newly_cached: 0,
        };
        if sent.tokens == 0 {
            self.writer
                .begin(&self.reply, choice, totals, &mut self.events);
        }
        let end = token::skip(&output.text, sent.bytes, new);
        let text = &output.text[sent.bytes..end];
        *sent = Sent {
            tokens: progress.generated,
            bytes: end,
            ended: finish.is_some(),
        };
        self.writer.delta(
            &self.reply,
            &Delta {
                choice,
                text,
                finish,
                totals,
            },
            &mut self.events,
        );
    }
}
