//! What flows and bands are charged, and who stands aside because of a quota.

use governance_context::Band;

use super::flows::{Charge, Tier};
use super::{Place, Queue};
use crate::Timestamp;
use crate::flow::config::FlowConfig;
use crate::request::Scope;

impl Queue {
    /// Charges the flow and the band of `line`.
    pub(super) fn charge(
        &mut self,
        now: Timestamp,
        config: &FlowConfig,
        line: u32,
        weight: u32,
        cost: u64,
    ) -> Charge {
        let flow = self.lines.get(line).flow;
        let entry = self.flows.get_mut(flow);
        entry.running += 1;
        entry.meter.start(now, config.quota(&entry.id), cost);
        let band = entry.band;
        let tag = entry.tag.saturating_add(cost / u64::from(weight));
        self.set_tag(flow, tag);
        // Bands that nobody named share what `other_bands` promises.
        let unnamed = |tier: &&Tier| tier.len > 0 && !config.bands.contains_key(&tier.band);
        let unnamed = self.tiers.iter().filter(unnamed).count().max(1) as f64;
        for tier in self.tiers.iter_mut().filter(|tier| tier.len > 0) {
            let share = match config.bands.get(&tier.band) {
                Some(band) => band.starvation.share(),
                None => config.other_bands.starvation.share() / unnamed,
            };
            tier.share.earn(cost, share);
        }
        let tier = self.tier_mut(band);
        tier.running += 1;
        tier.meter.start(now, &config.band(band).quota, cost);
        tier.share.spend(cost);
        Charge {
            flow,
            weight,
            cost,
            started: now,
        }
    }

    /// What was charged is over and cost `actual`.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a charge that could be kept could be given back twice"
    )]
    pub(crate) fn settle(&mut self, now: Timestamp, charge: Charge, actual: u64) {
        let Charge {
            flow,
            weight,
            cost,
            started,
        } = charge;
        let entry = self.flows.get_mut(flow);
        entry.running -= 1;
        entry.meter.end(cost, actual);
        let weight = u64::from(weight);
        let tag = entry.tag.saturating_add(actual / weight);
        let tag = tag.saturating_sub(cost / weight);
        let (band, is_parked) = (entry.band, entry.parked);
        self.set_tag(flow, tag);
        let tier = self.tier_mut(band);
        tier.running -= 1;
        tier.parked = false;
        tier.meter.end(cost, actual);
        if actual > 0 {
            tier.codel.served(now.seconds_since(started));
        }
        if is_parked {
            self.unpark(now, flow);
        }
        self.close_flow(now, flow);
    }

    /// Takes whoever is over a quota out of the order; returns the flow for a timer.
    pub(crate) fn park(&mut self, place: Place, scope: Scope) -> Option<u32> {
        let waiting = self.get(place)?;
        let (line, band) = (waiting.line, waiting.band);
        match scope {
            Scope::Band | Scope::Pool => {
                self.tier_mut(band).parked = true;
                None
            }
            Scope::Flow => {
                let flow = self.lines.get(line).flow;
                let entry = self.flows.get_mut(flow);
                entry.parked = true;
                let (tag, lines) = (entry.tag, entry.lines.clone());
                self.tier_mut(band).by_tag.remove(&(tag, flow));
                for line in lines {
                    self.set_head(line, None);
                }
                Some(flow)
            }
        }
    }

    pub(crate) fn unpark_band(&mut self, band: Band) {
        if let Some(tier) = self.tiers.iter_mut().find(|tier| tier.band == band) {
            tier.parked = false;
        }
    }

    /// A flow that was over its quota may be within it again.
    pub(crate) fn unpark(&mut self, now: Timestamp, flow: u32) {
        let Some(entry) = self
            .flows
            .all
            .get_mut(flow as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        if !std::mem::take(&mut entry.parked) {
            return;
        }
        let (band, len, lines) = (entry.band, entry.len, entry.lines.clone());
        if len == 0 {
            return;
        }
        self.advance(now, band);
        let at = self.tier_mut(band).time.now;
        let entry = self.flows.get_mut(flow);
        entry.tag = entry.tag.max(at);
        let tag = entry.tag;
        self.tier_mut(band).by_tag.insert((tag, flow));
        for line in lines {
            self.rank_line(line);
        }
    }

    pub(super) fn parked_flows(&self) -> Vec<u32> {
        let all = self.flows.all.iter().enumerate();
        all.filter(|(_, flow)| flow.as_ref().is_some_and(|flow| flow.parked))
            .map(|(at, _)| at as u32)
            .collect()
    }
}
