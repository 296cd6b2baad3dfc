//! The body of every answer: whole, or relayed from an engine.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::relay::Relay;

/// What a body reports when it cannot be completed.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer. Dropping it before its end cancels the engine's work.
pub struct Body(Inner);

enum Inner {
    Whole(Bytes),
    Relay(Box<Relay>),
}

impl Body {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self(Inner::Whole(bytes))
    }

    pub(crate) fn relay(relay: Relay) -> Self {
        Self(Inner::Relay(Box::new(relay)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Inner::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Inner::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Inner::Relay(relay) => relay
                .poll_bytes(context)
                .map(|next| next.map(|result| result.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.is_empty(),
            Inner::Relay(relay) => relay.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Relay(relay) => relay.size_hint(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.0 {
            Inner::Whole(_) => "whole",
            Inner::Relay(_) => "relay",
        };
        f.debug_tuple("Body").field(&kind).finish()
    }
}
