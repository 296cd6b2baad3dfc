//! Policies that bind at arrival: a request goes at once to whichever endpoint scores best among those with room.

use super::Pool;
use super::dispatch::{Contender, Verdict};
use super::look::{prompt_tokens, spread};
use super::turn::{Scratch, Step};
use crate::Timestamp;
use crate::flow::queue::{Pick, Place};
use crate::policy::{Row, Setting, choose};

impl Pool {
    pub(super) fn bind(&mut self, now: Timestamp, pick: Pick, scratch: &mut Scratch) -> Step {
        let Some(waiting) = self.queue.get(pick.place) else {
            return Step::Waits;
        };
        let filtered = scratch
            .filters
            .apply(&self.endpoints, &waiting.request, waiting.model);
        let mut filtered = match filtered {
            Ok(filtered) => filtered,
            Err(filter) => return self.without_endpoint(now, pick.place, filter),
        };
        let Scratch { filters, board, .. } = &mut *scratch;
        let before = filters.eligible.indices().len();
        filters.retain(|index| !board.is_full(index));
        let left = filters.eligible.indices().len();
        filtered.full = (before - left) as u32;
        if left == 0 {
            return Step::Waits;
        }
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
        let contender = |at: &usize| {
            let row = &scratch.rows[*at];
            Contender {
                index: row.index,
                cached: row.cached,
                uncached: row.uncached,
                prefill_s: row.offer.prefill_s,
                score: scratch.scores[*at],
                toll: None,
            }
        };
        let prefills = scratch.rows.iter().map(|row| row.offer.prefill_s);
        let verdict = Verdict {
            ranking: choice.ranking.iter().map(contender).collect(),
            least_prefill_s: prefills.fold(f64::INFINITY, f64::min),
            eligible: scratch.rows.len() as u32,
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
        let Scratch {
            filters,
            board,
            rows,
            ..
        } = scratch;
        board.take(self.holdings(waiting));
        rows.clear();
        rows.extend(filters.eligible.indices().iter().map(|index| {
            let cached = board.cached(*index);
            let prefill_s = board.prefill_s(*index, prompt);
            let spot = board.spot(*index);
            Row {
                index: *index,
                cached,
                uncached: prompt - cached,
                offer: spot.offer(prefill_s),
                in_flight: spot.in_flight + spot.others,
                pending: spot.pending_tokens,
                kv_use: spot.kv_use(),
                weight: self.endpoints[*index as usize].weight,
                name_hash: spot.name_hash,
            }
        }));
    }

    fn turn_of_round_robin(&self) -> u32 {
        let last = self.last_chosen;
        self.endpoints
            .partition_point(|endpoint| Some(endpoint.id) <= last) as u32
    }
}
