//! What becomes of attempts in flight, and what their times teach.

use std::time::Duration;

use super::Pool;
use super::event::AttemptEnd;
use super::tell::Prefill;
use super::timers::Timer;
use crate::endpoint::Presence;
use crate::endpoint::booking::{Booking, Phase};
use crate::{BookingId, Timestamp};

/// A stream teaches the time of a step once it has this many tokens without a prefill beside it.
const LESSON_TOKENS: u32 = 16;
/// At most one lesson of that kind per endpoint and this time.
const LESSON_INTERVAL: Duration = Duration::from_millis(200);
/// From this many tokens on, an expected hit that did not happen is suspicious.
const NOTABLE_HIT: u32 = 512;
/// No answer is believed to be longer, in tokens.
const MOST_OUTPUT: u64 = 1 << 20;
/// So many in a row, and the endpoint's cache is not what we think.
const PHANTOM_HITS: u32 = 3;

impl Pool {
    pub(super) fn first_token(&mut self, now: Timestamp, id: BookingId) {
        let Some(mut booking) = self.bookings.remove(&id) else {
            return;
        };
        if booking.first_token_at.is_none() {
            booking.first_token_at = Some(now);
            self.sign_of_life(now, &mut booking);
            if booking.phase == Phase::Prefill {
                self.learn_prefill(now, &booking);
            }
            self.start_decoding(now, &mut booking);
            self.wants_plan = true;
        }
        self.bookings.insert(id, booking);
    }

    /// An answer that does not stream gives no sign when its prefill ends: the prediction has to do.
    pub(super) fn presume_prefilled(&mut self, now: Timestamp, id: BookingId) {
        let Some(mut booking) = self.bookings.remove(&id) else {
            return;
        };
        booking.prefill_timer = None;
        self.start_decoding(now, &mut booking);
        self.wants_plan = true;
        self.bookings.insert(id, booking);
    }

    pub(super) fn progress(&mut self, now: Timestamp, id: BookingId, output_tokens: u64) {
        if self
            .bookings
            .get(&id)
            .is_some_and(|booking| booking.first_token_at.is_none())
        {
            self.first_token(now, id);
        }
        let Some(booking) = self.bookings.get_mut(&id) else {
            return;
        };
        booking.last_at = now;
        let Ok(index) = self
            .endpoints
            .binary_search_by_key(&booking.endpoint, |endpoint| endpoint.id)
        else {
            return;
        };
        let endpoint = &mut self.endpoints[index];
        if endpoint.incarnation != booking.incarnation {
            return;
        }
        endpoint.last_sign = now;
        endpoint
            .load
            .grow(booking, u32::try_from(output_tokens).unwrap_or(u32::MAX));
        let is_calm = endpoint
            .load
            .calm_since()
            .is_some_and(|since| since <= booking.calm.0);
        if !is_calm {
            booking.calm = (now, booking.output);
            return;
        }
        let tokens = booking.output - booking.calm.1;
        if tokens >= LESSON_TOKENS && now.since(endpoint.last_lesson) >= LESSON_INTERVAL {
            endpoint.last_lesson = now;
            let step = now.seconds_since(booking.calm.0) / f64::from(tokens);
            booking.calm = (now, booking.output);
            self.learn_step(now, index, step);
        }
    }

    pub(super) fn finished(&mut self, now: Timestamp, id: BookingId, end: AttemptEnd) {
        let Some(mut booking) = self.bookings.remove(&id) else {
            return;
        };
        self.timers
            .set(&mut booking.prefill_timer, Timer::Prefilled(id), None);
        let footprint = std::mem::take(&mut booking.footprint);
        self.unstored.release(&footprint);
        self.ended.add(now, 1.0);
        self.wants_plan = true;
        self.account(now, &mut booking, end);
        let Some(index) = self.index_of_attempt(&booking) else {
            return;
        };
        self.leave_endpoint(now, index, &booking);
        if let Some(holder) = self.endpoints[index].holder {
            let has_answered =
                booking.phase == Phase::Decode || matches!(end, AttemptEnd::Completed { .. });
            self.keep_footprint(holder, footprint, has_answered);
        }
        match end {
            // Nothing more is asked of an engine that has left.
            _ if self.endpoints[index].presence() == Presence::Gone => {}
            AttemptEnd::Completed { cached_tokens, .. } => {
                self.completed(now, index, &booking, cached_tokens);
            }
            AttemptEnd::ClientClosed | AttemptEnd::Rejected => {}
            AttemptEnd::Busy => self.busy(now, index),
            AttemptEnd::Failed => self.failed(now, index, &booking),
        }
        self.watch_after_end(now, index);
        self.forget_if_gone(index);
    }

    fn leave_endpoint(&mut self, now: Timestamp, index: usize, booking: &Booking) {
        if booking.phase == Phase::Prefill {
            self.note_prefill(now, index, booking, Prefill::Ends);
        }
        let moved = self.endpoints[index].load.remove(now, booking);
        if let Some(other) = moved.in_flight.and_then(|id| self.bookings.get_mut(&id)) {
            other.position = booking.position;
        }
        if let Some(other) = moved.stream.and_then(|id| self.bookings.get_mut(&id)) {
            other.stream = booking.stream;
        }
    }

    /// Gives back what the flow was charged and charges what the attempt cost, as far as it is known.
    fn account(&mut self, now: Timestamp, booking: &mut Booking, end: AttemptEnd) {
        let cost = self.config.flow.cost;
        let prompt = u64::from(booking.uncached) + u64::from(booking.cached);
        let actual = match end {
            AttemptEnd::Completed {
                cached_tokens,
                output_tokens,
            } => {
                let (fairness, model) = (&booking.fairness, booking.model);
                let plausible = match booking.output_bound {
                    0 => output_tokens.min(MOST_OUTPUT),
                    bound => output_tokens.min(u64::from(bound)),
                };
                self.answers.observe(fairness, model, plausible);
                let cached = cached_tokens
                    .unwrap_or(u64::from(booking.cached))
                    .min(prompt);
                cost.of(prompt - cached, cached, output_tokens)
            }
            AttemptEnd::ClientClosed => cost.of(
                u64::from(booking.uncached),
                u64::from(booking.cached),
                u64::from(booking.output),
            ),
            AttemptEnd::Rejected | AttemptEnd::Busy | AttemptEnd::Failed => 0,
        };
        if let Some(charge) = booking.charge.take() {
            self.queue.settle(now, charge, actual);
        }
    }

    /// The endpoint an attempt runs on, unless another engine has taken its place.
    pub(super) fn index_of_attempt(&self, booking: &Booking) -> Option<usize> {
        self.index_of(booking.endpoint)
            .filter(|index| self.endpoints[*index].incarnation == booking.incarnation)
    }

    fn sign_of_life(&mut self, now: Timestamp, booking: &mut Booking) {
        booking.last_at = now;
        if let Some(index) = self.index_of_attempt(booking) {
            self.endpoints[index].last_sign = now;
            self.endpoints[index].health.works();
            let class = &mut self.classes[self.endpoints[index].class];
            class.first_tokens = class.first_tokens.saturating_add(1);
        }
    }

    fn start_decoding(&mut self, now: Timestamp, booking: &mut Booking) {
        self.timers.set(
            &mut booking.prefill_timer,
            Timer::Prefilled(booking.id),
            None,
        );
        let Some(index) = self.index_of_attempt(booking) else {
            return;
        };
        if booking.phase == Phase::Prefill {
            self.endpoints[index].load.start_decoding(now, booking);
            booking.calm = (now, booking.output);
            self.note_prefill(now, index, booking, Prefill::Ends);
        }
        if booking.first_token_at.is_some() {
            booking.patience_s = self.patience_between_tokens(index);
        }
    }

    fn completed(
        &mut self,
        now: Timestamp,
        index: usize,
        booking: &Booking,
        cached_tokens: Option<u64>,
    ) {
        let endpoint = &mut self.endpoints[index];
        endpoint.last_sign = now;
        endpoint.health.works();
        let Some(found) = cached_tokens.filter(|_| booking.cached >= NOTABLE_HIT) else {
            return;
        };
        if found.saturating_mul(10) >= u64::from(booking.cached) {
            endpoint.phantom_hits = 0;
            return;
        }
        endpoint.phantom_hits += 1;
        if endpoint.phantom_hits >= PHANTOM_HITS && endpoint.is_up() {
            self.forget_cache(index);
        }
    }

    /// Times the prefill of the front of the line, if nothing else can have blurred it.
    fn learn_prefill(&mut self, now: Timestamp, booking: &Booking) {
        let Some(index) = self.index_of_attempt(booking) else {
            return;
        };
        let endpoint = &self.endpoints[index];
        let Some(since) = endpoint.load.front_since(booking.id) else {
            return;
        };
        let is_clear = booking.alone
            || f64::from(booking.uncached) >= f64::from(self.config.engine.batch_tokens) / 2.0;
        if !is_clear {
            return;
        }
        let seconds = now.seconds_since(since.max(booking.dispatched_at));
        let foreign = self.others(now, endpoint);
        if foreign.waiting > 0 {
            return;
        }
        let decoding = f64::from(endpoint.load.decoding() + foreign.running);
        let context = endpoint.load.decoding_context() as f64 + foreign.context;
        let calibration = &mut self.classes[endpoint.class].calibration;
        let model = calibration.model();
        let area = booking.double_area() as f64 / 2.0;
        let pace = endpoint.pace.factor();
        let predicted = model.prefill(
            f64::from(booking.uncached),
            area,
            model.over(decoding, context),
        ) * pace;
        calibration.prefilled(
            booking.uncached,
            booking.cached,
            decoding,
            context,
            seconds / pace,
        );
        self.endpoints[index].pace.observe(seconds, predicted);
    }

    fn learn_step(&mut self, now: Timestamp, index: usize, seconds: f64) {
        let endpoint = &self.endpoints[index];
        let foreign = self.others(now, endpoint);
        let decoding = f64::from(endpoint.load.decoding() + foreign.running);
        let context = endpoint.load.decoding_context() as f64 + foreign.context;
        let calibration = &mut self.classes[endpoint.class].calibration;
        let model = calibration.model();
        let pace = endpoint.pace.factor();
        let predicted = model.decode_step(model.over(decoding, context)) * pace;
        calibration.decoded(decoding, context, seconds / pace);
        self.endpoints[index].pace.observe(seconds, predicted);
    }
}
