//! The slow, obvious queue: a list, and sums over it.

use std::collections::BTreeMap;

use super::*;

pub(super) type FlowKey = (Band, u8);

/// One waiting request, with all that decides when it goes.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) flow: FlowKey,
    pub(super) model: ModelKey,
    pub(super) weight: u64,
    pub(super) cost: u64,
    pub(super) bytes: u64,
    pub(super) deadline: Timestamp,
    pub(super) is_retry: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RefFlow {
    pub(super) tag: u64,
    pub(super) running: usize,
    pub(super) in_flight: u64,
    pub(super) is_parked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RefBand {
    virtual_time: u64,
    overloaded_until: Option<Timestamp>,
    credit: i64,
    pub(super) is_parked: bool,
}

/// A list, and sums over it.
pub(super) struct Reference {
    pub(super) now: Timestamp,
    pub(super) config: FlowConfig,
    pub(super) line: Vec<Entry>,
    pub(super) flows: BTreeMap<FlowKey, RefFlow>,
    pub(super) bands: BTreeMap<Band, RefBand>,
    pub(super) running: Vec<(Charge, FlowKey, u64)>,
}

impl Reference {
    pub(super) fn new(config: FlowConfig) -> Self {
        Self {
            now: Timestamp(1_000_000_000),
            config,
            line: Vec::new(),
            flows: BTreeMap::new(),
            bands: BTreeMap::new(),
            running: Vec::new(),
        }
    }

    pub(super) fn waiting(&self, flow: FlowKey) -> usize {
        self.line.iter().filter(|entry| entry.flow == flow).count()
    }

    pub(super) fn of_band(&self, band: Band) -> impl Iterator<Item = &Entry> {
        self.line.iter().filter(move |entry| entry.flow.0 == band)
    }

    pub(super) fn is_active(&self, band: Band) -> bool {
        self.of_band(band).next().is_some()
            || self.running.iter().any(|(_, flow, _)| flow.0 == band)
    }

    pub(super) fn advance(&mut self, band: Band) {
        let Some(state) = self.bands.get(&band) else {
            return;
        };
        let least = self
            .of_band(band)
            .map(|entry| self.flows[&entry.flow])
            .filter(|flow| !flow.is_parked)
            .map(|flow| flow.tag)
            .min();
        let mut state = *state;
        state.virtual_time = state.virtual_time.max(least.unwrap_or(0));
        state.overloaded_until = state.overloaded_until.filter(|until| *until > self.now);
        self.bands.insert(band, state);
    }

    pub(super) fn join(&mut self, entry: Entry) {
        let flow = entry.flow;
        self.advance(flow.0);
        let now = self.bands.entry(flow.0).or_default().virtual_time;
        let is_first = self.waiting(flow) == 0;
        let state = self.flows.entry(flow).or_default();
        if is_first {
            state.tag = state.tag.max(now);
        }
        self.line.push(entry);
    }

    pub(super) fn leave(&mut self, place: Place) -> Entry {
        let at = self
            .line
            .iter()
            .position(|entry| entry.place == place)
            .expect("it waits");
        let entry = self.line.swap_remove(at);
        if self.waiting(entry.flow) == 0
            && let Some(flow) = self.flows.get_mut(&entry.flow)
        {
            flow.is_parked = false;
        }
        if self.of_band(entry.flow.0).next().is_none()
            && let Some(band) = self.bands.get_mut(&entry.flow.0)
        {
            band.credit = 0;
        }
        self.rest(entry.flow.0);
        entry
    }

    /// Where nothing waits or runs nobody owes anybody.
    fn rest(&mut self, band: Band) {
        if self.is_active(band) {
            return;
        }
        let of_band = self.flows.iter().filter(|(flow, _)| flow.0 == band);
        let latest = of_band.map(|(_, flow)| flow.tag).max().unwrap_or(0);
        if let Some(band) = self.bands.get_mut(&band) {
            band.virtual_time = band.virtual_time.max(latest);
        }
    }

    pub(super) fn unpark(&mut self, flow: FlowKey) {
        if !self.flows.get(&flow).is_some_and(|flow| flow.is_parked) {
            return;
        }
        self.advance(flow.0);
        let now = self.bands[&flow.0].virtual_time;
        let state = self.flows.get_mut(&flow).expect("just seen");
        state.is_parked = false;
        state.tag = state.tag.max(now);
    }

    pub(super) fn serve(&mut self, place: Place, charge: Charge) {
        let entry = self
            .line
            .iter()
            .find(|entry| entry.place == place)
            .expect("it waits")
            .clone();
        let flow = self.flows.get_mut(&entry.flow).expect("it waits");
        flow.running += 1;
        flow.in_flight += entry.cost;
        flow.tag += entry.cost / entry.weight;
        // What nobody named shares one promise.
        let named = &self.config.bands;
        let waits = |band: &Band| self.line.iter().any(|entry| entry.flow.0 == *band);
        let unnamed = self
            .bands
            .keys()
            .filter(|band| waits(band) && !named.contains_key(band));
        let unnamed = unnamed.count() as f64;
        for (band, state) in &mut self.bands {
            if self.line.iter().any(|entry| entry.flow.0 == *band) {
                let parts = if named.contains_key(band) {
                    1.0
                } else {
                    unnamed
                };
                let share = self.config.band(*band).starvation.share() / parts;
                state.credit += (entry.cost as f64 * share) as i64;
            }
        }
        let band = self.bands.get_mut(&entry.flow.0).expect("it waits");
        band.credit = (band.credit - entry.cost.cast_signed()).max(0);
        self.running.push((charge, entry.flow, entry.weight));
        self.leave(place);
    }

    pub(super) fn settle(&mut self, charge_cost: u64, flow: FlowKey, weight: u64, actual: u64) {
        let state = self.flows.get_mut(&flow).expect("it runs");
        state.running -= 1;
        state.in_flight -= charge_cost;
        state.tag = (state.tag + actual / weight).saturating_sub(charge_cost / weight);
        self.bands.get_mut(&flow.0).expect("it runs").is_parked = false;
        self.unpark(flow);
        self.rest(flow.0);
    }

    pub(super) fn doomed(&mut self, band: Band) {
        let Some(state) = self.bands.get_mut(&band) else {
            return;
        };
        let entered = state.overloaded_until.is_none();
        state.overloaded_until = Some(self.now + Duration::from_secs(5));
        if entered {
            let at = state.virtual_time;
            for (key, flow) in &mut self.flows {
                if key.0 == band {
                    flow.tag = at;
                }
            }
        }
    }

    /// Bands the queue has forgotten start anew.
    pub(super) fn forget(&mut self, queue: &Queue) {
        let gone: Vec<Band> = self
            .bands
            .keys()
            .copied()
            .filter(|band| queue.tier(*band).is_none())
            .collect();
        for band in gone {
            assert!(!self.is_active(band), "{band:?} was forgotten in use");
            self.bands.remove(&band);
            self.flows.retain(|flow, _| flow.0 != band);
        }
    }

    /// The order of one band and model, or of all its models: retries, and then again and again the flow whose first
    /// request has the least rank by what the flow has had.
    pub(super) fn ranked(
        &self,
        queue: &Queue,
        band: Band,
        model: ModelKey,
    ) -> Vec<(u64, Timestamp, Place)> {
        let tier = queue.tier(band).expect("something waits in it");
        let (ranking, newest_first) = (tier.time.ranking, tier.codel.newest_first());
        let is_free = |entry: &&Entry| entry.model == model && !self.flows[&entry.flow].is_parked;
        let mut retries: Vec<_> = self
            .of_band(band)
            .filter(is_free)
            .filter(|entry| entry.is_retry)
            .map(|entry| (0, Timestamp::ZERO, entry.place))
            .collect();
        retries.sort_unstable();
        let mut rest: Vec<Entry> = self
            .of_band(band)
            .filter(is_free)
            .filter(|entry| !entry.is_retry)
            .cloned()
            .collect();
        let mut taken: BTreeMap<FlowKey, u64> = BTreeMap::new();
        while !rest.is_empty() {
            let rank = |entry: &Entry| {
                let had = self.flows[&entry.flow].tag + taken.get(&entry.flow).unwrap_or(&0);
                (ranking.rank(had), entry.deadline, entry.place)
            };
            let is_first_of_flow = |entry: &&Entry| {
                rest.iter()
                    .filter(|other| other.flow == entry.flow)
                    .all(|other| {
                        if newest_first {
                            other.place <= entry.place
                        } else {
                            (entry.deadline, entry.place) <= (other.deadline, other.place)
                        }
                    })
            };
            let first = rest
                .iter()
                .filter(is_first_of_flow)
                .min_by_key(|entry| rank(entry))
                .expect("not empty")
                .clone();
            retries.push(rank(&first));
            *taken.entry(first.flow).or_default() += first.cost / first.weight;
            rest.retain(|entry| entry.place != first.place);
        }
        retries
    }

    pub(super) fn order(&mut self, queue: &Queue, ahead: usize) -> Vec<Pick> {
        let bands: Vec<Band> = self
            .bands
            .keys()
            .rev()
            .copied()
            .filter(|band| self.of_band(*band).next().is_some())
            .collect();
        for band in &bands {
            self.advance(*band);
        }
        let mut picks: Vec<Pick> = Vec::new();
        let models_of = |band: Band| {
            let mut models: Vec<ModelKey> = self.of_band(band).map(|entry| entry.model).collect();
            models.sort_unstable();
            models.dedup();
            models
        };
        for band in bands.iter().filter(|band| !self.bands[band].is_parked) {
            let has_higher = self
                .bands
                .keys()
                .any(|other| other > band && self.is_active(*other));
            // A head's rank, deadline and place decide between models; retries go before. All that the credit covers
            // together are due.
            let mut heads: Vec<_> = models_of(*band)
                .into_iter()
                .filter_map(|model| self.ranked(queue, *band, model).first().copied())
                .collect();
            heads.sort_unstable();
            let mut credit = self.bands[band].credit;
            for (_, _, place) in heads {
                let entry = self.line.iter().find(|entry| entry.place == place);
                credit -= entry.map_or(0, |entry| entry.cost.cast_signed());
                if !has_higher || self.config.band(*band).starvation.share() <= 0.0 || credit < 0 {
                    break;
                }
                picks.push(Pick {
                    place,
                    by_share: true,
                });
            }
        }
        let lines: usize = bands.iter().map(|band| models_of(*band).len()).sum();
        let ahead = (ahead * 8 / lines.max(1)).clamp(2.min(ahead), ahead);
        let mut left: BTreeMap<ModelKey, usize> = BTreeMap::new();
        let boosted = picks.clone();
        for band in bands.iter().filter(|band| !self.bands[band].is_parked) {
            let mut of_models = Vec::new();
            for model in models_of(*band) {
                let left = left.entry(model).or_insert(ahead);
                let mut first = self.ranked(queue, *band, model);
                first.truncate(*left);
                *left -= first.len();
                of_models.push(first);
            }
            // The order of each model stays.
            let mut ranked = Vec::new();
            while let Some(next) = of_models
                .iter_mut()
                .filter(|of_model| !of_model.is_empty())
                .min_by_key(|of_model| of_model[0])
            {
                ranked.push(next.remove(0));
            }
            picks.extend(
                ranked
                    .into_iter()
                    .map(|(_, _, place)| Pick {
                        place,
                        by_share: false,
                    })
                    .filter(|pick| boosted.iter().all(|other| other.place != pick.place)),
            );
        }
        picks
    }
}
