//! Who comes first in a band: its virtual time, the tags of its flows, and the heads of their lines in order.

use governance_context::Band;

use super::flows::Head;
use super::{Place, Queue};
use crate::Timestamp;
use crate::flow::fair::Tag;

impl Queue {
    /// On entering overload nobody has had more than anybody else.
    pub(super) fn forgive(&mut self, now: Timestamp, band: Band) {
        let tier = self.tier_mut(band);
        let time = tier.time.now;
        let queued = std::mem::take(&mut tier.by_tag).into_iter();
        tier.by_tag = queued.map(|(_, flow)| (time, flow)).collect();
        let debtors = std::mem::take(&mut tier.debtors);
        for flow in self.flows.all.iter_mut().flatten() {
            if flow.band == band {
                flow.tag = time;
            }
        }
        for (_, flow) in debtors {
            self.close_flow(now, flow);
        }
        self.rank_anew(band);
    }

    /// Moves the virtual time of a band on, and forgets flows whose debt others have paid by now.
    pub(super) fn advance(&mut self, now: Timestamp, band: Band) {
        let quantum = self.quantum(now);
        let tier = self.tier_mut(band);
        let least = tier.by_tag.first().map(|(tag, _)| *tag);
        let changed = tier.time.advance(now, least, quantum);
        self.forget_paid(now, band);
        if changed {
            self.rank_anew(band);
        }
    }

    /// Ranks every line of a band anew.
    pub(super) fn rank_anew(&mut self, band: Band) {
        let lines: Vec<u32> = self
            .flows
            .all
            .iter()
            .flatten()
            .filter(|flow| flow.band == band && !flow.parked)
            .flat_map(|flow| flow.lines.iter().copied())
            .collect();
        for line in lines {
            self.rank_line(line);
        }
    }

    pub(super) fn set_tag(&mut self, flow: u32, tag: Tag) {
        let entry = self.flows.get_mut(flow);
        let old = std::mem::replace(&mut entry.tag, tag);
        if old == tag {
            return;
        }
        let (band, is_queued) = (entry.band, entry.len > 0 && !entry.parked);
        let lines = std::mem::take(&mut entry.lines);
        let tier = self.tier_mut(band);
        if is_queued {
            tier.by_tag.remove(&(old, flow));
            tier.by_tag.insert((tag, flow));
            for line in &lines {
                self.rank_line(*line);
            }
        } else if tier.debtors.remove(&(old, flow)) {
            tier.debtors.insert((tag, flow));
        }
        self.flows.get_mut(flow).lines = lines;
    }

    pub(super) fn reorder(&mut self, line: u32, place: Place, old: Timestamp, new: Timestamp) {
        let entry = self.lines.get_mut(line);
        if entry.by_deadline.remove(&(old, place)) {
            entry.by_deadline.insert((new, place));
            entry.by_age.remove(&(place, old));
            entry.by_age.insert((place, new));
            self.rank_line(line);
        }
    }

    /// Something joined (`joined`) or left a line: its head may be another.
    pub(super) fn rank(&mut self, line: u32, seq: u64, joined: Option<(Place, Timestamp)>) {
        let entry = self.lines.get(line);
        let is_unmoved = match (entry.head, joined) {
            // Whoever joins behind the head changes nothing, unless the newest goes first.
            (Some(head), Some((place, deadline))) => {
                (head.deadline, head.place) < (deadline, place)
                    && !self.newest_first(self.flows.get(entry.flow).band)
            }
            (Some(head), None) => head.place.seq != seq,
            (None, _) => false,
        };
        if !is_unmoved {
            self.rank_line(line);
        }
    }

    fn newest_first(&self, band: Band) -> bool {
        self.tier(band)
            .is_some_and(|tier| tier.codel.newest_first())
    }

    pub(super) fn rank_line(&mut self, line: u32) {
        let entry = self.lines.get(line);
        let flow = self.flows.get(entry.flow);
        let tier = self.tier(flow.band).expect("the band of a flow lives");
        let first = if flow.parked {
            None
        } else if tier.codel.newest_first() {
            entry
                .by_age
                .last()
                .map(|(place, deadline)| (*deadline, *place))
        } else {
            entry.by_deadline.first().copied()
        };
        let rank = tier.time.ranking.rank(flow.tag);
        self.set_head(
            line,
            first.map(|(deadline, place)| Head {
                rank,
                deadline,
                place,
                line,
            }),
        );
    }

    pub(super) fn set_head(&mut self, line: u32, head: Option<Head>) {
        let entry = self.lines.get_mut(line);
        let old = std::mem::replace(&mut entry.head, head);
        if old == head {
            return;
        }
        let (model, flow) = (entry.model, entry.flow);
        let band = self.flows.get(flow).band;
        let heads = self.tier_mut(band).models.entry(model).or_default();
        if let Some(old) = old {
            heads.order.remove(&old);
        }
        if let Some(head) = head {
            heads.order.insert(head);
        }
    }
}
