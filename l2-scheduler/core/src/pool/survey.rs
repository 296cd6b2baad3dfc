//! Endpoints as decisions see them: measured anew where something changed.

use std::time::Duration;

use super::Pool;
use super::turn::Scratch;
use crate::Timestamp;
use crate::cost::kappa;
use crate::endpoint::Endpoint;
use crate::peers::VECTOR_LIFE;
use crate::plan::Spot;
use crate::window::WINDOW_S;

/// What is learned of a class of engines reaches the plan so often at most: each time every spot of it changes.
const LESSONS_EVERY: Duration = Duration::from_millis(50);
/// Endpoints that are measured anew in one go for what was learned; the others have their turn later.
const TOLD_AT_ONCE: u32 = 128;
/// Endpoints that may await the next turn with news; what comes on top is measured before.
const MOST_CHANGED: usize = 32;
/// A mean prompt of another length is taken over once it is another by this part.
const MEAN_CHANGE: f64 = 0.05;
/// Streams never gain less than this leaves them.
const MOST_UTILISED: f64 = 0.8;

impl Pool {
    /// Takes the measure of every endpoint.
    pub(super) fn survey(&mut self, now: Timestamp, scratch: &mut Scratch) {
        self.apply_lessons(now, scratch);
        if self.endpoints.take_moved() {
            scratch.board.clear();
            scratch.filters.reset(&self.endpoints);
            for class in &mut self.classes {
                class.untold = None;
            }
            for index in 0..self.endpoints.len() as u32 {
                scratch.board.push(self.spot(now, index));
            }
        }
        for index in scratch.board.outdated(now) {
            self.endpoints.leave_note(index as usize);
        }
        self.measure(now, 0, scratch);
        let totals = scratch.board.advance(now);
        let prefill = self.prefill_utilisation(now, totals.ready);
        scratch.utilisation = prefill.min(MOST_UTILISED);
        scratch.kappa = kappa(self.config.policy.kappa_factor(), prefill, totals.kv_use);
        scratch.saturation = totals.saturation;
    }

    /// After its last output nobody waits for the pool: part of what the next turn would have to do is done before, a
    /// little with every event.
    pub(super) fn keep_up(&mut self, now: Timestamp) {
        let is_behind = self.endpoints.changed() > MOST_CHANGED
            || self.classes.iter().any(|class| class.untold.is_some());
        if !is_behind || self.endpoints.has_moved() {
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        self.tell_lessons(&mut scratch);
        self.measure(now, MOST_CHANGED, &mut scratch);
        self.scratch = scratch;
    }

    /// Takes the measure of endpoints that may have changed, but for `left` of them.
    fn measure(&mut self, now: Timestamp, left: usize, scratch: &mut Scratch) {
        while self.endpoints.changed() > left
            && let Some(index) = self.endpoints.next_changed()
        {
            let standing = self.endpoints[index as usize].standing();
            scratch.filters.renew(index as usize, standing);
            scratch.board.set(index, self.spot(now, index));
        }
    }

    fn apply_lessons(&mut self, now: Timestamp, scratch: &mut Scratch) {
        for class in &mut self.classes {
            class.apply_lessons(now, LESSONS_EVERY);
        }
        self.tell_lessons(scratch);
        let (mean, applied) = (self.mean_uncached, self.mean_applied);
        if (mean - applied).abs() > MEAN_CHANGE * applied {
            self.mean_applied = mean;
            self.endpoints
                .note(|endpoint| endpoint.view.has_foreign_waiting());
        }
    }

    /// Lets some of the endpoints hear what was learned of their class.
    fn tell_lessons(&mut self, scratch: &mut Scratch) {
        for (at, class) in self.classes.iter_mut().enumerate() {
            if let Some(first) = class.untold {
                let told = first..first.saturating_add(TOLD_AT_ONCE);
                class.untold = scratch.board.relearn(at as u32, class.model, told);
            }
        }
    }

    pub(super) fn spot(&self, now: Timestamp, index: u32) -> Spot {
        let endpoint = &self.endpoints[index as usize];
        let load = &endpoint.load;
        let oldest = self.oldest_metrics(now);
        let model = self.classes[endpoint.class].model;
        let others = self.others(now, endpoint);
        let pace = endpoint.pace.factor();
        let decoding = f64::from(load.decoding() + others.running);
        let context = load.decoding_context() as f64 + others.context;
        let capacity = endpoint
            .view
            .capacity()
            .unwrap_or(self.config.residency.default_capacity_tokens);
        let sharing = endpoint.view.sharing(oldest);
        let (front_since, front_work) = load.front();
        let mut spot = Spot {
            index,
            now,
            holds_until: self.holds_until(now, endpoint),
            is_ready: endpoint.is_up() && !endpoint.health.is_quarantined(),
            name_hash: endpoint.name_hash,
            class: endpoint.class as u32,
            model,
            pace,
            decoding,
            context,
            over: 0.0,
            step_s: 0.0,
            pending_tokens: load.pending_tokens() as f64 + others.pending_tokens,
            pending_area: load.pending_double_area() as f64 / 2.0 + others.pending_area,
            prefilling: f64::from(load.prefilling() + others.waiting),
            front: (front_since, 0.0),
            front_work,
            in_flight: load.count(),
            others: others.waiting + others.running,
            places: endpoint.room.places(),
            depth: self.config.engine.depth,
            sharing,
            kv_used: load.context() as f64 * sharing + others.context + others.pending_context,
            kv_capacity: capacity.max(1) as f64,
            handicap_s: endpoint.view.handicap_seconds(oldest),
            peer_slack: others.slack,
            backlog_s: 0.0,
            queue_s: 0.0,
            steps_left: 0.0,
            full_step_s: 0.0,
            is_reserved: false,
        };
        // Fills in what follows from the model and the load.
        spot.relearn(model);
        spot
    }

    /// Until when a spot measured now stays true if nothing happens.
    fn holds_until(&self, now: Timestamp, endpoint: &Endpoint) -> Timestamp {
        let seen = endpoint
            .view
            .holds_until(now, self.config.engine.stale_after);
        let vectors = endpoint.peers.iter().map(|(_, at, _)| *at + VECTOR_LIFE);
        vectors
            .filter(|lapse| *lapse > now)
            .map(|lapse| Timestamp(lapse.0 - 1))
            .fold(seen, Timestamp::min)
    }

    /// Share of the time that engines spend on prefills, by what was assigned lately.
    fn prefill_utilisation(&mut self, now: Timestamp, engines: usize) -> f64 {
        self.assigned.sum(now) / (engines.max(1) as f64 * WINDOW_S)
    }
}
