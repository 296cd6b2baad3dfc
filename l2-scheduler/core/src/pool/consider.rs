//! One request of a turn under the plan: where it would go best, and whether it goes, waits, is put off or refused.

use std::time::Duration;

use governance_context::Band;

use super::Pool;
use super::dispatch::{Contender, Verdict};
use super::health::PROVEN;
use super::look::{prompt_tokens, spread};
use super::turn::{Scratch, Step};
use crate::decision::Filtered;
use crate::flow::BandConfig;
use crate::flow::queue::{Pick, Place};
use crate::plan::{self, Ask, GATE, HOLD, LOWER_GATE, PASSED_AT_MOST, Proposal};
use crate::residency::hash_bytes;
use crate::{RefusalKind, Timestamp};

/// No wait is said to be longer, in seconds.
const LONGEST_WAIT_S: f64 = 86_400.0;
/// What was heard of the load of others longer ago is no basis for finding the least loaded.
const STALE_VIEW_S: f64 = 0.3;
/// Then only who has this part of the best cached prefix is considered,
const NEARLY_BEST: f64 = 0.9;
/// and so many others by chance.
const STRANGERS: usize = 3;

impl Pool {
    pub(super) fn consider(&mut self, now: Timestamp, pick: Pick, scratch: &mut Scratch) -> Step {
        self.look_up(now, pick.place);
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let filtered = scratch
            .filters
            .apply(&self.endpoints, &waiting.request, waiting.model);
        scratch.filtered = match filtered {
            Ok(filtered) => filtered,
            Err(filter) => return self.without_endpoint(now, pick.place, filter),
        };
        scratch.board.take(self.holdings(waiting));
        if self.view_is_old(now) {
            self.keep_holders(now, pick.place, scratch);
        }
        let ask = Ask {
            prompt: prompt_tokens(&waiting.request),
            tpot_s: waiting.tpot_s,
            output: waiting.output,
            kappa: scratch.kappa,
            utilisation: scratch.utilisation,
            left_s: waiting.deadline.seconds_since(now),
            band: waiting.band,
        };
        let spread = spread(&waiting.request, &waiting.found).unwrap_or(waiting.request.key.0);
        let endpoints = &self.endpoints;
        let proposal = scratch.board.propose(
            &ask,
            &scratch.filters.eligible,
            |index| endpoints[index as usize].load.streams(),
            spread,
        );
        match proposal {
            Some(proposal) => self.judge(now, pick, &ask, &proposal, scratch),
            None => Step::Waits,
        }
    }

    /// Whether others put load on the endpoints and neither they nor the metrics have said so lately.
    fn view_is_old(&self, now: Timestamp) -> bool {
        let silence = self.peers.silence(now);
        let unseen = now.seconds_since(self.observed_at);
        silence.is_some_and(|silence| silence.min(unseen) > STALE_VIEW_S)
    }

    /// With old news of the load, the least loaded is a guess that every scheduler makes alike: only who holds the prompt
    /// is considered, and a few others by chance: the same ones for a request until news are due again.
    fn keep_holders(&self, now: Timestamp, request: Place, scratch: &mut Scratch) {
        let Scratch { filters, board, .. } = scratch;
        let eligible = filters.eligible.indices();
        let cached = |index: &u32| board.cached(*index);
        let best = eligible.iter().map(cached).max().unwrap_or(0);
        let holds =
            |index: &u32| best > 0 && f64::from(cached(index)) >= NEARLY_BEST * f64::from(best);
        let period = (now.seconds_since(Timestamp::ZERO) / STALE_VIEW_S) as u64;
        let lot = |index: &u32| {
            let name = self.endpoints[*index as usize].name_hash;
            hash_bytes(request.seq ^ period.rotate_left(32), &name.to_le_bytes())
        };
        let strangers = eligible.iter().filter(|index| !holds(index));
        let mut lots: Vec<u64> = strangers.map(lot).collect();
        lots.sort_unstable();
        lots.truncate(STRANGERS);
        filters.retain(|index| holds(&index) || lots.binary_search(&lot(&index)).is_ok());
    }

    fn judge(
        &mut self,
        now: Timestamp,
        pick: Pick,
        ask: &Ask,
        proposal: &Proposal,
        scratch: &mut Scratch,
    ) -> Step {
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let (band, deadline) = (waiting.band, waiting.deadline);
        let is_retry = !waiting.request.tried.is_empty();
        let is_late = now.after_seconds(proposal.soonest_s) > deadline;
        let class = &self.classes[self.endpoints[proposal.best as usize].class];
        if is_late && !is_retry && class.first_tokens >= PROVEN {
            // Whom waiting has raised keeps the promise of the band it came in.
            let own = waiting.request.band;
            let refuses = self.config.flow.band(own).refuse.applies(own);
            self.queue.doomed(now, band);
            if refuses {
                let wait = Duration::from_secs_f64(proposal.soonest_s.min(LONGEST_WAIT_S));
                self.refuse_waiting(now, pick.place, RefusalKind::QueueWait, Some(wait));
                return Step::Moved;
            }
            if !pick.by_share && self.put_off(now, pick.place, proposal.soonest_s) {
                return Step::Moved;
            }
        }
        let has_time = now.after_seconds(proposal.prudent_s) < deadline;
        let yields = is_late && !pick.by_share && self.queue.has_higher(band);
        // A share that is due is due, whatever it costs those who had more than theirs.
        let is_held = proposal.misses > HOLD && (has_time || yields) && !pick.by_share;
        let is_open = self.is_open(now, pick, ask, proposal, scratch);
        if is_open && !is_held {
            return self.go(now, pick, ask.prompt, proposal, scratch);
        }
        let uncached = ask.prompt - proposal.cached;
        scratch.board.add(proposal.best, uncached, proposal.cached);
        if is_open {
            let passed = self
                .queue
                .get(pick.place)
                .map_or(0, |waiting| waiting.passed);
            if passed >= PASSED_AT_MOST {
                scratch.board.reserve(proposal.best);
            }
            scratch.held.push((pick.place, proposal.best));
        }
        Step::Waits
    }

    /// A request that will be late and may not be refused: its next target is twice as long, and it goes behind those who
    /// can still meet theirs. False once it has all the time it may have.
    fn put_off(&mut self, now: Timestamp, place: Place, soonest_s: f64) -> bool {
        let Some(waiting) = self.queue.get(place) else {
            return false;
        };
        let wanted = waiting.deadline.since(waiting.arrived);
        let later = (waiting.arrived + wanted * 2).max(now.after_seconds(2.0 * soonest_s));
        let later = later.min(waiting.expires);
        let is_later = later > waiting.deadline;
        if is_later {
            self.queue.set_deadline(place, later);
        }
        is_later
    }

    fn is_open(
        &self,
        now: Timestamp,
        pick: Pick,
        ask: &Ask,
        best: &Proposal,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(waiting) = self.queue.get(pick.place) else {
            return false;
        };
        let uncached = ask.prompt - best.cached;
        let saturation = scratch.saturation;
        let band = self.config.flow.band(waiting.band);
        let is_first = pick.by_share || Some(waiting.band) == scratch.top;
        let gate = if is_first { GATE } else { LOWER_GATE };
        let spot = scratch.board.spot(best.best);
        spot.is_open(uncached, best.cached, gate)
            && (is_first || self.has_streams_left(waiting.band, band, best.best))
            && band.max_stall.is_none_or(|most| {
                let steps = spot.model.steps(f64::from(uncached));
                let streams = self.endpoints[best.best as usize].load.streams();
                let stalls = |stream: &plan::Stream| best.prefill_s - stream.tpot_s * steps;
                streams.iter().map(stalls).all(|s| s <= most.as_secs_f64())
            })
            && (pick.by_share || Self::is_let_through(now, pick.place, band, saturation))
    }

    fn has_streams_left(&self, band: Band, config: &BandConfig, index: u32) -> bool {
        let load = &self.endpoints[index as usize].load;
        config
            .max_streams
            .is_none_or(|most| load.of_band(band.0) < most)
    }

    /// Above the ceiling of its band, a part of the requests may go: the same part for a second, then others.
    fn is_let_through(now: Timestamp, place: Place, band: &BandConfig, saturation: f64) -> bool {
        if saturation < band.ceiling || band.ceiling >= 1.0 {
            return true;
        }
        let chance = (1.0 - saturation) / (1.0 - band.ceiling);
        let draw = hash_bytes(place.seq, &(now.0 / 1_000_000_000).to_le_bytes());
        (draw >> 11) as f64 / (1u64 << 53) as f64 >= 1.0 - chance
    }

    /// Sends a request to its best endpoint, if its quotas admit it.
    fn go(
        &mut self,
        now: Timestamp,
        pick: Pick,
        prompt: u32,
        proposal: &Proposal,
        scratch: &mut Scratch,
    ) -> Step {
        let (best, cached) = (proposal.best, proposal.cached);
        let Some(cost) = self.cost_at(pick.place, cached) else {
            return Step::Waits;
        };
        if let Err((scope, over)) = self.queue.admits(now, &self.config.flow, pick.place, cost) {
            return self.stop_over_quota(now, pick.place, scope, over);
        }
        for (held, index) in &scratch.held {
            if *index == best
                && let Some(waiting) = self.queue.get_mut(*held)
            {
                waiting.passed += 1;
            }
        }
        let Scratch { filters, board, .. } = scratch;
        let eligible = filters.eligible.indices();
        let ranking = board.ranking(best);
        let contender = |index| Contender {
            index,
            cached: board.cached(index),
            uncached: prompt - board.cached(index),
            prefill_s: board.prefill_s(index, prompt),
            score: board.cost(index),
            toll: board.toll(index),
        };
        let full = eligible.iter().filter(|index| board.is_full(**index));
        let verdict = Verdict {
            ranking: ranking.into_iter().map(contender).collect(),
            least_prefill_s: proposal.least_prefill_s,
            eligible: eligible.len() as u32,
            tie: proposal.tie,
            filtered: Filtered {
                full: full.count() as u32,
                ..scratch.filtered
            },
            cost,
        };
        self.dispatch(now, pick, &verdict, scratch);
        Step::Moved
    }
}
