//! When to stop: SIGTERM or Ctrl-C.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at the first SIGTERM or SIGINT.
pub(crate) async fn requested() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// As [`requested`]; without signals there is nothing to wait for, and the process runs until it is killed.
pub(crate) async fn quietly() {
    if let Err(error) = requested().await {
        tracing::warn!(%error, "cannot listen for signals");
        std::future::pending::<()>().await;
    }
}
