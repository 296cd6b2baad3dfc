//! The moment at which open answers have to end, as one of them waits for it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Tells all open answers at once.
#[derive(Default)]
pub(crate) struct Closing {
    due: AtomicBool,
    told: CancellationToken,
}

impl Closing {
    /// Open answers have had their time.
    pub(crate) fn begin(&self) {
        self.due.store(true, Ordering::Release);
        self.told.cancel();
    }
}

/// One answer's place among those to be told. The token has a lock, so a task asks it once; what
/// every piece of a stream costs is the look at the flag.
pub(crate) struct Notice {
    told: Pin<Box<WaitForCancellationFutureOwned>>,
    waker: Option<Waker>,
}

impl Notice {
    pub(crate) fn of(closing: &Closing) -> Self {
        Self {
            told: Box::pin(closing.told.clone().cancelled_owned()),
            waker: None,
        }
    }

    /// Whether the answer has to end now; if not, the task is woken when it has to.
    pub(crate) fn is_due(&mut self, closing: &Closing, context: &mut Context<'_>) -> bool {
        if closing.due.load(Ordering::Acquire) {
            return true;
        }
        let waker = context.waker();
        if self
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            return false;
        }
        self.waker = Some(waker.clone());
        self.told.as_mut().poll(context).is_ready()
    }
}
