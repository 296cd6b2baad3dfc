//! Connections to one engine: a bounded pool of HTTP/1.1 connections, each given back when its answer has ended.
//! Not a retry policy: it re-sends only what a closed idle connection swallowed.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::Origin;

#[cfg(test)]
mod tests;

/// The body of a request to an engine, whole and shared: a retry costs a reference.
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
    /// Path and query at the engine, without the endpoint's base path.
    pub(crate) path: String,
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

/// The engine's answer and the connection it arrives on.
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: Incoming,
    pub(crate) lease: Lease,
}

/// A connection in use. Given back at the end of an answer; dropped, it closes, which is how an engine learns of a cancel.
pub(crate) struct Lease {
    sender: Sender,
    home: Arc<Upstream>,
}

/// One engine's address and its idle connections.
pub(crate) struct Upstream {
    origin: Origin,
    limits: ConnectionLimits,
    /// Oldest first. Locked for one push or one pop, by requests that begin or end; a channel could not take the newest.
    idle: Mutex<Vec<Idle>>,
    tasks: TaskTracker,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

impl Outbound {
    fn to(&self, origin: &Origin) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri: Uri = if origin.base.is_empty() {
            self.path.parse()?
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
    pub(crate) fn new(origin: Origin, limits: ConnectionLimits, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            origin,
            limits,
            idle: Mutex::new(Vec::new()),
            tasks,
        })
    }

    /// Sends the request and waits for the head of its answer. Dropping the future closes the connection.
    pub(crate) async fn exchange(
        self: &Arc<Self>,
        outbound: &Outbound,
    ) -> Result<Answer, SendError> {
        let mut request = outbound.to(&self.origin).map_err(SendError::Unsendable)?;
        while let Some(mut sender) = self.take_idle() {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answer(response, sender)),
                Err(mut failed) => match failed.take_message() {
                    // Never written: any other connection may have it.
                    Some(unsent) => request = unsent,
                    // Written to a connection that the engine was closing as idle: it ended without a byte of answer.
                    // One new connection decides whether the engine is there.
                    None if ended_unanswered(failed.error()) => {
                        request = outbound.to(&self.origin).map_err(SendError::Unsendable)?;
                        break;
                    }
                    None => return Err(SendError::NoAnswer(failed.into_error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender
            .send_request(request)
            .await
            .map_err(SendError::NoAnswer)?;
        Ok(self.answer(response, sender))
    }

    /// Closes what has been idle for too long.
    pub(crate) fn expire_idle(&self) {
        let now = Instant::now();
        let mut idle = self.idle.lock().expect("no panic happens under this lock");
        idle.retain(|entry| {
            now.duration_since(entry.since) < self.limits.idle && !entry.sender.is_closed()
        });
    }

    fn answer(self: &Arc<Self>, response: Response<Incoming>, sender: Sender) -> Answer {
        let (head, body) = response.into_parts();
        Answer {
            head,
            body,
            lease: Lease {
                sender,
                home: Arc::clone(self),
            },
        }
    }

    /// The most recently used connection that still lives; the newest is the least likely to be closed under us.
    fn take_idle(&self) -> Option<Sender> {
        let now = Instant::now();
        let mut idle = self.idle.lock().expect("no panic happens under this lock");
        if idle.last().is_some_and(|newest| now.duration_since(newest.since) >= self.limits.idle) {
            idle.clear();
        }
        for index in (0..idle.len()).rev() {
            if idle[index].sender.is_closed() {
                idle.remove(index);
            } else if idle[index].sender.is_ready() {
                return Some(idle.remove(index).sender);
            }
            // Neither: its task has not yet seen the end of the last answer.
        }
        None
    }

    fn keep(&self, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().expect("no panic happens under this lock");
        if idle.len() < self.limits.max_idle {
            idle.push(Idle {
                sender,
                since: Instant::now(),
            });
        }
    }

    async fn connect(&self) -> Result<Sender, SendError> {
        let stream = tokio::time::timeout(self.limits.connect, self.dial())
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            .map_err(SendError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(SendError::NoAnswer)?;
        self.tasks.spawn(async move {
            // Its errors reach the request that is on it.
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Resolves the name anew, so that an endpoint that moved is found, and tries each address.
    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.origin.host.as_str(), self.origin.port)).await?;
        // Small writes must not wait for the other side's delayed acknowledgement.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Lease {
    /// The answer has ended and the connection may carry another.
    pub(crate) fn give_back(self) {
        self.home.keep(self.sender);
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
