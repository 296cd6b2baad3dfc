//! The body of an answer: nothing, some bytes, or a metered stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Any error below a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A stream that can be sent to a client.
pub(crate) type BoxBody =
    Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static>>;

/// The body of every answer of L1.
pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Stream(BoxBody),
}

impl Body {
    /// A body without bytes.
    pub fn empty() -> Self {
        Self(Kind::Whole(None))
    }

    pub(crate) fn stream(
        body: impl http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
    ) -> Self {
        Self(Kind::Stream(Box::pin(body)))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            Kind::Whole(_) => "Body(whole)",
            Kind::Stream(_) => "Body(stream)",
        })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Stream(stream) => stream.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Stream(stream) => stream.size_hint(),
        }
    }
}
