//! The boundary between the layers where both are in one process: a function call.

use std::future::Future;

use bytes::Bytes;
use governance_context::{AttemptId, Context, Work};
use governance_proxy::{Scheduler, Unreachable};
use http::{Request, Response};
use scheduler_proxy::{Body, SchedulerProxy};

/// Calls L2 in this process.
pub(crate) struct InProcess(pub(crate) SchedulerProxy);

impl Scheduler for InProcess {
    type Body = Body;

    fn call(
        &self,
        context: &Context,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<Response<Body>, Unreachable>> + Send {
        let (scheduler, context) = (self.0.clone(), context.clone());
        async move { Ok(scheduler.call(context, request).await) }
    }

    fn work_done(&self, attempt: &AttemptId) -> Option<Work> {
        self.0.work_done(attempt)
    }
}
