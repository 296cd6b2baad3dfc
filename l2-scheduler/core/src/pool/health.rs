//! Busy, failing and hanging endpoints.
//!
//! An engine can hang while it still answers /health: only the silence of its own requests tells. It hangs when everything
//! that was in flight at its last sign of life is overdue. What was sent later does not excuse it, or steady traffic would
//! hide the silence.

use super::timers::Timer;
use super::{Output, Pool};
use crate::endpoint::Presence;
use crate::endpoint::booking::{Booking, Phase};
use crate::{EndpointId, Timestamp};

/// First tokens after which the speed of a class of engines is known well enough to judge silence by it, and to call a
/// request doomed.
pub(super) const PROVEN: u32 = 8;
/// How much longer silence is borne before.
const UNPROVEN_PATIENCE: f64 = 10.0;

impl Pool {
    pub(super) fn busy(&mut self, now: Timestamp, index: usize) {
        let endpoint = &mut self.endpoints[index];
        let next = endpoint.room.busy(now, endpoint.load.count());
        self.timers.set(
            &mut endpoint.room.timer,
            Timer::Room(endpoint.id),
            Some(next),
        );
    }

    pub(super) fn widen_room(&mut self, now: Timestamp, id: EndpointId) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        let endpoint = &mut self.endpoints[index];
        endpoint.room.timer = None;
        let next = endpoint.room.widen(now);
        self.timers
            .set(&mut endpoint.room.timer, Timer::Room(id), next);
        self.wants_plan = true;
    }

    pub(super) fn failed(&mut self, now: Timestamp, index: usize, booking: &Booking) {
        let endpoint = &mut self.endpoints[index];
        // The failure of an attempt given up for a hang says nothing new.
        if booking.abandoned
            || !endpoint
                .health
                .failed(&self.config.health, endpoint.view.is_silent())
        {
            return;
        }
        self.quarantine(now, index);
        // Whatever comes back after failures has most likely been restarted.
        if self.endpoints[index].is_up() {
            self.forget_cache(index);
        }
    }

    fn quarantine(&mut self, now: Timestamp, index: usize) {
        let endpoint = &mut self.endpoints[index];
        let probe = endpoint.health.quarantine(now, &self.config.health);
        self.timers.set(
            &mut endpoint.health.timer,
            Timer::Probe(endpoint.id),
            Some(probe),
        );
    }

    pub(super) fn probe(&mut self, now: Timestamp, id: EndpointId) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        let health = &mut self.endpoints[index].health;
        health.timer = None;
        let again = health.next_probe(now, &self.config.health);
        self.timers
            .set(&mut health.timer, Timer::Probe(id), Some(again));
        self.outputs.push_back(Output::Probe { endpoint: id });
    }

    pub(super) fn probed(&mut self, now: Timestamp, id: EndpointId, ok: bool) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        let endpoint = &mut self.endpoints[index];
        if !ok || !endpoint.health.is_quarantined() {
            return;
        }
        endpoint.health.recover(now);
        // What is silent from before is not held against it again.
        endpoint.last_sign = now;
        let wider = endpoint.room.start_slowly(now);
        self.timers
            .set(&mut endpoint.room.timer, Timer::Room(id), Some(wider));
        let endpoint = &mut self.endpoints[index];
        self.timers
            .set(&mut endpoint.health.timer, Timer::Probe(id), None);
        self.watch_after_end(now, index);
        self.wants_plan = true;
    }

    /// Seconds a new attempt may be silent: until its first token, or its end if that is all it shows.
    pub(super) fn patience_seconds(&self, index: usize, booking: &Booking, ttft_s: f64) -> f64 {
        let config = &self.config.health;
        let expected = if booking.streaming {
            ttft_s
        } else if booking.output_bound == 0 {
            return config
                .whole_answer
                .as_secs_f64()
                .max(config.hang_factor * ttft_s);
        } else {
            ttft_s + f64::from(booking.output_bound) * self.step_seconds(index)
        };
        (config.hang_factor * expected).max(self.least_patience(index))
    }

    /// Seconds a stream may be silent: a full step of prefill may come between two of its tokens.
    pub(super) fn patience_between_tokens(&self, index: usize) -> f64 {
        let config = &self.config.health;
        let endpoint = &self.endpoints[index];
        let model = self.classes[endpoint.class].calibration.model();
        let batch = model.prefill(model.batch, model.batch * model.batch / 2.0, 0.0)
            * endpoint.pace.factor();
        (config.hang_factor * (self.step_seconds(index) + batch)).max(self.least_patience(index))
    }

    /// Silence below this is no hang. While the speed of a class is only guessed, that guess may be ten times too good.
    fn least_patience(&self, index: usize) -> f64 {
        let floor = self.config.health.hang_floor.as_secs_f64();
        let class = &self.classes[self.endpoints[index].class];
        if class.first_tokens < PROVEN {
            UNPROVEN_PATIENCE * floor
        } else {
            floor
        }
    }

    fn step_seconds(&self, index: usize) -> f64 {
        let endpoint = &self.endpoints[index];
        let model = self.classes[endpoint.class].calibration.model();
        let over = model.over(
            f64::from(endpoint.load.decoding()),
            endpoint.load.decoding_context() as f64,
        );
        model.decode_step(over) * endpoint.pace.factor()
    }

    /// Look at this endpoint by `at`, if not earlier.
    pub(super) fn watch_for_hang(&mut self, index: usize, at: Timestamp) {
        let endpoint = &mut self.endpoints[index];
        let at = endpoint.hang_timer.map_or(at, |armed| armed.min(at));
        self.timers
            .set(&mut endpoint.hang_timer, Timer::Hang(endpoint.id), Some(at));
    }

    /// Fewer in flight: the rest may be overdue sooner than the armed look.
    pub(super) fn watch_after_end(&mut self, now: Timestamp, index: usize) {
        let endpoint = &mut self.endpoints[index];
        if endpoint.load.count() == 0 {
            self.timers
                .set(&mut endpoint.hang_timer, Timer::Hang(endpoint.id), None);
        } else if endpoint.presence() != Presence::Gone {
            self.watch_for_hang(index, now + self.config.health.hang_floor);
        }
    }

    pub(super) fn look_for_hang(&mut self, now: Timestamp, id: EndpointId) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        self.endpoints[index].hang_timer = None;
        match self.hangs_at(index) {
            Some(at) if at <= now => self.hang(now, index),
            Some(at) => self.watch_for_hang(index, at),
            None => {}
        }
    }

    /// When the endpoint will have to be taken as hung if nothing comes from it.
    fn hangs_at(&self, index: usize) -> Option<Timestamp> {
        let endpoint = &self.endpoints[index];
        let last_sign = endpoint.last_sign;
        let in_flight = || {
            endpoint
                .load
                .in_flight()
                .iter()
                .filter_map(|id| self.bookings.get(id))
        };
        let before = || in_flight().filter(|booking| booking.dispatched_at <= last_sign);
        let streams = || before().filter(|booking| booking.streaming);
        let is_silent = endpoint.view.is_silent();
        // Two silent streams, or one of an engine that cannot be scraped, are evidence enough: answers that come whole
        // may take minutes.
        let witnesses = streams().count();
        let mut hangs_at = if witnesses >= 2 || (is_silent && witnesses >= 1) {
            streams().map(Booking::overdue_at).max()
        } else {
            before().map(Booking::overdue_at).max()
        };
        let mut judged = if is_silent { witnesses * 2 } else { witnesses }.max(before().count());
        let oldest_after = in_flight()
            .filter(|b| b.dispatched_at > last_sign)
            .min_by_key(|b| (b.dispatched_at, b.id));
        if judged < 2
            && let Some(later) = oldest_after
        {
            hangs_at = hangs_at.max(Some(later.overdue_at()));
            judged += 1;
        }
        // One stream may pause while its engine works on, for example to collect a tool call.
        let lone_pause = judged == 1
            && before().any(|booking| booking.phase == Phase::Decode && booking.streaming);
        let floor = last_sign + self.config.health.hang_floor;
        hangs_at.filter(|_| !lone_pause).map(|at| at.max(floor))
    }

    fn hang(&mut self, now: Timestamp, index: usize) {
        if !self.endpoints[index].health.is_quarantined() {
            self.quarantine(now, index);
        }
        let endpoint = &self.endpoints[index];
        let mut silent: Vec<_> = endpoint.load.in_flight().to_vec();
        silent.sort_unstable();
        for id in silent {
            if let Some(booking) = self.bookings.get_mut(&id)
                && booking.first_token_at.is_none()
                && !booking.abandoned
            {
                booking.abandoned = true;
                self.outputs.push_back(Output::Abandon { booking: id });
            }
        }
    }
}
