//! Policies that bind at arrival: a request goes at once to whichever endpoint scores best among those with room.

use super::Pool;
use super::dispatch::{Contender, Verdict};
use super::look::{cached_tokens, prompt_tokens, spread};
use super::turn::{Scratch, Step};
use crate::Timestamp;
use crate::filters::Eligible;
use crate::flow::queue::{Pick, Place};
use crate::plan::Spot;
use crate::policy::{Row, Setting, choose};

impl Pool {
    pub(super) fn bind(&mut self, now: Timestamp, pick: Pick, scratch: &mut Scratch) -> Step {
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let eligible = scratch
            .filters
            .apply(&self.endpoints, &waiting.request, waiting.model);
        let filtered = match eligible {
            Eligible::Some(filtered) => filtered,
            Eligible::Full => return Step::Waits,
            Eligible::None(filter) => return self.without_endpoint(now, pick.place, filter),
        };
        self.look_up(now, pick.place);
        self.fill_rows(pick.place, scratch);
        let policy = self.config.policy;
        let mut setting = Setting {
            kappa: scratch.kappa,
            turn: self.turn_of_round_robin(),
            prefill_rate: self.config.engine.prefill_rate,
            rng: &mut self.rng,
        };
        policy.score(&scratch.rows, &mut setting, &mut scratch.scores);
        let hash = self
            .queue
            .get(pick.place)
            .and_then(|waiting| spread(&waiting.request, &waiting.found));
        let choice = choose(
            &scratch.rows,
            &scratch.scores,
            policy.ties(),
            hash,
            &mut self.rng,
        );
        let row = scratch.rows[choice.chosen];
        let Some(cost) = self.cost_at(pick.place, row.cached) else {
            return Step::Waits;
        };
        if let Err((scope, over)) = self.queue.admits(now, &self.config.flow, pick.place, cost) {
            return self.stop_over_quota(now, pick.place, scope, over);
        }
        let options = scratch.rows.iter().zip(&scratch.scores);
        let options = options.map(|(row, score)| Contender {
            spot: scratch.spot_of[row.index as usize],
            cached: row.cached,
            uncached: row.uncached,
            prefill_s: row.offer.prefill_s,
            score: *score,
            misses: None,
        });
        scratch.contenders.clear();
        scratch.contenders.extend(options);
        let verdict = Verdict {
            ranking: choice.ranking,
            tie: choice.tie,
            filtered,
            cost,
        };
        self.dispatch(now, pick, &verdict, scratch);
        Step::Moved
    }

    fn fill_rows(&self, place: Place, scratch: &mut Scratch) {
        let Some(waiting) = self.queue.get(place) else {
            return;
        };
        let prompt = prompt_tokens(&waiting.request);
        scratch.rows.clear();
        for index in &scratch.filters.eligible {
            let spot = &scratch.spots[scratch.spot_of[*index as usize] as usize];
            scratch.rows.push(self.row(spot, 0, prompt));
        }
        for (holder, depth) in &waiting.found.holders {
            let Some(Some(index)) = self.by_holder.get(holder.index()) else {
                continue;
            };
            if let Ok(at) = scratch.rows.binary_search_by_key(index, |row| row.index) {
                let spot = &scratch.spots[scratch.spot_of[*index as usize] as usize];
                let cached = cached_tokens(&waiting.request, *depth);
                scratch.rows[at] = self.row(spot, cached, prompt - cached);
            }
        }
    }

    fn row(&self, spot: &Spot, cached: u32, uncached: u32) -> Row {
        let endpoint = &self.endpoints[spot.index as usize];
        Row {
            index: spot.index,
            cached,
            uncached,
            offer: spot.offer(spot.prefill_s(uncached, cached)),
            in_flight: spot.in_flight + spot.others,
            pending: spot.pending_tokens,
            kv_use: spot.kv_used / spot.kv_capacity,
            weight: endpoint.weight,
            name_hash: endpoint.name_hash,
        }
    }

    fn turn_of_round_robin(&self) -> u32 {
        let last = self.last_chosen;
        self.endpoints
            .partition_point(|endpoint| Some(endpoint.id) <= last) as u32
    }
}
