//! Streams over HTTP/2 that their client stops reading. The connection shows nothing of it: other
//! streams go on, and pings are answered.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::body::{Body, BoxError};

/// A mutex: the connection and the watcher of one answer share it, and hold it for one poll.
type Shared = Mutex<Answer>;

struct Answer {
    /// Gone once the client has been given up.
    body: Option<Body>,
    /// Since when the client has not asked for more.
    away: Option<Instant>,
}

/// An answer that is ended, and gives its place in an engine back, once its client has not asked for
/// more for as long as `patience`.
pub(super) fn while_read(body: Body, patience: Duration, tasks: &TaskTracker) -> Body {
    if body.size_hint().exact().is_some() {
        // Everything has been computed.
        return body;
    }
    let answer = Arc::new(Mutex::new(Answer {
        body: Some(body),
        away: Some(Instant::now()),
    }));
    let (open, over) = oneshot::channel();
    tasks.spawn(watch(Arc::clone(&answer), over, patience));
    Body::stream(WhileRead {
        answer,
        _open: open,
    })
}

/// Looks at an answer now and then, until it is `over`.
async fn watch(answer: Arc<Shared>, mut over: oneshot::Receiver<()>, patience: Duration) {
    while tokio::time::timeout(patience / 4, &mut over).await.is_err() {
        let mut answer = lock(&answer);
        if answer.away.is_some_and(|since| since.elapsed() >= patience) {
            tracing::debug!("a client of HTTP/2 does not read its answer");
            answer.body = None;
            return;
        }
    }
}

fn lock(answer: &Shared) -> MutexGuard<'_, Answer> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}

struct WhileRead {
    answer: Arc<Shared>,
    /// Tells the watcher by being dropped.
    _open: oneshot::Sender<()>,
}

impl Drop for WhileRead {
    fn drop(&mut self) {
        // The answer ends here, and not when the watcher gets to know.
        lock(&self.answer).body = None;
    }
}

impl http_body::Body for WhileRead {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut answer = lock(&self.answer);
        let Some(body) = &mut answer.body else {
            return Poll::Ready(Some(Err("the client did not read its answer".into())));
        };
        let polled = Pin::new(body).poll_frame(context);
        answer.away = polled.is_ready().then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        let answer = lock(&self.answer);
        answer
            .body
            .as_ref()
            .is_some_and(http_body::Body::is_end_stream)
    }
}
