//! The client listener: accepts connections, hands requests to [`Governance`], drains on shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::Frame;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::governance::Governance;
use crate::scheduler::Scheduler;

mod head_watch;
mod presence;
mod reading;

use head_watch::{Framing, HeadWatch};
use presence::Socket;

/// After this many bytes in one header block the HTTP library answers 431.
const MAX_HEADERS: usize = 128;
/// Out of file descriptors and the like: wait for some to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long clients have to read why their answer ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Marks a request whose head stated its length twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AmbiguousLength;

/// Serves at most `places` clients at once until `shutdown` resolves; then takes no new request, lets open answers finish
/// for at most `drain_limit`, cuts what is left, and waits until every hold is settled.
pub async fn serve<S: Scheduler>(
    listener: TcpListener,
    governance: Governance<S>,
    places: usize,
    shutdown: impl Future<Output = ()>,
    drain_limit: Duration,
) {
    let connections = TaskTracker::new();
    let (graceful, cut) = (CancellationToken::new(), CancellationToken::new());
    let mut shutdown = std::pin::pin!(shutdown);
    let places = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => match accepted {
                Ok((stream, place)) => {
                    let (tasks, governance) = (connections.clone(), governance.clone());
                    let served = connection(stream, governance, tasks, graceful.clone(), cut.clone());
                    connections.spawn(async move {
                        served.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Before the listener: who finds it closed is served no new request on an older connection either.
    governance.refuse_new();
    graceful.cancel();
    drop(listener);
    connections.close();
    if tokio::time::timeout(drain_limit, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            open = connections.len(),
            "the drain limit has passed: cutting open answers"
        );
        governance.end_open();
        if tokio::time::timeout(FAREWELL, connections.wait())
            .await
            .is_err()
        {
            cut.cancel();
            connections.wait().await;
        }
    }
    if let Err(error) = governance.drain().await {
        tracing::error!(%error, "the ledger did not confirm the last settlements");
    }
}

/// The next client, once there is a place for it. Those that wait cost us nothing: a descriptor for
/// each of them would leave none for the connections to engines.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.expect("places are never closed");
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection<S: Scheduler>(
    stream: TcpStream,
    governance: Governance<S>,
    tasks: TaskTracker,
    graceful: CancellationToken,
    cut: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot switch off Nagle's algorithm");
    }
    let timeouts = governance.timeouts();
    let socket = Arc::new(stream);
    let io = Socket(Arc::clone(&socket));
    let (io, framing) = HeadWatch::new(io, timeouts.header_read, timeouts.idle);
    let watched = Arc::clone(&framing);
    let mut builder = auto::Builder::new(Tracked(tasks.clone()));
    let service = service_fn(move |request| {
        answer(
            governance.clone(),
            Arc::clone(&framing),
            tasks.clone(),
            request,
        )
    });
    builder
        .http1()
        .timer(TokioTimer::new())
        // Its clock also runs between requests, so it is the idle limit; HeadWatch has the head's.
        .header_read_timeout(timeouts.idle.max(timeouts.header_read))
        .half_close(true)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(timeouts.idle))
        .max_concurrent_streams(256);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let mut left = std::pin::pin!(presence::left(&socket, &watched));
    tokio::select! {
        biased;
        () = cut.cancelled() => return,
        () = &mut left => return,
        result = connection.as_mut() => return closed(result),
        () = graceful.cancelled() => {
            watched.end();
            connection.as_mut().graceful_shutdown();
        }
    }
    tokio::select! {
        biased;
        () = cut.cancelled() => {}
        () = &mut left => {}
        result = connection => closed(result),
    }
}

/// Runs the streams of an HTTP/2 connection where shutdown waits for them.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Tracked {
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

fn closed<E: std::fmt::Display>(result: Result<(), E>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a client connection ended early");
    }
}

async fn answer<S: Scheduler>(
    governance: Governance<S>,
    framing: Arc<Framing>,
    tasks: TaskTracker,
    mut request: http::Request<Incoming>,
) -> Result<http::Response<crate::Body>, Infallible> {
    if framing.take_ambiguous() {
        request.extensions_mut().insert(AmbiguousLength);
    }
    let version = request.version();
    let request = request.map(|body| Watched::new(body, version, framing));
    let response = Box::pin(governance.handle(request)).await;
    let patience = governance.timeouts().idle;
    Ok(match version {
        Version::HTTP_2 => response.map(|body| reading::while_read(body, patience, &tasks)),
        _ => response,
    })
}

/// A request body that tells the watcher of heads when it has ended.
struct Watched {
    body: Incoming,
    /// The watcher has been told.
    ended: bool,
    version: Version,
    framing: Arc<Framing>,
}

impl Watched {
    fn new(body: Incoming, version: Version, framing: Arc<Framing>) -> Self {
        let ended = http_body::Body::is_end_stream(&body);
        if ended {
            framing.expect_head(version);
        }
        Self {
            body,
            ended,
            version,
            framing,
        }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if !self.ended && (frame.is_none() || self.body.is_end_stream()) {
            self.ended = true;
            self.framing.expect_head(self.version);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
