//! Endpoints come, change, are observed, and go.

use std::sync::Arc;

use super::dispatch::Changed;
use super::snapshot::{EndpointSnapshot, EndpointState, PoolSnapshot, Saturation, SaturationCause};
use super::timers::Timer;
use super::{Class, Pool};
use crate::cost::{Calibration, StepModel};
use crate::endpoint::view::View;
use crate::endpoint::{Endpoint, Presence};
use crate::{EndpointId, EndpointSpec, Observation, Timestamp};

impl Pool {
    /// The state of the pool at `now`.
    pub fn snapshot(&self, now: Timestamp) -> PoolSnapshot {
        PoolSnapshot {
            endpoints: self
                .endpoints
                .iter()
                .map(|endpoint| self.endpoint_snapshot(now, endpoint))
                .collect(),
            queue_length: self.queue.len(),
            queue_bytes: self.queue.bytes(),
            bookings: self.bookings.len(),
            saturation: self.saturation(now),
            index_pairs: self.residency.pairs(),
            index_bytes: self.residency.bytes(),
        }
    }

    /// How full the pool is at `now`.
    pub fn saturation(&self, now: Timestamp) -> Saturation {
        let ready = || {
            self.endpoints
                .iter()
                .filter(|endpoint| endpoint.state() == EndpointState::Ready)
        };
        let count = ready().count();
        if count == 0 {
            return Saturation {
                cause: SaturationCause::NoEndpoint,
                value: 1.0,
            };
        }
        let taken = |endpoint: &Endpoint| {
            let room = f64::from(endpoint.load.count()) / f64::from(endpoint.room.places().max(1));
            room.max(self.kv_use(now, endpoint)).min(1.0)
        };
        let value = ready().map(taken).sum::<f64>() / count as f64;
        let is_seen = ready().any(|endpoint| endpoint.view.is_fresh(self.oldest_metrics(now)));
        Saturation {
            cause: if is_seen {
                SaturationCause::Load
            } else {
                SaturationCause::NoData
            },
            value,
        }
    }

    fn endpoint_snapshot(&self, now: Timestamp, endpoint: &Endpoint) -> EndpointSnapshot {
        let foreign = endpoint.view.foreign(self.oldest_metrics(now));
        let model = self.classes[endpoint.class].calibration.model();
        let over = model.over(
            f64::from(endpoint.load.decoding()),
            endpoint.load.decoding_context() as f64,
        );
        EndpointSnapshot {
            id: endpoint.id,
            name: endpoint.name.clone(),
            state: endpoint.state(),
            bookings: endpoint.load.count(),
            prefilling: endpoint.load.prefilling(),
            pending_tokens: endpoint.load.pending_tokens(),
            context_tokens: endpoint.load.decoding_context(),
            effective_load: endpoint.load.count() + foreign.waiting + foreign.running,
            room: endpoint.room.places(),
            kv_use: self.kv_use(now, endpoint),
            metrics_age_s: endpoint.view.age_seconds(now),
            resident_tokens: endpoint
                .holder
                .map_or(0, |holder| self.residency.resident_tokens(holder)),
            queue_s: endpoint
                .load
                .queue_seconds(now, model, over, endpoint.pace.factor(), 0.0),
        }
    }

    /// Metrics from before this time no longer count.
    pub(super) fn oldest_metrics(&self, now: Timestamp) -> Timestamp {
        now.before(self.config.engine.stale_after)
    }

    /// Share of the KV cache that own bookings and others hold.
    pub(super) fn kv_use(&self, now: Timestamp, endpoint: &Endpoint) -> f64 {
        let foreign = endpoint.view.foreign(self.oldest_metrics(now));
        self.kv_share(endpoint, foreign.context)
    }

    /// The same where the context of others is known.
    pub(super) fn kv_share(&self, endpoint: &Endpoint, foreign_context: f64) -> f64 {
        let default = self.config.residency.default_capacity_tokens;
        let capacity = endpoint.view.capacity().unwrap_or(default);
        (endpoint.load.context() as f64 + foreign_context) / capacity.max(1) as f64
    }

    pub(super) fn endpoint_up(&mut self, now: Timestamp, spec: &EndpointSpec) {
        let class = self.class(&spec.class);
        let default_room = self.config.engine.room;
        match self
            .endpoints
            .binary_search_by_key(&spec.id, |endpoint| endpoint.id)
        {
            Ok(index) if self.endpoints[index].is_same_engine(spec) => {
                self.endpoints[index].configure(spec, class, default_room);
                if self.endpoints[index].holder.is_none() {
                    self.start_cold(index);
                    self.watch_after_end(now, index);
                }
            }
            Ok(index) => {
                self.clear_timers(index);
                self.drop_residency(index);
                self.endpoints[index] = self.new_endpoint(now, spec, class);
                self.start_cold(index);
            }
            Err(index) => {
                let endpoint = self.new_endpoint(now, spec, class);
                self.endpoints.insert(index, endpoint);
                self.start_cold(index);
            }
        }
        self.turn(now, Changed::Fleet);
    }

    /// Attempts know their engine by its incarnation: those of an earlier one under the same id no longer count.
    fn new_endpoint(&mut self, now: Timestamp, spec: &EndpointSpec, class: usize) -> Endpoint {
        let mut endpoint = Endpoint::new(now, spec, class, self.config.engine.room);
        endpoint.incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        endpoint
    }

    /// It takes nothing new from here on. What it has in flight still counts until it ends.
    pub(super) fn endpoint_down(&mut self, id: EndpointId) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        self.clear_timers(index);
        self.drop_residency(index);
        self.endpoints[index].retire();
        self.forget_if_gone(index);
    }

    pub(super) fn endpoint_draining(&mut self, id: EndpointId) {
        if let Some(index) = self.index_of(id) {
            self.endpoints[index].drain();
        }
    }

    pub(super) fn observed(&mut self, now: Timestamp, id: EndpointId, observation: &Observation) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        if self.endpoints[index].view.shows_restart(observation) {
            self.endpoints[index].view = View::new(now);
            self.drop_residency(index);
            self.start_cold(index);
        }
        let endpoint = &mut self.endpoints[index];
        // An engine that works for others is busy, however silent ours are; one that hangs counts nothing.
        if endpoint.view.shows_work(observation) {
            endpoint.last_sign = now;
        }
        endpoint.view.observe(now, observation, &endpoint.load);
        endpoint.pace.relax(now);
        if let Some(models) = &observation.models {
            endpoint.reported_models(models);
        }
        if let Some((holder, capacity)) = endpoint.holder.zip(endpoint.view.capacity()) {
            self.residency.set_capacity(holder, capacity);
        }
        self.turn(now, Changed::Endpoint(index));
    }

    pub(super) fn scrape_failed(&mut self, id: EndpointId) {
        if let Some(index) = self.index_of(id) {
            self.endpoints[index].view.scrape_failed();
        }
    }

    pub(super) fn index_of(&self, id: EndpointId) -> Option<usize> {
        self.endpoints
            .binary_search_by_key(&id, |endpoint| endpoint.id)
            .ok()
    }

    /// Forgets what an endpoint that is still there held.
    pub(super) fn forget_cache(&mut self, index: usize) {
        self.drop_residency(index);
        self.start_cold(index);
    }

    /// Removes an endpoint that is gone once nothing of it is in flight.
    pub(super) fn forget_if_gone(&mut self, index: usize) {
        if self.endpoints[index].presence() == Presence::Gone
            && self.endpoints[index].load.count() == 0
        {
            self.clear_timers(index);
            self.endpoints.remove(index);
            self.map_holders();
        }
    }

    fn class(&mut self, name: &Arc<str>) -> usize {
        if let Some(at) = self.classes.iter().position(|class| class.name == *name) {
            return at;
        }
        let first = StepModel::from_prefill_rate(
            self.config.engine.prefill_rate,
            self.config.engine.batch_tokens,
        );
        self.classes.push(Class {
            name: name.clone(),
            calibration: Calibration::new(first),
            first_tokens: 0,
        });
        self.classes.len() - 1
    }

    fn drop_residency(&mut self, index: usize) {
        if let Some(holder) = self.endpoints[index].holder.take() {
            self.residency.remove_holder(holder);
        }
        self.endpoints[index].phantom_hits = 0;
        self.map_holders();
    }

    fn start_cold(&mut self, index: usize) {
        let known = self.endpoints[index].view.capacity();
        let capacity = known.unwrap_or(self.config.residency.default_capacity_tokens);
        self.endpoints[index].holder = Some(self.residency.add_holder(capacity));
        self.map_holders();
    }

    fn map_holders(&mut self) {
        self.by_holder.fill(None);
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            if let Some(holder) = endpoint.holder {
                let slots = self.by_holder.len().max(holder.index() + 1);
                self.by_holder.resize(slots, None);
                self.by_holder[holder.index()] = Some(index as u32);
            }
        }
    }

    fn clear_timers(&mut self, index: usize) {
        let endpoint = &mut self.endpoints[index];
        self.timers
            .set(&mut endpoint.room.timer, Timer::Room(endpoint.id), None);
        self.timers
            .set(&mut endpoint.health.timer, Timer::Probe(endpoint.id), None);
        self.timers
            .set(&mut endpoint.hang_timer, Timer::Hang(endpoint.id), None);
    }
}
