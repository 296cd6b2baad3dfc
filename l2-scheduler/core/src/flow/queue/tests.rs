//! The queue against a list that is sorted anew at every look, and the shares flows get of a band.

mod fairness;
mod reference;

use governance_context::FairnessId;
use proptest::prelude::*;
use reference::{Entry, FlowKey, Reference};

use super::*;
use crate::Targets;
use crate::flow::{BandConfig, FairOrder, OverQuota, Quota, QuotaRate, Starvation};

const BANDS: [i32; 4] = [2, 0, -1, -3];
const MICRO: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    Push(New),
    /// Serves what the order says comes at this position, if quotas admit it; who is over one is parked.
    Serve(usize),
    Settle(usize, u64),
    Remove(usize),
    UnparkFlow(usize),
    UnparkBand(usize),
    Raise(usize, usize),
    SetDeadline(usize, u64),
    SetCost(usize, u64),
    Doomed(usize),
    Reconfigure(usize),
    Pass(u64),
}

#[derive(Clone, Debug)]
struct New {
    flow: u8,
    band: usize,
    model: u8,
    weight: u32,
    cost: u64,
    bytes: u64,
    deadline_ms: u64,
    is_retry: bool,
}

fn new() -> impl Strategy<Value = New> {
    let who = (0..4u8, 0..BANDS.len(), 0..3u8, 0..5u32);
    let what = (0..60u64, 0..100u64, 0..3000u64, prop::bool::weighted(0.15));
    (who, what).prop_map(
        |((flow, band, model, weight), (cost, bytes, deadline_ms, is_retry))| New {
            flow,
            band,
            model,
            weight,
            cost: cost * MICRO,
            bytes,
            deadline_ms,
            is_retry,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..64usize;
    prop_oneof![
        12 => new().prop_map(Step::Push),
        8 => (0..6usize).prop_map(Step::Serve),
        5 => (at(), 0..80u64).prop_map(|(at, actual)| Step::Settle(at, actual * MICRO)),
        4 => at().prop_map(Step::Remove),
        1 => at().prop_map(Step::UnparkFlow),
        1 => (0..BANDS.len()).prop_map(Step::UnparkBand),
        2 => (at(), 0..BANDS.len()).prop_map(|(at, band)| Step::Raise(at, band)),
        2 => (at(), 0..3000u64).prop_map(|(at, ms)| Step::SetDeadline(at, ms)),
        2 => (at(), 0..60u64).prop_map(|(at, cost)| Step::SetCost(at, cost * MICRO)),
        1 => (0..BANDS.len()).prop_map(Step::Doomed),
        1 => (0..CONFIGS).prop_map(Step::Reconfigure),
        4 => (0..4000u64).prop_map(Step::Pass),
    ]
}

const CONFIGS: usize = 4;

/// Plain; strict with shares; with quotas of flows; with quotas of bands and other configured bands.
fn settings(number: usize) -> FlowConfig {
    let quota = |in_flight, rate: Option<(u64, u64)>| Quota {
        in_flight_wtu: in_flight,
        rate: rate.map(|(wtu_per_s, burst_wtu)| QuotaRate {
            wtu_per_s,
            burst_wtu,
        }),
        over: OverQuota::Wait,
    };
    let band = |share, quota| BandConfig {
        starvation: Starvation::Share(share),
        quota,
        ttl: Duration::from_secs(2),
        ..BandConfig::default()
    };
    let mut config = FlowConfig::default();
    match number {
        0 => {}
        1 => {
            config.order = FairOrder::Strict;
            config.bands.insert(Band(0), band(0.5, Quota::default()));
            config.bands.insert(Band(-1), band(0.9, Quota::default()));
        }
        2 => {
            config.flow_quota = quota(Some(60), Some((20, 90)));
            config
                .flow_quotas
                .insert(flow_id(1), quota(None, Some((7, 60))));
            config.other_bands = band(0.3, Quota::default());
        }
        _ => {
            config
                .bands
                .insert(Band(2), band(0.0, quota(Some(80), None)));
            config
                .bands
                .insert(Band(-3), band(0.7, quota(None, Some((30, 70)))));
        }
    }
    config
}

fn flow_id(flow: u8) -> FairnessId {
    FairnessId::new(format!("tenant-{flow}")).expect("a valid name")
}

fn request(key: u64, band: Band, flow: u8, weight: u32, bytes: u64) -> Request {
    Request {
        key: RequestKey(key),
        model: "m".into(),
        fairness: flow_id(flow),
        band,
        weight,
        prompt_tokens: 1,
        output_bound: 0,
        blocks: Vec::new(),
        streaming: true,
        bytes,
        expires_at: None,
        targets: Targets::default(),
        first_arrived: None,
        tried: Vec::new(),
    }
}

fn model(number: u8) -> ModelKey {
    ModelKey::new(&format!("m{number}"))
}

struct Pair {
    queue: Queue,
    reference: Reference,
    next_key: u64,
}

impl Pair {
    fn new(number: usize) -> Self {
        Self {
            queue: Queue::new(),
            reference: Reference::new(settings(number)),
            next_key: 0,
        }
    }

    fn entry(&self, at: usize) -> Option<Entry> {
        let line = &self.reference.line;
        line.get(at % line.len().max(1)).cloned()
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let now = self.reference.now;
        let config = self.reference.config.clone();
        match step {
            Step::Push(new) => self.push(new),
            Step::Serve(at) => self.serve(*at)?,
            Step::Settle(at, actual) => self.settle(*at, *actual),
            Step::Remove(at) => {
                if let Some(entry) = self.entry(*at) {
                    let removed = self.queue.remove(now, entry.place);
                    prop_assert!(removed.is_some());
                    prop_assert!(self.queue.remove(now, entry.place).is_none());
                    self.reference.leave(entry.place);
                }
            }
            Step::UnparkFlow(at) => {
                let parked = self.queue.parked_flows();
                if let Some(flow) = parked.get(at % parked.len().max(1)) {
                    let key = self.key_of(*flow);
                    self.queue.unpark(now, *flow);
                    self.reference.unpark(key);
                }
                // A timer of somebody who is gone.
                self.queue.unpark(now, 1000 + *at as u32);
            }
            Step::UnparkBand(band) => {
                let band = Band(BANDS[*band]);
                self.queue.unpark_band(band);
                if let Some(state) = self.reference.bands.get_mut(&band) {
                    state.is_parked = false;
                }
            }
            Step::Raise(at, band) => {
                let band = Band(BANDS[*band]);
                if let Some(entry) = self.entry(*at).filter(|entry| band > entry.flow.0) {
                    let place = self.queue.raise(now, &config, entry.place, band);
                    prop_assert_eq!(place, Some(entry.place), "its age goes with it");
                    let mut entry = self.reference.leave(entry.place);
                    self.reference.forget(&self.queue);
                    entry.flow.0 = band;
                    self.reference.join(entry);
                }
            }
            Step::SetDeadline(at, ms) => {
                if let Some(entry) = self.entry(*at) {
                    let deadline = now + Duration::from_millis(*ms);
                    self.queue.set_deadline(entry.place, deadline);
                    self.change(entry.place, |entry| entry.deadline = deadline);
                }
            }
            Step::SetCost(at, cost) => {
                if let Some(entry) = self.entry(*at) {
                    self.queue.set_cost(entry.place, *cost);
                    self.change(entry.place, |entry| entry.cost = *cost);
                }
            }
            Step::Doomed(band) => {
                let band = Band(BANDS[*band]);
                if self.reference.of_band(band).next().is_some() {
                    self.queue.doomed(now, band);
                    self.reference.doomed(band);
                }
            }
            Step::Reconfigure(number) => {
                let parked = self.queue.parked_flows();
                let parked: Vec<FlowKey> =
                    parked.into_iter().map(|flow| self.key_of(flow)).collect();
                self.reference.config = settings(*number);
                self.queue.reconfigure(now, &self.reference.config);
                for flow in parked {
                    self.reference.unpark(flow);
                }
                for band in self.reference.bands.values_mut() {
                    band.is_parked = false;
                }
            }
            Step::Pass(ms) => self.reference.now += Duration::from_millis(*ms),
        }
        self.reference.forget(&self.queue);
        self.check()
    }

    fn push(&mut self, new: &New) {
        let now = self.reference.now;
        let band = Band(BANDS[new.band]);
        let mut request = request(self.next_key, band, new.flow, new.weight, new.bytes);
        self.next_key += 1;
        if new.is_retry {
            request.tried.push(crate::EndpointId(0));
        }
        let deadline = now + Duration::from_millis(new.deadline_ms);
        let mut waiting = Waiting::new(Box::new(request), model(new.model), now);
        waiting.deadline = deadline;
        waiting.cost = new.cost;
        let config = &self.reference.config;
        let place = self.queue.push(now, config, waiting);
        self.reference.join(Entry {
            place,
            flow: (band, new.flow),
            model: model(new.model),
            weight: u64::from(new.weight.max(1)),
            cost: new.cost,
            bytes: new.bytes,
            deadline,
            is_retry: new.is_retry,
        });
    }

    fn serve(&mut self, at: usize) -> Result<(), TestCaseError> {
        let now = self.reference.now;
        let config = self.reference.config.clone();
        let mut picks = Vec::new();
        self.queue.order(now, &config, 32, &mut picks);
        self.reference.order(&self.queue, 32);
        let Some(pick) = picks.get(at % picks.len().max(1)).copied() else {
            return Ok(());
        };
        let entry = self.change(pick.place, |_| ());
        match self.queue.admits(now, &config, pick.place, entry.cost) {
            Ok(()) => {
                let taken = self.queue.take(now, &config, pick.place, entry.cost);
                let (_, charge) = taken.expect("it waits");
                prop_assert_eq!(charge.cost(), entry.cost);
                self.reference.serve(pick.place, charge);
            }
            Err((scope, _)) => {
                let parked = self.queue.park(pick.place, scope);
                prop_assert_eq!(parked.is_some(), scope == Scope::Flow);
                if scope == Scope::Flow {
                    let flow = self.reference.flows.get_mut(&entry.flow);
                    flow.expect("it waits").is_parked = true;
                } else {
                    let band = self.reference.bands.get_mut(&entry.flow.0);
                    band.expect("it waits").is_parked = true;
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self, at: usize, actual: u64) {
        let running = &mut self.reference.running;
        if running.is_empty() {
            return;
        }
        let at = at % running.len();
        let (charge, flow, weight) = running.swap_remove(at);
        let cost = charge.cost();
        self.queue.settle(self.reference.now, charge, actual);
        self.reference.settle(cost, flow, weight, actual);
    }

    fn change(&mut self, place: Place, change: impl FnOnce(&mut Entry)) -> Entry {
        let entry = self
            .reference
            .line
            .iter_mut()
            .find(|entry| entry.place == place)
            .expect("who is given out waits");
        change(entry);
        entry.clone()
    }

    fn key_of(&self, flow: u32) -> FlowKey {
        let flow = self.queue.flows.get(flow);
        let number = (0..4u8).find(|number| flow_id(*number) == flow.id);
        (flow.band, number.expect("one of four"))
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let config = self.reference.config.clone();
        for ahead in [1, 2, 5, 32] {
            let mut picks = Vec::new();
            self.queue
                .order(self.reference.now, &config, ahead, &mut picks);
            let expected = self.reference.order(&self.queue, ahead);
            prop_assert_eq!(&picks, &expected, "{} ahead", ahead);
        }
        let (queue, reference) = (&self.queue, &self.reference);
        let bytes: u64 = reference.line.iter().map(|entry| entry.bytes).sum();
        prop_assert_eq!((queue.len(), queue.bytes()), (reference.line.len(), bytes));
        for tier in queue.tiers() {
            let of_band: Vec<&Entry> = reference.of_band(tier.band).collect();
            prop_assert_eq!(tier.len, of_band.len());
            prop_assert_eq!(
                tier.bytes,
                of_band.iter().map(|entry| entry.bytes).sum::<u64>()
            );
            prop_assert_eq!(
                tier.cost,
                of_band.iter().map(|entry| entry.cost).sum::<u64>()
            );
            let charged = reference
                .running
                .iter()
                .filter(|(_, flow, _)| flow.0 == tier.band);
            let costs: Vec<u64> = charged.map(|(charge, _, _)| charge.cost()).collect();
            prop_assert_eq!(
                (tier.running, tier.meter.in_flight()),
                (costs.len(), costs.iter().sum())
            );
            let newest = of_band.iter().map(|entry| entry.place).max();
            let newest = newest.filter(|_| tier.band.0 < 0);
            prop_assert_eq!(tier.newest.last().copied(), newest);
        }
        let mut live = 0;
        for (band, flow) in queue.flows() {
            live += 1;
            let number = (0..4u8).find(|number| flow_id(*number) == flow.id);
            let key = (band, number.expect("one of four"));
            let state = reference.flows[&key];
            prop_assert_eq!(
                (
                    flow.len,
                    flow.running,
                    flow.meter.in_flight(),
                    flow.parked,
                    flow.tag
                ),
                (
                    reference.waiting(key),
                    state.running,
                    state.in_flight,
                    state.is_parked,
                    state.tag
                )
            );
        }
        let expected = reference
            .flows
            .iter()
            .filter(|(key, flow)| flow.running + reference.waiting(**key) > 0);
        prop_assert_eq!(live, expected.count());
        for entry in &reference.line {
            let ahead = reference
                .line
                .iter()
                .filter(|other| other.flow.0 >= entry.flow.0 && other.model == entry.model);
            prop_assert_eq!(queue.ahead(entry.flow.0, entry.model), ahead.count());
            let backlog = reference
                .line
                .iter()
                .filter(|other| other.flow.0 >= entry.flow.0);
            prop_assert_eq!(
                queue.backlog(entry.flow.0),
                backlog.map(|other| other.cost).sum::<u64>()
            );
        }
        self.displaceable_is_the_newest_below()
    }

    fn displaceable_is_the_newest_below(&self) -> Result<(), TestCaseError> {
        for band in BANDS.map(Band) {
            let below = self
                .reference
                .line
                .iter()
                .filter(|entry| entry.flow.0 < band && entry.flow.0.0 < 0);
            let expected = below.min_by_key(|entry| (entry.flow.0, std::cmp::Reverse(entry.place)));
            prop_assert_eq!(
                self.queue.displaceable(band),
                expected.map(|entry| entry.place)
            );
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        let queue = &self.queue;
        let is_idle = |flow: &Flow| {
            flow.len == 0
                && flow.running == 0
                && !flow.parked
                && flow.bytes == 0
                && flow.lines.is_empty()
                && flow.meter.in_flight() == 0
        };
        let lives = |tier: &Tier| {
            let has_flow = queue
                .flows
                .all
                .iter()
                .flatten()
                .any(|flow| flow.band == tier.band);
            !tier.is_active()
                && tier.models.is_empty()
                && !tier.codel.newest_first()
                && (has_flow || self.reference.config.bands.contains_key(&tier.band))
        };
        queue.len() == 0
            && queue.bytes() == 0
            && queue.by_key.is_empty()
            && queue.slots.iter().all(Option::is_none)
            && queue.lines.all.iter().all(Option::is_none)
            && queue.flows.all.iter().flatten().all(is_idle)
            && queue.tiers().iter().all(lives)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_is_a_list_sorted_anew_at_every_look(number in 0..CONFIGS, steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new(number);
        for step in &steps {
            pair.apply(step)?;
        }
        while let Some(entry) = pair.entry(0) {
            pair.apply(&Step::Remove(0))?;
            prop_assert!(pair.queue.get(entry.place).is_none());
        }
        while !pair.reference.running.is_empty() {
            pair.apply(&Step::Settle(0, 5 * MICRO))?;
        }
        prop_assert!(pair.is_at_rest());
    }
}
