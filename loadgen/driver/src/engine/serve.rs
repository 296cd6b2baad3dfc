//! Sockets: accepts, keeps idle connections for five seconds as uvicorn does, refuses and restarts on
//! command.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    fault::{Lasting, Listening},
    route,
    runner::Runner,
};

/// uvicorn's `timeout_keep_alive`.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A port that somebody else took while nobody listened is tried again this often.
const REBIND_EVERY: Duration = Duration::from_millis(20);

/// How connections are told to end.
#[derive(Clone)]
pub(super) struct Stops {
    /// Answers in progress are completed, then the connection closes.
    pub(super) gently: CancellationToken,
    /// Connections break.
    pub(super) at_once: CancellationToken,
}

impl Stops {
    pub(super) fn new() -> Self {
        Self {
            gently: CancellationToken::new(),
            at_once: CancellationToken::new(),
        }
    }
}

pub(super) struct Server {
    pub(super) addr: SocketAddr,
    pub(super) runner: Arc<Runner>,
    pub(super) tasks: TaskTracker,
    /// Of the server as a whole; connections get children of these.
    pub(super) stops: Stops,
    pub(super) commands: mpsc::Receiver<Listening>,
}

impl Server {
    /// Accepts until stopped.
    pub(super) async fn run(mut self, listener: TcpListener) {
        let mut listener = Some(listener);
        let mut reopen: Option<Instant> = None;
        let mut connections = self.connection_stops();
        loop {
            let accepting = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            let reopening = async {
                match reopen {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.stops.gently.cancelled() => return,
                () = self.stops.at_once.cancelled() => return,
                command = self.commands.recv() => {
                    let Some(command) = command else { return };
                    match command {
                        Listening::Stop => {
                            listener = None;
                            connections.at_once.cancel();
                            reopen = match self.runner.faults.refusing() {
                                Some(Lasting::Until(at)) => Some(at.into()),
                                Some(Lasting::UntilCleared) | None => None,
                            };
                        }
                        Listening::Restart { down } => {
                            listener = None;
                            connections.at_once.cancel();
                            self.runner.restart();
                            reopen = Some(Instant::now() + down);
                        }
                        Listening::Resume if listener.is_none() => reopen = Some(Instant::now()),
                        Listening::Resume => {}
                    }
                }
                () = reopening => match TcpListener::bind(self.addr).await {
                    Ok(bound) => {
                        listener = Some(bound);
                        reopen = None;
                        connections = self.connection_stops();
                    }
                    Err(error) => {
                        tracing::debug!(%error, addr = %self.addr, "cannot listen again yet");
                        reopen = Some(Instant::now() + REBIND_EVERY);
                    }
                },
                accepted = accepting => self.accept(accepted, &connections).await,
            }
        }
    }

    fn connection_stops(&self) -> Stops {
        Stops {
            gently: self.stops.gently.child_token(),
            at_once: self.stops.at_once.child_token(),
        }
    }

    async fn accept(&self, accepted: io::Result<(TcpStream, SocketAddr)>, stops: &Stops) {
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                self.tasks
                    .spawn(connection(stream, self.runner.clone(), stops.clone()));
            }
            Err(error) => {
                // Out of file descriptors, usually: give connections time to end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(REBIND_EVERY).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, runner: Arc<Runner>, stops: Stops) {
    let service = service_fn(move |request| {
        let runner = runner.clone();
        async move { route::respond(&runner, request).await }
    });
    // Half-closed clients count as gone, which is hyper's default and uvicorn's behaviour.
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let mut asked = false;
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::trace!(%error, "a connection ended early");
                }
                return;
            }
            () = stops.at_once.cancelled() => return,
            () = stops.gently.cancelled(), if !asked => {
                asked = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
