//! Bands, the flows that share one, and the lines of a flow: one per model.

use std::collections::{BTreeMap, BTreeSet};

use governance_context::{Band, FairnessId};
use rustc_hash::FxHashMap;

use super::{Place, Queue, Waiting};
use crate::Timestamp;
use crate::endpoint::ModelKey;
use crate::flow::codel::CoDel;
use crate::flow::config::{FairOrder, FlowConfig};
use crate::flow::fair::{Tag, VirtualTime};
use crate::flow::quota::Meter;
use crate::flow::share::Share;

/// What a flow was charged for work in flight. Given back once, with what it really cost.
#[derive(Debug)]
#[must_use = "a charge that is not settled counts as in flight forever"]
pub(crate) struct Charge {
    pub(super) flow: u32,
    pub(super) weight: u32,
    pub(super) cost: u64,
    pub(super) started: Timestamp,
}

impl Charge {
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }
}

/// One band.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) band: Band,
    /// Lives on while nothing of it is here.
    pub(super) is_configured: bool,
    pub(crate) len: usize,
    pub(crate) bytes: u64,
    /// Work that waits.
    pub(crate) cost: u64,
    /// Attempts in flight.
    pub(crate) running: usize,
    pub(super) models: BTreeMap<ModelKey, Heads>,
    /// Flows with a queue by their tag.
    pub(super) by_tag: BTreeSet<(Tag, u32)>,
    /// Flows that only have a debt, by their tag.
    pub(super) debtors: BTreeSet<(Tag, u32)>,
    /// All that waits by age; kept where requests may be displaced.
    pub(super) newest: BTreeSet<Place>,
    pub(super) flows: usize,
    pub(crate) time: VirtualTime,
    pub(crate) share: Share,
    pub(crate) codel: CoDel,
    pub(crate) meter: Meter,
    /// Over its quota; takes no part in the order until its timer or an end of work.
    pub(crate) parked: bool,
}

/// The heads of the lines for one model.
#[derive(Debug, Default)]
pub(super) struct Heads {
    pub(super) waiting: usize,
    pub(super) retries: BTreeSet<Place>,
    pub(super) order: BTreeSet<Head>,
}

/// The first of a line. The derived order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    /// From the fair order; 0 for all while there is enough.
    pub(super) rank: u64,
    pub(super) deadline: Timestamp,
    pub(super) place: Place,
    pub(super) line: u32,
}

/// One flow of one band.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) id: FairnessId,
    pub(super) band: Band,
    pub(super) tag: Tag,
    pub(crate) len: usize,
    pub(super) bytes: u64,
    pub(crate) running: usize,
    pub(crate) meter: Meter,
    /// Over its quota; takes no part in the order until its timer or an end of work.
    pub(crate) parked: bool,
    pub(super) lines: Vec<u32>,
}

/// What waits of one flow for one model.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) flow: u32,
    pub(super) model: ModelKey,
    /// Retries too, which are in neither order.
    waiting: usize,
    pub(super) by_deadline: BTreeSet<(Timestamp, Place)>,
    pub(super) by_age: BTreeSet<(Place, Timestamp)>,
    pub(super) head: Option<Head>,
}

#[derive(Debug, Default)]
pub(super) struct Flows {
    pub(super) all: Vec<Option<Flow>>,
    pub(super) vacant: Vec<u32>,
    pub(super) by_id: FxHashMap<(Band, FairnessId), u32>,
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) all: Vec<Option<Line>>,
    vacant: Vec<u32>,
}

impl Tier {
    fn new(band: Band, config: &FlowConfig) -> Self {
        Self {
            band,
            is_configured: config.bands.contains_key(&band),
            len: 0,
            bytes: 0,
            cost: 0,
            running: 0,
            models: BTreeMap::new(),
            by_tag: BTreeSet::new(),
            debtors: BTreeSet::new(),
            newest: BTreeSet::new(),
            flows: 0,
            time: VirtualTime::new(config.order == FairOrder::Strict),
            share: Share::default(),
            codel: CoDel::new(),
            meter: Meter::default(),
            parked: false,
        }
    }

    pub(crate) fn waiting_for(&self, model: ModelKey) -> usize {
        self.models.get(&model).map_or(0, |heads| heads.waiting)
    }

    /// Whether anything of it waits or runs.
    pub(crate) fn is_active(&self) -> bool {
        self.len > 0 || self.running > 0
    }
}

impl Lines {
    pub(super) fn get(&self, line: u32) -> &Line {
        self.all[line as usize]
            .as_ref()
            .expect("a line lives while somebody waits in it")
    }

    pub(super) fn get_mut(&mut self, line: u32) -> &mut Line {
        self.all[line as usize]
            .as_mut()
            .expect("a line lives while somebody waits in it")
    }
}

impl Flows {
    pub(super) fn get(&self, flow: u32) -> &Flow {
        self.all[flow as usize].as_ref().expect(LIVES)
    }

    pub(super) fn get_mut(&mut self, flow: u32) -> &mut Flow {
        self.all[flow as usize].as_mut().expect(LIVES)
    }
}

const LIVES: &str = "a flow lives while anything of it waits, runs or owes";

impl Queue {
    pub(super) fn tier(&self, band: Band) -> Option<&Tier> {
        let at = self
            .tiers
            .binary_search_by(|tier| band.cmp(&tier.band))
            .ok()?;
        Some(&self.tiers[at])
    }

    pub(super) fn tier_mut(&mut self, band: Band) -> &mut Tier {
        let at = self
            .tiers
            .binary_search_by(|tier| band.cmp(&tier.band))
            .expect("a band lives while any flow of it does");
        &mut self.tiers[at]
    }

    pub(crate) fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    pub(super) fn flow_of(&self, line: u32) -> &Flow {
        self.flows.get(self.lines.get(line).flow)
    }

    pub(super) fn flow_of_mut(&mut self, line: u32) -> &mut Flow {
        self.flows.get_mut(self.lines.get(line).flow)
    }

    /// Whether a request's flow or band is over its quota.
    pub(crate) fn is_parked(&self, place: Place) -> bool {
        self.get(place).is_some_and(|waiting| {
            self.flow_of(waiting.line).parked
                || self.tier(waiting.band).is_some_and(|tier| tier.parked)
        })
    }

    /// Flows with something waiting or running, in no useful order but always the same.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (Band, &Flow)> {
        self.flows
            .all
            .iter()
            .flatten()
            .filter(|flow| flow.len + flow.running > 0)
            .map(|flow| (flow.band, flow))
    }

    /// Puts `place` into the line of its flow and model; returns the line.
    pub(super) fn join(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        place: Place,
        waiting: &Waiting,
    ) -> u32 {
        let band = waiting.band;
        // Before the flow is looked up: a flow that only had a debt may be forgotten here.
        if self.tier(band).is_some() {
            self.advance(now, band);
        }
        let flow = self.flow_for(config, band, &waiting.request.fairness);
        let tier = self
            .tiers
            .iter_mut()
            .find(|tier| tier.band == band)
            .expect("a flow keeps its band alive");
        tier.len += 1;
        tier.bytes += waiting.request.bytes;
        tier.cost += waiting.cost;
        if band.0 < 0 {
            tier.newest.insert(place);
        }
        let heads = tier.models.entry(waiting.model).or_default();
        heads.waiting += 1;
        let entry = self.flows.get_mut(flow);
        if entry.len == 0 {
            tier.debtors.remove(&(entry.tag, flow));
            // Who was away comes back without credit, and without a debt that others have paid by now.
            entry.tag = entry.tag.max(tier.time.now);
            tier.by_tag.insert((entry.tag, flow));
        }
        entry.len += 1;
        entry.bytes += waiting.request.bytes;
        let is_retry = !waiting.request.tried.is_empty();
        if is_retry {
            heads.retries.insert(place);
        }
        let line = self.line_for(flow, waiting.model);
        let entry = self.lines.get_mut(line);
        entry.waiting += 1;
        if !is_retry {
            entry.by_deadline.insert((waiting.deadline, place));
            entry.by_age.insert((place, waiting.deadline));
            self.rank(line, place.seq, Some((place, waiting.deadline)));
        }
        line
    }

    pub(super) fn leave(&mut self, now: Timestamp, place: Place, waiting: &Waiting) {
        let (band, line) = (waiting.band, waiting.line);
        let flow = self.lines.get(line).flow;
        let entry = self.flows.get_mut(flow);
        entry.len -= 1;
        entry.bytes -= waiting.request.bytes;
        let (is_empty, tag) = (entry.len == 0, entry.tag);
        // Whoever comes next is measured anew.
        entry.parked &= !is_empty;
        let tier = self.tier_mut(band);
        tier.len -= 1;
        tier.bytes -= waiting.request.bytes;
        tier.cost -= waiting.cost;
        tier.newest.remove(&place);
        if is_empty {
            tier.by_tag.remove(&(tag, flow));
        }
        if let Some(heads) = tier.models.get_mut(&waiting.model) {
            heads.waiting -= 1;
            heads.retries.remove(&place);
        }
        let is_band_empty = tier.len == 0;
        let entry = self.lines.get_mut(line);
        entry.waiting -= 1;
        entry.by_deadline.remove(&(waiting.deadline, place));
        entry.by_age.remove(&(place, waiting.deadline));
        self.rank(line, place.seq, None);
        self.close_line(band, flow, line, waiting.model);
        if is_band_empty {
            let tier = self.tier_mut(band);
            tier.share.forget();
            // With nothing waiting there is nothing to rank.
            tier.codel.emptied();
        }
        if is_empty {
            self.close_flow(now, flow);
        }
    }

    pub(super) fn adopt(&mut self, config: &FlowConfig) {
        for tier in &mut self.tiers {
            tier.is_configured = config.bands.contains_key(&tier.band);
            tier.time.order(config.order == FairOrder::Strict);
        }
        self.tiers
            .retain(|tier| tier.flows > 0 || tier.is_configured);
    }

    fn flow_for(&mut self, config: &FlowConfig, band: Band, id: &FairnessId) -> u32 {
        let key = (band, id.clone());
        if let Some(flow) = self.flows.by_id.get(&key) {
            return *flow;
        }
        if let Err(at) = self.tiers.binary_search_by(|tier| band.cmp(&tier.band)) {
            self.tiers.insert(at, Tier::new(band, config));
        }
        let tier = self.tier_mut(band);
        tier.flows += 1;
        let flow = Flow {
            id: id.clone(),
            band,
            tag: tier.time.now,
            len: 0,
            bytes: 0,
            running: 0,
            meter: Meter::default(),
            parked: false,
            lines: Vec::new(),
        };
        let at = self.flows.vacant.pop().unwrap_or_else(|| {
            self.flows.all.push(None);
            (self.flows.all.len() - 1) as u32
        });
        self.flows.all[at as usize] = Some(flow);
        self.flows.by_id.insert(key, at);
        at
    }

    fn line_for(&mut self, flow: u32, model: ModelKey) -> u32 {
        let known = self.flows.get(flow).lines.iter().copied();
        if let Some(line) = known
            .into_iter()
            .find(|line| self.lines.get(*line).model == model)
        {
            return line;
        }
        let line = Line {
            flow,
            model,
            waiting: 0,
            by_deadline: BTreeSet::new(),
            by_age: BTreeSet::new(),
            head: None,
        };
        let at = self.lines.vacant.pop().unwrap_or_else(|| {
            self.lines.all.push(None);
            (self.lines.all.len() - 1) as u32
        });
        self.lines.all[at as usize] = Some(line);
        self.flows.get_mut(flow).lines.push(at);
        at
    }

    fn close_line(&mut self, band: Band, flow: u32, line: u32, model: ModelKey) {
        if self.lines.get(line).waiting == 0 {
            self.lines.all[line as usize] = None;
            self.lines.vacant.push(line);
            self.flows.get_mut(flow).lines.retain(|own| *own != line);
        }
        let tier = self.tier_mut(band);
        if tier.waiting_for(model) == 0 {
            tier.models.remove(&model);
        }
    }
}
