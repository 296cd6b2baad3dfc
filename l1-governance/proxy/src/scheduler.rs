//! The boundary to L2: one call per attempt, in process or over HTTP, with the same meaning.

use std::future::Future;

use bytes::Bytes;
use governance_context::{AttemptId, Context, Work};

use crate::body::BoxError;

mod remote;

pub use remote::{RemoteConfigError, RemoteScheduler};

/// Whoever carries out attempts. Dropping the future or the answer's body cancels the attempt.
pub trait Scheduler: Send + Sync + 'static {
    /// The body of an answer.
    type Body: http_body::Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static;

    /// Carries out one attempt. Whatever L2 answers, refusals included, is `Ok`.
    fn call(
        &self,
        context: &Context,
        request: http::Request<Bytes>,
    ) -> impl Future<Output = Result<http::Response<Self::Body>, Unreachable>> + Send;

    /// What an attempt that was cancelled before its first data may have computed. `None` when
    /// nobody can say: its hold then stays until that is known.
    fn work_done(&self, attempt: &AttemptId) -> Option<Work> {
        let _ = attempt;
        None
    }
}

/// The attempt never got an answer.
#[derive(Debug, thiserror::Error)]
#[error("the scheduler did not answer")]
pub struct Unreachable {
    /// Whether the request may have reached it.
    pub reached: Reached,
    /// What went wrong.
    #[source]
    pub source: BoxError,
}

/// Whether an attempt without an answer can have caused work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// No connection was made: certainly no work.
    No,
    /// The request, or a part of it, was sent.
    Perhaps,
}
