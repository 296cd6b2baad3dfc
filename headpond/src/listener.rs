//! An HTTP listener around a handler: accepts, drains on request. Used where governance does not stand in front.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longer than the keep-alive of common client pools.
const HEADER_PATIENCE: Duration = Duration::from_secs(75);
/// Out of file descriptors and the like: wait for some to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds an address, or says what to do about it.
async fn bind(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address} for {what}; is it in use? Port 0 takes any free one")
    })
}

/// Where clients and where operators connect.
pub(crate) async fn both(
    clients: SocketAddr,
    operators: SocketAddr,
) -> anyhow::Result<(TcpListener, TcpListener)> {
    Ok((
        bind(clients, "clients").await?,
        bind(operators, "operators").await?,
    ))
}

/// Serves until `stop`, then lets open exchanges finish for at most `limit`.
pub(crate) async fn serve<H, F, B>(
    listener: TcpListener,
    handler: H,
    stop: CancellationToken,
    limit: Duration,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let server = server();
    let graceful = GracefulShutdown::new();
    let connections = TaskTracker::new();
    while let Some(stream) = stop.run_until_cancelled(accept(&listener)).await {
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let answer = handler(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = graceful.watch(
            server
                .serve_connection(TokioIo::new(stream), service)
                .into_owned(),
        );
        connections.spawn(async move {
            // A peer that breaks the protocol or leaves has been answered as far as possible.
            let _ = connection.await;
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(limit, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("the drain limit has passed: cutting open connections");
    }
}

fn server() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // A peer that closes its side has left: governance cancels an attempt this way.
        .header_read_timeout(HEADER_PATIENCE)
        .half_close(false);
    builder.http2().timer(TokioTimer::new());
    builder
}

/// The next connection, whatever goes wrong in between.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Small answers must not wait for the acknowledgement of the one before.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
