//! One call from arrival to its end: what the record, the metrics and the pool will be told, told exactly once.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use governance_context::{AttemptId, Band, Context, Work};
use inference_wire::route::Route;
use inference_wire::usage::Usage;
use scheduler_core::{AttemptEnd, Refusal, RefusalKind, Timestamp};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::answer::Code;
use crate::dispatcher::Booking;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::flight::Cut;
use crate::limit::{OwnLimit, WaitLimit};
use crate::proxy::Shared;
use crate::records::{AttemptRecord, Measured, Record};
use crate::refusal::Refused;

/// A call under way. Dropped without another end, its client has left.
pub(crate) struct Journey {
    shared: Arc<Shared>,
    arrived: Timestamp,
    id: AttemptId,
    /// The most that engines may have computed so far.
    work: Work,
    attempt: Option<Attempt>,
    /// It waits for a turn.
    waits: bool,
    /// Time it has waited for its turns.
    queued: Duration,
    /// Its own time to live, and who set it.
    own: OwnLimit,
    limit: Option<WaitLimit>,
    record: Option<Record>,
    /// A drain waits for it.
    open: Option<TaskTrackerToken>,
}

/// One dispatch of the call.
struct Attempt {
    booking: Booking,
    dispatched: Timestamp,
    queue: Duration,
    measured: Measured,
    status: Option<u16>,
}

impl Journey {
    pub(crate) fn new(
        shared: Arc<Shared>,
        context: &Context,
        route: &Route,
        facts: &Facts,
    ) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let record = Record {
            id: context.request,
            attempt: context.attempt,
            tenant: context.tenant.clone(),
            fairness: context.fairness.clone(),
            band: context.band.0,
            route: route.name(),
            model: Arc::clone(&facts.model),
            stream: facts.stream,
            prompt_tokens: context.prompt_tokens,
            output_bound: context.output_bound,
            prefix_blocks: facts.blocks.len(),
            arrived_unix_ms: unix.map_or(0, |since| since.as_millis() as u64),
            wait_limit: None,
            uncached_wtu: 0.0,
            attempts: Vec::new(),
            refusal: None,
            outcome: "client_closed",
            reason: None,
            duration_ms: 0.0,
        };
        shared.records.begin(context.attempt);
        Self {
            arrived: shared.dispatcher.now(),
            id: context.attempt,
            work: Work::None,
            attempt: None,
            waits: false,
            queued: Duration::ZERO,
            own: OwnLimit {
                time: Duration::from_millis(context.ttl_ms),
                by: context.ttl_by,
            },
            limit: None,
            record: Some(record),
            open: Some(shared.calls.token()),
            shared,
        }
    }

    pub(crate) fn arrived(&self) -> Timestamp {
        self.arrived
    }

    /// It asks for a turn.
    pub(crate) fn waits(&mut self) {
        self.waits = true;
        let Some(record) = &mut self.record else {
            return;
        };
        let flow = self.shared.flow.load();
        let (band, asked) = (
            flow.band(Band(record.band)).ttl,
            self.shared.dispatcher.now(),
        );
        self.limit = Some(WaitLimit::first_of(band, self.own, self.arrived, asked));
        record.wait_limit = self.limit;
        record.uncached_wtu = flow.cost.uncached as f64 / 1e6;
    }

    /// How long it may wait, once it has asked for a turn.
    pub(crate) fn limit(&self) -> Option<WaitLimit> {
        self.limit
    }

    /// There is no turn for it.
    pub(crate) fn refused(&mut self, refusal: &Refusal, asked: Timestamp) {
        self.waits = false;
        self.queued += self.shared.dispatcher.now().since(asked);
        if let Some(record) = &mut self.record {
            record.refusal = Some(Refused::note(refusal));
            let code = refusal.kind.code();
            self.shared.metrics.flow.refused(record.band, code);
        }
    }

    /// An attempt begins; it waited since `asked`.
    pub(crate) fn attempt_begins(&mut self, booking: Booking, asked: Timestamp) {
        let now = self.shared.dispatcher.now();
        let queue = now.since(asked);
        self.waits = false;
        self.queued += queue;
        if let (Some(record), Some(decision)) = (&self.record, &booking.decision) {
            let metrics = &self.shared.metrics.flow;
            metrics.dispatched(record.band, queue, &decision.turn);
        }
        self.shared.records.note_work(self.id, Work::Prefill);
        self.attempt = Some(Attempt {
            booking,
            dispatched: now,
            queue,
            measured: Measured::default(),
            status: None,
        });
    }

    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// Time it waited for its turns.
    pub(crate) fn queued(&self) -> Duration {
        self.queued
    }

    pub(crate) fn poll_cut(&self, context: &mut TaskContext<'_>) -> Poll<Cut> {
        match &self.attempt {
            Some(attempt) => attempt.booking.flight.poll_cut(context),
            None => Poll::Pending,
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.shared.dispatcher.now_ms()
    }

    /// Something arrived from the engine; the time on the proxy's clock.
    pub(crate) fn touch(&self) -> u64 {
        let now_ms = self.now_ms();
        if let Some(attempt) = &self.attempt {
            attempt.booking.flight.touch(now_ms);
        }
        now_ms
    }

    /// The reader has been handed a piece of the answer.
    pub(crate) fn handed_over(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.booking.flight.handed_over();
        }
    }

    /// The reader asks for more than the engine has sent.
    pub(crate) fn reader_waits(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.booking.flight.reader_waits(|| self.now_ms());
        }
    }

    /// The engine refused the request.
    pub(crate) fn rejected(&mut self) {
        self.touch();
        self.shared.records.note_work(self.id, self.work);
    }

    /// The engine answered with this status.
    pub(crate) fn status(&mut self, status: http::StatusCode) {
        if let Some(attempt) = &mut self.attempt {
            attempt.status = Some(status.as_u16());
        }
    }

    /// The first output of a streamed answer is here.
    pub(crate) fn first_output(&mut self) {
        self.generated();
        let now = self.shared.dispatcher.now();
        if let Some(attempt) = &mut self.attempt {
            attempt.measured.ttft_ms = Some(ms(now.since(attempt.dispatched)));
            attempt.booking.first_token();
            self.shared.metrics.first_token(now.since(self.arrived));
        }
    }

    /// The head of a whole answer is here: an engine sends it when everything has been computed.
    pub(crate) fn whole_answer(&mut self) {
        self.generated();
        let now = self.shared.dispatcher.now();
        if let Some(attempt) = &mut self.attempt {
            attempt.measured.whole_answer_ms = Some(ms(now.since(attempt.dispatched)));
        }
    }

    pub(crate) fn progress(&self, output_tokens: u64) {
        if let Some(attempt) = &self.attempt {
            attempt.booking.progress(output_tokens);
        }
    }

    /// What the engine reported or was seen to do.
    pub(crate) fn measured(&mut self, usage: Option<Usage>, output_tokens: Option<u64>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.measured.prompt_tokens = usage.map(|usage| usage.prompt_tokens);
            attempt.measured.cached_tokens = usage.and_then(|usage| usage.cached_tokens);
            attempt.measured.output_tokens = output_tokens;
        }
    }

    /// The attempt failed before any answer; another may follow.
    pub(crate) fn attempt_failed(&mut self, failure: &Failure) {
        self.attempt_ended(failure.end, Some(failure.cause));
        self.work = self.work.max(failure.work);
        // Less than was assumed when it was dispatched, if the engine was never reached.
        self.shared.records.note_work(self.id, self.work);
    }

    /// The attempt is over; its place is given back.
    pub(crate) fn attempt_ended(&mut self, end: AttemptEnd, cause: Option<&'static str>) {
        let Some(mut attempt) = self.attempt.take() else {
            return;
        };
        attempt.booking.ends(end);
        let index = attempt.booking.endpoint.0 as usize;
        let metrics = self.shared.metrics.endpoint(index);
        let (name, counter) = match end {
            AttemptEnd::Completed { .. } => ("completed", &metrics.completed),
            AttemptEnd::ClientClosed => ("client_closed", &metrics.client_closed),
            AttemptEnd::Rejected => ("rejected", &metrics.rejected),
            AttemptEnd::Busy => ("busy", &metrics.busy),
            AttemptEnd::Failed => ("failed", &metrics.failed),
        };
        counter.inc();
        if cause == Some(Cut::Hung.as_str()) {
            metrics.hangs.inc();
        }
        if let (Some(record), Some(decision)) = (&mut self.record, attempt.booking.decision.take())
        {
            record.attempts.push(AttemptRecord {
                endpoint: Arc::clone(&self.shared.endpoints[index].name),
                queue_ms: ms(attempt.queue),
                decision,
                measured: attempt.measured,
                end: name,
                cause,
                status: attempt.status,
            });
        }
    }

    /// The call has ended; the first to say so is believed.
    pub(crate) fn over(&mut self, outcome: &'static str, reason: Option<Code>) {
        self.attempt_ended(AttemptEnd::ClientClosed, None);
        if let Some(mut record) = self.record.take() {
            if std::mem::take(&mut self.waits) {
                let code = RefusalKind::ClientClosed.code();
                self.shared.metrics.flow.refused(record.band, code);
            }
            record.outcome = outcome;
            record.reason = reason.map(Code::as_str);
            record.duration_ms = ms(self.shared.dispatcher.now().since(self.arrived));
            self.shared.metrics.request(outcome);
            self.shared.records.push(record);
        }
        self.open = None;
    }

    fn generated(&mut self) {
        self.touch();
        self.work = Work::Partial;
        self.shared.records.note_work(self.id, Work::Partial);
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        self.over("client_closed", None);
    }
}

fn ms(time: Duration) -> f64 {
    // Microseconds are as fine as anybody reads.
    (time.as_secs_f64() * 1e6).round() / 1e3
}
