//! The one task that owns the step model of an engine: steps it on real time, tells the responses.

use std::{sync::Arc, time::Duration};

use engine_model::{Engine, Event, RequestId, Run};
use rustc_hash::FxHashMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Inbox, Runner, Shape, Submission, unix_seconds};
use crate::engine::{
    fault::Lasting,
    flight::{End, Flight},
    metrics::{Finished, Metrics},
    record::{Outcome, UsageRecord},
};

/// A step that ends sooner than this is not worth a timer, whose resolution is a millisecond.
const WORTH_SLEEPING: Duration = Duration::from_micros(300);
/// Behind by more than this the engine is late for good and does not try to catch up.
const MAX_LAG: Duration = Duration::from_millis(500);
/// Overdue steps computed before others may run; responses then find several tokens at once.
const STEPS_PER_TURN: u32 = 8;

/// Steps until cancelled, then ends what is left as a server does that was told to stop.
pub(in crate::engine) async fn run(runner: Arc<Runner>, stop: CancellationToken) {
    let mut task = Task::new(runner);
    stop.run_until_cancelled(task.step_forever()).await;
    task.take_inbox();
    task.end_everything(End::Aborted);
}

/// A sequence in the engine.
struct Live {
    flight: Arc<Flight>,
    index: usize,
    shape: Shape,
    prompt_tokens: u32,
    cached_tokens: u32,
    generated: u32,
    preemptions: u32,
    arrived: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

struct Task {
    runner: Arc<Runner>,
    engine: Engine,
    live: FxHashMap<RequestId, Live>,
    /// Events of a step, copied so that the engine can be asked meanwhile.
    events: Vec<Event>,
    /// When the step before ended, exactly; `None` while idle.
    clock: Option<Instant>,
    decode_steps: u32,
    /// Steps since the task last let others run.
    unslept: u32,
}

impl Task {
    fn new(runner: Arc<Runner>) -> Self {
        Self {
            engine: Engine::new(runner.config.step_model()),
            runner,
            live: FxHashMap::default(),
            events: Vec::new(),
            clock: None,
            decode_steps: 0,
            unslept: 0,
        }
    }

    async fn step_forever(&mut self) {
        loop {
            self.take_inbox();
            if let Some(stall) = self.runner.faults.stalled() {
                self.wait_out(stall).await;
                continue;
            }
            let Some(run) = self.engine.begin(1) else {
                self.clock = None;
                self.runner.inbox().unplaced = 0;
                self.publish(Renewal::Everything);
                self.runner.arrived.notified().await;
                continue;
            };
            self.runner.inbox().unplaced = self.engine.gauges().waiting;
            let end = self.sleep_through(&run).await;
            self.finish(&run, end);
        }
    }

    /// Waits for the end of a step. Steps begin where the one before ended, not when a timer fired, so
    /// the coarse timer does not slow the engine down; one that is behind catches up without sleeping.
    async fn sleep_through(&mut self, run: &Run) -> Instant {
        let now = Instant::now();
        let scale = self.runner.faults.slowness() / self.runner.config.speed;
        let mut end = self.clock.unwrap_or(now) + run.duration.mul_f64(scale);
        if end + MAX_LAG < now {
            end = now;
        }
        if end > now + WORTH_SLEEPING {
            tokio::time::sleep_until(end).await;
            self.unslept = 0;
        } else if self.unslept < STEPS_PER_TURN {
            self.unslept += 1;
        } else {
            tokio::task::yield_now().await;
            self.unslept = 0;
        }
        self.clock = Some(end);
        end
    }

    async fn wait_out(&mut self, stall: Lasting) {
        self.clock = None;
        // A fault that changes between looking and waiting is noticed a moment later.
        let recheck = tokio::time::sleep(Duration::from_millis(50));
        tokio::select! {
            () = stall.over() => {}
            () = self.runner.faults.changed() => {}
            () = recheck => {}
        }
    }

    fn take_inbox(&mut self) {
        let inbox = {
            let mut inbox = self.runner.inbox();
            let (inside, unplaced) = (
                inbox.inside + inbox.submissions.len() as u32,
                inbox.unplaced,
            );
            std::mem::replace(
                &mut *inbox,
                Inbox {
                    unplaced,
                    inside,
                    ..Inbox::default()
                },
            )
        };
        if inbox.restart {
            self.begin_again();
        }
        if inbox.reset_cache {
            self.engine.reset_cache();
        }
        if !inbox.submissions.is_empty() {
            for submission in inbox.submissions {
                self.submit(submission);
            }
            // A step that begins takes some in at once: now is when most of them wait.
            let waiting = self.engine.gauges().waiting;
            self.runner.records().waiting(waiting);
        }
        for id in inbox.aborts {
            self.engine.abort(id);
            if let Some(live) = self.live.remove(&id) {
                self.runner.metrics().disconnects += 1;
                self.record(&live, Outcome::Aborted);
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            request,
            flight,
            index,
            shape,
        } = submission;
        let (id, prompt_tokens) = (request.id, request.prompt_tokens);
        if let Err(refused) = self.engine.submit(request) {
            tracing::warn!(%refused, "a request passed the length check and does not fit");
            flight.update(index, |p| p.end = Some(End::Failed));
            return;
        }
        let live = Live {
            flight,
            index,
            shape,
            prompt_tokens,
            cached_tokens: 0,
            generated: 0,
            preemptions: 0,
            arrived: Instant::now(),
            admitted: None,
            first_token: None,
            last_token: None,
        };
        self.live.insert(id, live);
    }

    fn finish(&mut self, run: &Run, end: Instant) {
        self.events.clear();
        self.events.extend_from_slice(self.engine.finish());
        let events = std::mem::take(&mut self.events);
        let begin = end - run.duration.min(end.elapsed() + run.duration);
        let mut prefilled = false;
        for event in &events {
            match *event {
                Event::Admitted {
                    request,
                    cached_tokens,
                } => {
                    prefilled = true;
                    self.admitted(request, cached_tokens, begin);
                }
                Event::Preempted { request } => {
                    if let Some(live) = self.live.get_mut(&request) {
                        live.preemptions += 1;
                    }
                }
                Event::Tokens { request, total, .. } => self.tokens(request, total, end),
                Event::Finished { request } => self.finished(request, end),
            }
        }
        self.events = events;
        self.runner
            .metrics()
            .iteration_tokens
            .observe(run.tokens as f64);
        self.publish(if prefilled {
            Renewal::Everything
        } else {
            Renewal::Decoding
        });
    }

    fn admitted(&mut self, request: RequestId, cached_tokens: u32, at: Instant) {
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        live.admitted = Some(at.max(live.arrived));
        live.cached_tokens = cached_tokens;
        live.flight
            .note(live.index, |p| p.cached_tokens = cached_tokens);
    }

    fn tokens(&mut self, request: RequestId, total: u32, now: Instant) {
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        let before = live.last_token.replace(now);
        if live.first_token.is_none() {
            live.first_token = Some(now);
        }
        live.generated = total;
        let mut metrics = self.runner.metrics();
        let streaming = live.shape.streaming;
        match before {
            None => metrics.first_token(streaming, seconds(live.arrived, now)),
            Some(before) => metrics.next_token(seconds(before, now)),
        }
        drop(metrics);
        live.flight.update(live.index, |p| p.generated = total);
    }

    fn finished(&mut self, request: RequestId, now: Instant) {
        let Some(live) = self.live.remove(&request) else {
            return;
        };
        let admitted = live.admitted.unwrap_or(live.arrived);
        let first = live.first_token.unwrap_or(now);
        self.runner.metrics().finished(&Finished {
            shape: live.shape,
            prompt_tokens: live.prompt_tokens,
            cached_tokens: live.cached_tokens,
            generated: live.generated,
            preemptions: live.preemptions,
            queue: seconds(live.arrived, admitted),
            prefill: seconds(admitted, first),
            decode: seconds(first, now),
        });
        self.record(&live, Outcome::Finished);
        live.flight
            .update(live.index, |p| p.end = Some(End::Finished));
    }

    fn record(&self, live: &Live, outcome: Outcome) {
        self.runner.records().add(UsageRecord {
            id: live.flight.id.clone(),
            model: live.flight.model.clone(),
            sequence: live.index as u32,
            prompt_tokens: live.prompt_tokens,
            cached_tokens: live.cached_tokens,
            generated_tokens: live.generated,
            outcome,
        });
    }

    fn publish(&mut self, renewal: Renewal) {
        let gauges = self.engine.gauges();
        self.runner.inbox().inside = self.live.len() as u32;
        self.decode_steps += 1;
        let mut metrics = self.runner.metrics();
        metrics.counters = self.engine.counters();
        // SGLang renews its gauges with prefill batches and every so many decoding steps only.
        let renew = renewal == Renewal::Everything
            || !self.runner.config.vocabulary.is_sglang()
            || self.decode_steps >= self.runner.config.decode_log_interval;
        if renew {
            metrics.gauges = gauges;
            self.decode_steps = 0;
        }
    }

    fn begin_again(&mut self) {
        self.end_everything(End::Failed);
        self.engine = Engine::new(self.runner.config.step_model());
        self.clock = None;
        *self.runner.metrics() = Metrics::new(unix_seconds());
        self.runner.inbox().unplaced = 0;
    }

    fn end_everything(&mut self, end: End) {
        let mut live: Vec<(RequestId, Live)> = self.live.drain().collect();
        live.sort_unstable_by_key(|(id, _)| *id);
        for (_, live) in live {
            self.record(&live, Outcome::Aborted);
            live.flight.update(live.index, |p| p.end = Some(end));
        }
    }
}

/// Which gauges a step renews.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Renewal {
    Everything,
    Decoding,
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
