//! A request's wait for its turn, as a future: dropped, the request leaves the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use scheduler_core::{Refusal, RequestKey};
use tokio::sync::oneshot;

use super::{Booking, Dispatcher};

/// The end of a wait.
pub(crate) enum Turn {
    Go(Booking),
    Refused(Refusal),
}

/// Resolves to the request's turn.
pub(crate) struct Waiting(State);

enum State {
    Decided(Turn),
    Queued {
        dispatcher: Arc<Dispatcher>,
        key: RequestKey,
        turn: oneshot::Receiver<Turn>,
    },
    Over,
}

impl Waiting {
    pub(super) fn decided(turn: Turn) -> Self {
        Self(State::Decided(turn))
    }

    pub(super) fn queued(
        dispatcher: Arc<Dispatcher>,
        key: RequestKey,
        turn: oneshot::Receiver<Turn>,
    ) -> Self {
        Self(State::Queued {
            dispatcher,
            key,
            turn,
        })
    }
}

impl Future for Waiting {
    type Output = Turn;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Turn> {
        match std::mem::replace(&mut self.0, State::Over) {
            State::Decided(turn) => Poll::Ready(turn),
            State::Queued {
                dispatcher,
                key,
                mut turn,
            } => match Pin::new(&mut turn).poll(context) {
                Poll::Ready(turn) => {
                    Poll::Ready(turn.expect("a waiting request is answered before it is forgotten"))
                }
                Poll::Pending => {
                    self.0 = State::Queued {
                        dispatcher,
                        key,
                        turn,
                    };
                    Poll::Pending
                }
            },
            State::Over => unreachable!("a future is not polled after its end"),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let State::Queued {
            dispatcher, key, ..
        } = &self.0
        {
            dispatcher.cancel(*key);
        }
    }
}
