//! Endpoints come, change, are observed, and go.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::snapshot::{
    BandSnapshot, EndpointSnapshot, EndpointState, FlowSnapshot, PoolSnapshot, Queued, Saturation,
    SaturationCause,
};
use super::timers::Timer;
use super::{Class, Pool};
use crate::cost::StepModel;
use crate::endpoint::view::View;
use crate::endpoint::{Endpoint, ModelKey, Presence};
use crate::flow::queue::{Flow, Tier};
use crate::{EndpointId, EndpointSpec, Observation, Timestamp};

/// Flows a snapshot shows.
const SHOWN_FLOWS: usize = 64;

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
            bands: self
                .queue
                .tiers()
                .iter()
                .filter(|tier| tier.is_active())
                .map(band_snapshot)
                .collect(),
            flows: self.flow_snapshots(),
            active_flows: self.queue.flows().count(),
            peers: self.peers.count(now),
            peer_silence_s: self.peers.silence(now),
            bookings: self.bookings.len(),
            saturation: self.saturation(now),
            index_pairs: self.residency.pairs(),
            index_bytes: self.residency.bytes(),
        }
    }

    /// The flows with most waiting, then most running.
    fn flow_snapshots(&self) -> Vec<FlowSnapshot> {
        let mut flows: Vec<_> = self.queue.flows().collect();
        flows.sort_by(|(band, a), (other, b)| {
            let load = |flow: &Flow| Reverse((flow.len, flow.running));
            load(a)
                .cmp(&load(b))
                .then(other.cmp(band))
                .then(a.id.cmp(&b.id))
        });
        flows
            .into_iter()
            .take(SHOWN_FLOWS)
            .map(|(band, flow)| FlowSnapshot {
                band: band.0,
                flow: flow.id.to_string(),
                waiting: flow.len,
                running: flow.running,
                running_wtu: flow.meter.in_flight() as f64 / 1e6,
                over_quota: flow.parked,
            })
            .collect()
    }

    /// The first `most` of the line for every model: who waits where, and how long that will probably take.
    pub fn line(&mut self, now: Timestamp, most: usize) -> Vec<Queued> {
        let mut picks = Vec::new();
        self.queue.order(now, &self.config.flow, most, &mut picks);
        let busy = self
            .busy_since
            .map_or(0, |since| now.since(since).as_secs());
        let rate = self.queue.rate_of_last(now, busy);
        let mut before: Vec<(ModelKey, usize)> = Vec::new();
        let mut work = 0;
        let mut line = Vec::with_capacity(picks.len());
        for pick in picks {
            let Some(waiting) = self.queue.get(pick.place) else {
                continue;
            };
            let at = before
                .iter()
                .position(|(model, _)| *model == waiting.model)
                .unwrap_or_else(|| {
                    before.push((waiting.model, 0));
                    before.len() - 1
                });
            line.push(Queued {
                request: waiting.request.key,
                position: before[at].1,
                wait: (busy > 0 && rate > 0.0)
                    .then(|| Duration::from_secs_f64((work as f64 / rate).min(86_400.0))),
            });
            before[at].1 += 1;
            work += waiting.cost;
        }
        line
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
            let index = self.index_of(endpoint.id).unwrap_or_default();
            self.spot(now, index as u32).saturation()
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
        let index = self.index_of(endpoint.id).unwrap_or_default();
        let spot = self.spot(now, index as u32);
        EndpointSnapshot {
            id: endpoint.id,
            name: endpoint.name.clone(),
            state: endpoint.state(),
            bookings: endpoint.load.count(),
            prefilling: endpoint.load.prefilling(),
            pending_tokens: endpoint.load.pending_tokens(),
            context_tokens: endpoint.load.decoding_context(),
            effective_load: spot.in_flight + spot.others,
            room: endpoint.room.places(),
            kv_use: spot.kv_use(),
            metrics_age_s: endpoint.view.age_seconds(now),
            resident_tokens: endpoint
                .holder
                .map_or(0, |holder| self.residency.resident_tokens(holder)),
            queue_s: spot.queue_s,
        }
    }

    /// Metrics from before this time no longer count.
    pub(super) fn oldest_metrics(&self, now: Timestamp) -> Timestamp {
        now.before(self.config.engine.stale_after)
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
        self.wants_plan = true;
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
        self.wants_plan = true;
    }

    pub(super) fn endpoint_draining(&mut self, id: EndpointId) {
        if let Some(index) = self.index_of(id) {
            self.endpoints[index].drain();
            self.wants_plan = true;
        }
    }

    pub(super) fn observed(&mut self, now: Timestamp, id: EndpointId, observation: &Observation) {
        let Some(index) = self.index_of(id) else {
            return;
        };
        if self.endpoints[index].view.shows_restart(observation) {
            self.endpoints[index].view = View::new(now);
            self.lose_footprints(index);
            self.drop_residency(index);
            self.start_cold(index);
        }
        let endpoint = &mut self.endpoints[index];
        // An engine that works for others is busy, however silent ours are; one that hangs counts nothing.
        if endpoint.view.shows_work(observation) {
            endpoint.last_sign = now;
        }
        endpoint.view.observe(now, observation, &endpoint.load);
        self.observed_at = now;
        endpoint.pace.relax(now);
        if let Some(models) = &observation.models {
            endpoint.reported_models(models);
            self.wants_plan = true;
        }
        let endpoint = &self.endpoints[index];
        if let Some((holder, capacity)) = endpoint.holder.zip(endpoint.view.capacity()) {
            self.residency.set_capacity(holder, capacity);
        }
        self.plan_soon(now);
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
        self.classes.push(Class::new(name.clone(), first));
        self.classes.len() - 1
    }

    fn drop_residency(&mut self, index: usize) {
        if let Some(holder) = self.endpoints[index].holder.take() {
            self.unstored.forget(holder);
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
        self.fleet_version += 1;
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

fn band_snapshot(tier: &Tier) -> BandSnapshot {
    BandSnapshot {
        band: tier.band.0,
        waiting: tier.len,
        waiting_bytes: tier.bytes,
        waiting_wtu: tier.cost as f64 / 1e6,
        running: tier.running,
        running_wtu: tier.meter.in_flight() as f64 / 1e6,
        overloaded: tier.time.is_overloaded(),
        newest_first: tier.codel.newest_first(),
        over_quota: tier.parked,
    }
}
