//! When to stop: SIGTERM or Ctrl-C.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from the moment it exists, so that a signal that comes while the process is still starting ends it in
/// order as well. Later signals change nothing.
pub(crate) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// Begins to listen. Without this a signal ends the process at once.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves at the first SIGTERM or SIGINT since it began to listen.
    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
