//! What the engine task and the response of one HTTP request share: how far its sequences are.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use engine_model::RequestId;

use super::runner::Runner;

/// One HTTP request in the engine: one sequence per prompt and choice.
pub(super) struct Flight {
    /// Name under which it is recorded.
    pub(super) id: String,
    pub(super) model: String,
    /// Locked by the engine task when a step ends and by the response when it is polled, both for a few
    /// instructions. It holds only the latest counts, so a slow reader costs no memory and finds several
    /// tokens at once; a channel would queue a message per token.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sequences: Vec<Progress>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) cached_tokens: u32,
    pub(super) generated: u32,
    pub(super) end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    /// The server shuts down.
    Aborted,
    /// The engine refused it after admission; cannot happen with checked lengths.
    Failed,
}

impl Flight {
    pub(super) fn new(id: String, model: String, sequences: usize) -> Self {
        let state = State {
            sequences: vec![Progress::default(); sequences],
            waker: None,
        };
        Self {
            id,
            model,
            state: Mutex::new(state),
        }
    }

    /// Changes one sequence and wakes the response.
    pub(super) fn update(&self, sequence: usize, change: impl FnOnce(&mut Progress)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state.sequences[sequence]);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Changes one sequence without waking the response, for facts it does not wait for.
    pub(super) fn note(&self, sequence: usize, change: impl FnOnce(&mut Progress)) {
        change(&mut self.lock().sequences[sequence]);
    }

    /// Copies the progress of all sequences if `enough`, else has the task woken by the next update.
    pub(super) fn poll(
        &self,
        cx: &Context<'_>,
        into: &mut Vec<Progress>,
        enough: impl FnOnce(&[Progress]) -> bool,
    ) -> Poll<()> {
        let mut state = self.lock();
        if !enough(&state.sequences) {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none @ None => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        into.clear();
        into.extend_from_slice(&state.sequences);
        Poll::Ready(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nobody panics while holding a flight")
    }
}

/// Keeps a request in the engine. Dropping it aborts what has not ended, so a client that leaves costs at
/// most the step in progress.
pub(super) struct Guard {
    pub(super) flight: Arc<Flight>,
    pub(super) runner: Arc<Runner>,
    pub(super) requests: Vec<RequestId>,
}

impl Guard {
    /// Leaves the engine early.
    pub(super) fn abort(&mut self) {
        let requests = std::mem::take(&mut self.requests);
        if !requests.is_empty() {
            self.runner.abort(&requests);
        }
    }

    /// Resolves when `enough`.
    pub(super) async fn until(&self, enough: impl Fn(&[Progress]) -> bool) -> Vec<Progress> {
        let mut progress = Vec::new();
        std::future::poll_fn(|cx| self.flight.poll(cx, &mut progress, &enough)).await;
        progress
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.abort();
    }
}
