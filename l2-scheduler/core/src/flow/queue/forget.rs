//! Forgetting: flows that owe nothing any more, debtors beyond a number of them, and bands that have nothing else.

use governance_context::Band;

use super::Queue;
use super::flows::Tier;
use crate::Timestamp;
use crate::flow::fair::Tag;

/// Flows remembered that have nothing here but a debt.
const DEBTORS: usize = 8192;
/// Of these, so many are forgotten in one step.
const FORGOTTEN_AT_ONCE: usize = 64;
/// Bands remembered that nobody configured and that have nothing here but flows with a debt.
const RESTING: usize = 64;

impl Queue {
    /// Forgets a flow that has nothing here, or keeps only its debt. A band goes with its last flow.
    pub(super) fn close_flow(&mut self, now: Timestamp, flow: u32) {
        let entry = self.flows.get(flow);
        if entry.len > 0 || entry.running > 0 {
            return;
        }
        let (band, tag) = (entry.band, entry.tag);
        let is_paid = entry.meter.is_full(now);
        if tag > self.tier_mut(band).time.now || !is_paid {
            self.tier_mut(band).debtors.insert((tag, flow));
        } else {
            self.forget_flow(flow);
        }
        self.rest(now, band);
    }

    /// In a band where nothing waits or runs nobody owes anybody: only debts to a quota are remembered.
    fn rest(&mut self, now: Timestamp, band: Band) {
        let tier = self.tier_mut(band);
        if !tier.is_active() {
            let latest = tier.debtors.last().map_or(0, |(tag, _)| *tag);
            tier.time.now = tier.time.now.max(latest);
            self.forget_paid(now, band);
        }
        self.tiers
            .retain(|tier| tier.flows > 0 || tier.is_configured);
        let resting = |tier: &&Tier| !tier.is_active() && !tier.is_configured;
        if self.tiers.iter().filter(resting).count() > RESTING {
            let fewest = self.tiers.iter().filter(resting).min_by_key(|t| t.flows);
            self.forget_band(fewest.map(|tier| tier.band));
        }
    }

    /// Forgets a band that has nothing here but flows with a debt.
    fn forget_band(&mut self, band: Option<Band>) {
        let Some(band) = band else { return };
        for (_, flow) in std::mem::take(&mut self.tier_mut(band).debtors) {
            self.forget_flow(flow);
        }
        self.tiers.retain(|tier| tier.band != band);
    }

    /// Forgets flows whose debt others have paid and whose quota is whole, and beyond a number of them any.
    pub(super) fn forget_paid(&mut self, now: Timestamp, band: Band) {
        let tier = self.tier(band).expect("the caller has looked");
        let is_whole = |debtor: &&(Tag, u32)| self.flows.get(debtor.1).meter.is_full(now);
        let due = tier.debtors.range(..=(tier.time.now, u32::MAX));
        let mut gone: Vec<(Tag, u32)> = due
            .filter(is_whole)
            .take(FORGOTTEN_AT_ONCE)
            .copied()
            .collect();
        if tier.debtors.len() > DEBTORS + gone.len() {
            // Whoever owes a quota least.
            let missing = |debtor: &&(Tag, u32)| self.flows.get(debtor.1).meter.missing(now);
            gone.extend(tier.debtors.iter().min_by_key(missing));
        }
        for debtor in gone {
            if self.tier_mut(band).debtors.remove(&debtor) {
                self.forget_flow(debtor.1);
            }
        }
    }

    pub(super) fn forget_flow(&mut self, flow: u32) {
        if let Some(entry) = self.flows.all[flow as usize].take() {
            self.tier_mut(entry.band).flows -= 1;
            self.flows.by_id.remove(&(entry.band, entry.id));
            self.flows.vacant.push(flow);
        }
    }
}
