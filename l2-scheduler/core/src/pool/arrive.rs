//! From arrival to the line, and every way out of it but a dispatch.

use std::time::Duration;

use super::look::prompt_tokens;
use super::timers::Timer;
use super::{Output, Pool};
use crate::endpoint::ModelKey;
use crate::filters;
use crate::flow::queue::{Place, Waiting};
use crate::flow::quota::Over;
use crate::flow::{Aging, FlowConfig, OverQuota};
use crate::plan::AHEAD;
use crate::request::Scope;
use crate::window::WINDOW_S;
use crate::{Refusal, RefusalKind, Request, RequestKey, Timestamp};

/// Bounds of the advice when to come back, in seconds.
const RETRY_AFTER: (f64, f64) = (1.0, 60.0);
/// The drain rate is trusted once something has waited for so many seconds without a break, and this much waits.
const TRUSTED_AFTER_S: u64 = 5;
const TRUSTED_LENGTH: usize = 64;
/// A request stays in a band for so long at least.
const LEAST_AGE: Duration = Duration::from_millis(1);
/// A target for the first token where none is set: a second and so many times the prefill of the whole prompt.
const DEFAULT_TTFT: (f64, f64) = (1.0, 3.0);

impl Pool {
    pub(super) fn arrive(&mut self, now: Timestamp, request: Box<Request>) {
        if self.queue.contains(request.key) {
            return;
        }
        if self.is_draining && request.tried.is_empty() {
            return self.refuse(now, request.key, RefusalKind::ShuttingDown, Duration::ZERO);
        }
        if request.expires_at.is_some_and(|at| at <= now) {
            return self.refuse(now, request.key, RefusalKind::QueueExpired, Duration::ZERO);
        }
        let waiting = self.waiting(now, request);
        let look = waiting
            .expires
            .min(now + self.config.flow.no_endpoint_ttl)
            .min(waiting.ages_at);
        self.busy_since.get_or_insert(now);
        let place = self.queue.push(now, &self.config.flow, waiting);
        self.set_waiting_timer(place, look);
        self.newly.push(place);
        self.wants_plan |= self.may_be_next(place);
    }

    /// Whether a new request may come before those that were looked at in the last turn and had to wait.
    fn may_be_next(&self, place: Place) -> bool {
        let Some((waiting, (band, deadline))) = self.queue.get(place).zip(self.horizon) else {
            return true;
        };
        self.queue.ahead(waiting.band, waiting.model) <= AHEAD
            || waiting.band > band
            || waiting.deadline <= deadline
            || self.queue.is_overloaded(waiting.band)
            || !waiting.request.tried.is_empty()
    }

    /// What a request that arrives is promised.
    fn waiting(&self, now: Timestamp, request: Box<Request>) -> Waiting {
        let flow = &self.config.flow;
        let band = flow.band(request.band);
        let own = request.expires_at.unwrap_or(Timestamp::MAX);
        let expires = (now + band.ttl).min(own);
        let arrived = request.first_arrived.unwrap_or(now).min(now);
        let prompt = prompt_tokens(&request);
        let model = ModelKey::new(&request.model);
        let target = match request.targets.ttft.or(band.ttft) {
            Some(ttft) => arrived + ttft,
            None => arrived.after_seconds(
                DEFAULT_TTFT.0 + DEFAULT_TTFT.1 * self.idle_prefill_seconds(model, prompt),
            ),
        };
        let tpot = request.targets.tpot.unwrap_or(band.tpot);
        let output = self
            .answers
            .expected(&request.fairness, model, request.output_bound);
        let mut waiting = Waiting::new(request, model, arrived);
        waiting.expires = expires;
        waiting.deadline = target.min(expires);
        waiting.tpot_s = tpot.as_secs_f64();
        waiting.output = output;
        waiting.cost = flow.cost.of(u64::from(prompt), 0, output as u64);
        waiting.ages_at = self.ages_at(now, waiting.band);
        waiting
    }

    /// Seconds an idle engine of the model needs for a whole prompt.
    fn idle_prefill_seconds(&self, model: ModelKey, prompt: u32) -> f64 {
        let class = self
            .endpoints
            .iter()
            .find(|endpoint| endpoint.serves(model))
            .and_then(|endpoint| self.classes.get(endpoint.class))
            .or(self.classes.first());
        let tokens = f64::from(prompt);
        class.map_or(0.0, |class| {
            class
                .calibration
                .model()
                .prefill(tokens, tokens * tokens / 2.0, 0.0)
        })
    }

    fn ages_at(&self, now: Timestamp, band: governance_context::Band) -> Timestamp {
        match self.config.flow.band(band).aging {
            Aging::Off => Timestamp::MAX,
            Aging::Every(period) => now + period.max(LEAST_AGE),
        }
    }

    fn set_waiting_timer(&mut self, place: Place, at: Timestamp) {
        if let Some(waiting) = self.queue.get_mut(place) {
            self.timers
                .set(&mut waiting.timer, Timer::Waiting(place), Some(at));
        }
    }

    /// Those who arrived and could not go at once: whether they may wait at all.
    pub(super) fn admit_new(&mut self, now: Timestamp, saturation: f64) {
        let mut newly = std::mem::take(&mut self.newly);
        for place in newly.drain(..) {
            self.admit(now, place, saturation);
        }
        self.newly = newly;
    }

    fn admit(&mut self, now: Timestamp, place: Place, saturation: f64) {
        let Some(waiting) = self.queue.get(place) else {
            return;
        };
        let (band, cost, expires) = (waiting.band, waiting.cost, waiting.expires);
        let is_retry = !waiting.request.tried.is_empty();
        if band.0 < 0 && !is_retry && saturation >= self.config.flow.band(band).ceiling {
            return self.refuse_waiting(now, place, RefusalKind::Shed, None);
        }
        let admitted = self.queue.admits(now, &self.config.flow, place, cost);
        if let Err((scope, over)) = admitted
            && self.over_quota(place, scope) == OverQuota::Refuse
        {
            return self.refuse_over_quota(now, place, scope, over);
        }
        if let Some(wait) = self.predicted_wait(now, band)
            && now + wait > expires
            && !is_retry
        {
            return self.refuse_waiting(now, place, RefusalKind::QueueWait, Some(wait));
        }
        // One large request may take the place of several small ones, but nobody goes for one that stays out anyway.
        while let Some(scope) = self.queue.over_limit(&self.config.flow, place) {
            let may_displace =
                scope == Scope::Pool && self.queue.can_make_room(&self.config.flow, band);
            let other = may_displace
                .then(|| self.queue.displaceable(band))
                .flatten();
            let Some(other) = other else {
                return self.refuse_waiting(now, place, RefusalKind::QueueFull(scope), None);
            };
            self.refuse_waiting(now, other, RefusalKind::Displaced, None);
        }
    }

    /// What the quota that was exceeded says about waiting.
    pub(super) fn over_quota(&self, place: Place, scope: Scope) -> OverQuota {
        let Some(waiting) = self.queue.get(place) else {
            return OverQuota::Wait;
        };
        let flow: &FlowConfig = &self.config.flow;
        match scope {
            Scope::Flow => flow.quota(&waiting.request.fairness).over,
            Scope::Band | Scope::Pool => flow.band(waiting.band).quota.over,
        }
    }

    pub(super) fn refuse_over_quota(
        &mut self,
        now: Timestamp,
        place: Place,
        scope: Scope,
        over: Over,
    ) {
        let wait = match over {
            Over::Rate(at) => Some(at.since(now)),
            Over::InFlight => None,
        };
        self.refuse_waiting(now, place, RefusalKind::OverQuota(scope), wait);
    }

    /// How long the backlog of `band` and above will take, once the rate it drains at is known.
    pub(super) fn predicted_wait(
        &mut self,
        now: Timestamp,
        band: governance_context::Band,
    ) -> Option<Duration> {
        let busy = now.since(self.busy_since?).as_secs();
        if busy < TRUSTED_AFTER_S || self.queue.len() < TRUSTED_LENGTH {
            return None;
        }
        let rate = self.queue.rate_of_last(now, busy);
        let seconds = self.queue.backlog(band) as f64 / rate;
        (rate > 0.0).then(|| Duration::from_secs_f64(seconds.min(86_400.0)))
    }

    /// A waiting request has reached its own end, the time by which some endpoint must have appeared, or an age.
    pub(super) fn waited_long(&mut self, now: Timestamp, place: Place) {
        let Some(waiting) = self.queue.get_mut(place) else {
            return;
        };
        waiting.timer = None;
        let (expires, arrived, band) = (waiting.expires, waiting.arrived, waiting.band);
        let ages_at = waiting.ages_at;
        let Some(waiting) = self.queue.get(place) else {
            return;
        };
        let emptied_by = filters::emptied(&self.endpoints, &waiting.request, waiting.model);
        let no_endpoint_since = arrived + self.config.flow.no_endpoint_ttl;
        match emptied_by {
            Some(filter) if expires <= now || no_endpoint_since <= now => {
                return self.refuse_waiting(now, place, RefusalKind::NoEndpoint(filter), None);
            }
            None if expires <= now => {
                return self.refuse_waiting(now, place, RefusalKind::QueueExpired, None);
            }
            Some(_) | None => {}
        }
        let (place, ages_at) = self.age(now, place, band, ages_at);
        self.wants_plan = true;
        let next = if no_endpoint_since > now {
            expires.min(no_endpoint_since)
        } else {
            expires
        };
        self.set_waiting_timer(place, next.min(ages_at));
    }

    /// Raises a request that has been in its band for long enough; returns where it is now and when it ages next.
    fn age(
        &mut self,
        now: Timestamp,
        place: Place,
        band: governance_context::Band,
        ages_at: Timestamp,
    ) -> (Place, Timestamp) {
        if ages_at > now {
            return (place, ages_at);
        }
        let above = self.queue.band_above(&self.config.flow, band);
        let raised = above.and_then(|above| self.queue.raise(now, &self.config.flow, place, above));
        let (place, band) = raised.zip(above).unwrap_or((place, band));
        let ages_at = self.ages_at(now, band);
        if let Some(waiting) = self.queue.get_mut(place) {
            waiting.ages_at = ages_at;
        }
        (place, ages_at)
    }

    pub(super) fn cancel(&mut self, now: Timestamp, key: RequestKey) {
        if let Some(place) = self.queue.place_of(key) {
            self.refuse_waiting(now, place, RefusalKind::ClientClosed, None);
            self.wants_plan = true;
        }
    }

    /// Settings of flow control change while requests wait.
    pub(super) fn reconfigure(&mut self, now: Timestamp, flow: FlowConfig) {
        self.config.flow = flow;
        self.queue.reconfigure(now, &self.config.flow);
        self.wants_plan = true;
    }

    pub(super) fn leave_queue(&mut self, now: Timestamp, place: Place) -> Option<Waiting> {
        let mut waiting = self.queue.remove(now, place)?;
        self.left_queue(place, &mut waiting);
        Some(waiting)
    }

    pub(super) fn left_queue(&mut self, place: Place, waiting: &mut Waiting) {
        self.timers
            .set(&mut waiting.timer, Timer::Waiting(place), None);
        if self.queue.len() == 0 {
            self.busy_since = None;
        }
    }

    /// Refuses a request that waits.
    pub(super) fn refuse_waiting(
        &mut self,
        now: Timestamp,
        place: Place,
        kind: RefusalKind,
        wait: Option<Duration>,
    ) {
        if let Some(waiting) = self.leave_queue(now, place) {
            let waited = now.since(waiting.arrived);
            self.refuse_with(now, waiting.request.key, kind, waited, wait);
        }
    }

    fn refuse(&mut self, now: Timestamp, request: RequestKey, kind: RefusalKind, waited: Duration) {
        self.refuse_with(now, request, kind, waited, None);
    }

    fn refuse_with(
        &mut self,
        now: Timestamp,
        request: RequestKey,
        kind: RefusalKind,
        waited: Duration,
        predicted_wait: Option<Duration>,
    ) {
        let queue_length = self.queue.len();
        let retry_after = match kind {
            RefusalKind::ClientClosed => None,
            RefusalKind::OverQuota(_) if predicted_wait.is_some() => predicted_wait,
            RefusalKind::QueueFull(_)
            | RefusalKind::QueueWait
            | RefusalKind::Shed
            | RefusalKind::OverQuota(_)
            | RefusalKind::QueueExpired
            | RefusalKind::Displaced
            | RefusalKind::NoEndpoint(_)
            | RefusalKind::ShuttingDown => Some(self.retry_after(now, queue_length)),
        };
        self.outputs.push_back(Output::Refuse {
            request,
            refusal: Refusal {
                kind,
                retry_after,
                queue_length,
                waited,
                predicted_wait,
            },
        });
    }

    /// Own backlog divided by own drain rate, and up to half of that on top so that clients do not come back together.
    fn retry_after(&mut self, now: Timestamp, backlog: usize) -> Duration {
        let rate = self.ended.sum(now) / WINDOW_S;
        let wait = if rate > 0.0 {
            (backlog + 1) as f64 / rate
        } else {
            RETRY_AFTER.0
        };
        let jitter = 1.0 + self.rng.unit() / 2.0;
        Duration::from_secs_f64(wait.clamp(RETRY_AFTER.0, RETRY_AFTER.1) * jitter)
    }
}
