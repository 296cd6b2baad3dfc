//! Connections to one engine: a bounded pool of HTTP/1.1 connections, each given back when its answer has ended.
//! Not a retry policy: it re-sends only what a closed idle connection swallowed.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, Uri, header};
use http_body::{Body as _, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Origin;

#[cfg(test)]
mod tests;

/// The body of a request to an engine is whole and shared: a retry costs a reference.
type Sender = SendRequest<Full<Bytes>>;

/// How connections to engines are made and kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) connect: Duration,
    /// Shorter than the engine's own keep-alive, so that we close first.
    pub(crate) idle: Duration,
    pub(crate) max_idle: usize,
}

/// Everything of a request that stays the same whichever engine gets it.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) method: Method,
    /// Path at the engine, without the endpoint's base path.
    pub(crate) path: &'static str,
    /// Already filtered; `host` is added per endpoint.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An engine could not be asked, or did not answer.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// No connection: nothing reached the engine.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connection ended before the head of an answer.
    #[error("the connection ended before an answer")]
    NoAnswer(#[source] hyper::Error),
    /// The endpoint's address and the request's path do not make a URI.
    #[error("not a valid request for this endpoint")]
    Unsendable(#[source] http::Error),
}

/// The engine's answer.
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: AnswerBody,
}

/// The body of an answer and the connection it arrives on. Dropped before its end, it closes the connection, which is
/// how an engine learns of a cancel.
pub(crate) struct AnswerBody {
    incoming: Incoming,
    wire: Wire,
    home: Arc<Upstream>,
}

/// One engine's address and its idle connections.
pub(crate) struct Upstream {
    origin: Origin,
    limits: ConnectionLimits,
    /// Oldest first. Locked for one push or one pop, by requests that begin or end; a channel could not take the newest.
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    wire: Wire,
    since: Instant,
}

/// A connection. It is driven by whoever waits for its answer: a task of its own would cost a wake-up per frame.
struct Wire {
    sender: Sender,
    /// `None` once the connection has ended.
    driver: Option<Box<Connection<TokioIo<TcpStream>, Full<Bytes>>>>,
}

impl Outbound {
    fn to(&self, origin: &Origin) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri = if origin.base.is_empty() {
            Uri::from_static(self.path)
        } else {
            format!("{}{}", origin.base, self.path).parse()?
        };
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request
            .headers_mut()
            .insert(header::HOST, origin.authority.clone());
        Ok(request)
    }
}

impl Upstream {
    pub(crate) fn new(origin: Origin, limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            origin,
            limits,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Sends the request and waits for the head of its answer. Dropping the future closes the connection.
    pub(crate) async fn exchange(
        self: &Arc<Self>,
        outbound: &Outbound,
    ) -> Result<Answer, SendError> {
        let mut request = outbound.to(&self.origin).map_err(SendError::Unsendable)?;
        let mut swallowed = None;
        while let Some(mut wire) = self.take_idle() {
            match wire.send(request).await {
                Ok(response) => return Ok(self.answer(response, wire)),
                Err(mut failed) => match failed.take_message() {
                    // Never written: any other connection may have it.
                    Some(unsent) => request = unsent,
                    // Written to a connection that the engine was closing as idle: it ended without a byte of answer.
                    // One new connection decides whether the engine is there.
                    None if ended_unanswered(failed.error()) => {
                        request = outbound.to(&self.origin).map_err(SendError::Unsendable)?;
                        swallowed = Some(failed.into_error());
                        break;
                    }
                    None => return Err(SendError::NoAnswer(failed.into_error())),
                },
            }
        }
        let mut wire = self.connect().await.map_err(|error| match swallowed {
            // It may have been at work when it ended.
            Some(swallowed) => SendError::NoAnswer(swallowed),
            None => error,
        })?;
        let response = wire
            .send(request)
            .await
            .map_err(|failed| SendError::NoAnswer(failed.into_error()))?;
        Ok(self.answer(response, wire))
    }

    /// Closes what has been idle for too long.
    pub(crate) fn expire_idle(&self) {
        let now = Instant::now();
        self.idle()
            .retain(|entry| now.duration_since(entry.since) < self.limits.idle);
    }

    fn answer(self: &Arc<Self>, response: Response<Incoming>, wire: Wire) -> Answer {
        let (head, incoming) = response.into_parts();
        let body = AnswerBody {
            incoming,
            wire,
            home: Arc::clone(self),
        };
        Answer { head, body }
    }

    /// The most recently used connection that still lives; the newest is the least likely to be closed under us.
    fn take_idle(&self) -> Option<Wire> {
        let now = Instant::now();
        loop {
            let Idle { mut wire, since } = self.idle().pop()?;
            if now.duration_since(since) < self.limits.idle && wire.is_ready() {
                return Some(wire);
            }
        }
    }

    fn keep(&self, wire: Wire) {
        let mut idle = self.idle();
        if idle.len() < self.limits.max_idle {
            idle.push(Idle {
                wire,
                since: Instant::now(),
            });
        }
    }

    async fn connect(&self) -> Result<Wire, SendError> {
        let stream = tokio::time::timeout(self.limits.connect, self.dial())
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            .map_err(SendError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(SendError::NoAnswer)?;
        Ok(Wire {
            sender,
            driver: Some(Box::new(connection)),
        })
    }

    /// Resolves the name anew, so that an endpoint that moved is found, and tries each address.
    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.origin.host.as_str(), self.origin.port)).await?;
        // Small writes must not wait for the other side's delayed acknowledgement.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().expect("no panic happens under this lock")
    }
}

impl Wire {
    /// Sends a request and waits for the head of its answer.
    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        let mut response = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            drive(&mut self.driver, context);
            response.as_mut().poll(context)
        })
        .await
    }

    /// Whether it can carry a request. Sees a close that has arrived.
    fn is_ready(&mut self) -> bool {
        drive(&mut self.driver, &mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

/// Its errors reach the request that is on the connection.
fn drive(
    driver: &mut Option<Box<Connection<TokioIo<TcpStream>, Full<Bytes>>>>,
    context: &mut Context<'_>,
) {
    if let Some(connection) = driver
        && Pin::new(&mut **connection).poll(context).is_ready()
    {
        *driver = None;
    }
}

impl AnswerBody {
    /// The next bytes.
    pub(crate) fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        match self.poll_arrived(context) {
            Poll::Pending => {
                drive(&mut self.wire.driver, context);
                self.poll_arrived(context)
            }
            Poll::Ready(arrived) => Poll::Ready(arrived),
        }
    }

    /// The next bytes.
    pub(crate) async fn data(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        poll_fn(|context| self.poll_data(context)).await
    }

    /// All of a short answer, and its connection back to its home. `None` if it is longer than `limit` or cut.
    pub(crate) async fn read_short(mut self, limit: usize) -> Option<Bytes> {
        let mut read = BytesMut::new();
        while let Some(data) = self.data().await {
            read.extend_from_slice(&data.ok()?);
            if read.len() > limit {
                return None;
            }
        }
        self.give_back();
        Some(read.freeze())
    }

    /// Whether the last byte of an answer of stated length has been read.
    pub(crate) fn is_read(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }

    /// The answer has ended and the connection may carry another.
    pub(crate) fn give_back(self) {
        if self.wire.driver.is_some() {
            self.home.keep(self.wire);
        }
    }

    fn poll_arrived(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            match ready!(Pin::new(&mut self.incoming).poll_frame(context)) {
                Some(Ok(frame)) => {
                    // Trailers belong to one hop.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

fn ended_unanswered(error: &hyper::Error) -> bool {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return true;
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            return matches!(
                io.kind(),
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::NotConnected
            );
        }
        source = cause.source();
    }
    false
}
