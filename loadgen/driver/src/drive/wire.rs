//! HTTP/1 connections whose I/O runs inside the task that uses them: no second task to wake for every chunk. Shell.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{DriveError, Target};

/// A server, its name resolved once.
#[derive(Debug)]
pub(super) struct Site {
    addresses: Vec<SocketAddr>,
    pub(super) authority: HeaderValue,
    pub(super) base: String,
}

impl Site {
    pub(super) async fn resolve(target: &Target) -> Result<Self, DriveError> {
        let unresolved = |error| DriveError::Unresolved(target.authority.clone(), error);
        let addresses: Vec<SocketAddr> =
            tokio::net::lookup_host((target.host.as_str(), target.port))
                .await
                .map_err(unresolved)?
                .collect();
        if addresses.is_empty() {
            return Err(unresolved(io::ErrorKind::NotFound.into()));
        }
        let authority = HeaderValue::try_from(target.authority.as_str())
            .expect("a parsed authority is a header value");
        Ok(Self {
            addresses,
            authority,
            base: target.base.clone(),
        })
    }

    pub(super) async fn connect(&self) -> io::Result<Wire> {
        let stream = TcpStream::connect(&self.addresses[..]).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(Wire {
            sender,
            pump: Pump(Some(Box::pin(connection))),
        })
    }
}

type Connection = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// One connection, one request at a time.
pub(super) struct Wire {
    sender: http1::SendRequest<Full<Bytes>>,
    pump: Pump,
}

/// The I/O of a connection; empty once it has ended.
struct Pump(Option<Pin<Box<Connection>>>);

impl Pump {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(context).is_ready()
        {
            self.0 = None;
        }
    }

    /// Awaits something that depends on this connection's I/O.
    async fn beside<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            self.poll(context);
            future.as_mut().poll(context)
        })
        .await
    }
}

impl Wire {
    /// Sends a request and awaits the head of its answer. A connection that the server closed while it was idle fails
    /// before anything is sent.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.pump.beside(self.sender.ready()).await?;
        self.pump.beside(self.sender.send_request(request)).await
    }

    /// The next piece of an answer, `None` at its end.
    pub(super) async fn read(&mut self, body: &mut Incoming) -> hyper::Result<Option<Bytes>> {
        loop {
            match self.pump.beside(body.frame()).await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(error),
            }
        }
    }
}
