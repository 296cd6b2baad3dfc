//! The body of every answer: whole, relayed from an engine, or begun while the request still waited.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::patience::Announced;
use crate::relay::Relay;

/// What a body reports when it cannot be completed.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer. Dropping it before its end cancels the engine's work.
pub struct Body(Inner);

enum Inner {
    Whole(Bytes),
    Relay(Box<Relay>),
    Announced(Box<Announced>),
}

impl Body {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self(Inner::Whole(bytes))
    }

    pub(crate) fn relay(relay: Relay) -> Self {
        Self(Inner::Relay(Box::new(relay)))
    }

    pub(crate) fn announced(announced: Announced) -> Self {
        Self(Inner::Announced(Box::new(announced)))
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
            Inner::Announced(announced) => announced.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.is_empty(),
            Inner::Relay(relay) => relay.is_over(),
            Inner::Announced(announced) => announced.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Relay(relay) => relay.size_hint(),
            Inner::Announced(_) => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.0 {
            Inner::Whole(_) => "whole",
            Inner::Relay(_) => "relay",
            Inner::Announced(_) => "announced",
        };
        f.debug_tuple("Body").field(&kind).finish()
    }
}
