//! A choice becomes a booking and a record.

use std::sync::Arc;
use std::time::Duration;

use super::look::prompt_tokens;
use super::timers::Timer;
use super::turn::Scratch;
use super::{Output, Pool};
use crate::cost::{BETA, GAMMA, TYPICAL_OUTPUT};
use crate::decision::{Candidate, Decision, Filtered, Predicted, Turn};
use crate::endpoint::booking::{Booking, Phase};
use crate::flow::queue::{Charge, Pick, Waiting};
use crate::plan::{Proposal, Spot};
use crate::policy::{Choice, ranking};
use crate::{BookingId, Timestamp};

/// Waiting prompts of others are taken to be as long as our own on average; this until there are any.
pub(super) const FIRST_MEAN_UNCACHED: f64 = 1000.0;
const MEAN_STEP: f64 = 0.02;

/// Where a request goes, in numbers.
#[derive(Clone, Copy)]
struct Target {
    index: u32,
    cached: u32,
    uncached: u32,
    queue_s: f64,
    prefill_s: f64,
}

impl Pool {
    pub(super) fn dispatch_planned(
        &mut self,
        now: Timestamp,
        pick: Pick,
        proposal: &Proposal,
        cost: u64,
        scratch: &mut Scratch,
    ) {
        let Some(waiting) = self.queue.get(pick.place) else {
            return;
        };
        let prompt = prompt_tokens(&waiting.request);
        let best = scratch.places[proposal.best];
        scratch.scores.clear();
        scratch
            .scores
            .extend(scratch.places.iter().map(crate::plan::Place::cost));
        let ranking = ranking(&scratch.scores, proposal.best);
        let least = scratch
            .places
            .iter()
            .map(|place| place.prefill_s)
            .fold(f64::INFINITY, f64::min);
        let candidates: Vec<_> = ranking
            .iter()
            .map(|at| {
                let place = &scratch.places[*at];
                let spot = &scratch.spots[place.spot as usize];
                let duplicate = scratch.kappa * (place.prefill_s - least);
                Candidate {
                    score: scratch.scores[*at],
                    misses: place.misses,
                    duplicate_s: duplicate,
                    ..self.candidate(spot, place.cached, prompt - place.cached)
                }
            })
            .collect();
        let spot = &scratch.spots[best.spot as usize];
        let target = Target {
            index: spot.index,
            cached: best.cached,
            uncached: prompt - best.cached,
            queue_s: spot.queue_s,
            prefill_s: best.prefill_s,
        };
        let mut decision = self.record(candidates, &target);
        decision.tie = proposal.tie;
        decision.kappa = scratch.kappa;
        decision.eligible = scratch.places.len() as u32;
        decision.filtered = scratch.filters.filtered;
        decision.turn.misses = proposal.misses;
        let spot = &mut scratch.spots[best.spot as usize];
        spot.add(prompt - best.cached, best.cached);
        self.send(now, pick, target, cost, decision, scratch);
    }

    pub(super) fn dispatch_bound(
        &mut self,
        now: Timestamp,
        pick: Pick,
        choice: &Choice,
        cost: u64,
        filtered: Filtered,
        scratch: &mut Scratch,
    ) {
        let row = scratch.rows[choice.chosen];
        let least = scratch
            .rows
            .iter()
            .map(|row| row.offer.prefill_s)
            .fold(f64::INFINITY, f64::min);
        let spot_of = |index: u32| scratch.spot_of[index as usize] as usize;
        let candidates: Vec<_> = choice
            .ranking
            .iter()
            .map(|at| {
                let row = &scratch.rows[*at];
                let spot = &scratch.spots[spot_of(row.index)];
                let duplicate = scratch.kappa * (row.offer.prefill_s - least);
                Candidate {
                    score: scratch.scores[*at],
                    duplicate_s: duplicate,
                    ..self.candidate(spot, row.cached, row.uncached)
                }
            })
            .collect();
        let target = Target {
            index: row.index,
            cached: row.cached,
            uncached: row.uncached,
            queue_s: row.offer.queue_s,
            prefill_s: row.offer.prefill_s,
        };
        let mut decision = self.record(candidates, &target);
        decision.tie = choice.tie;
        decision.kappa = scratch.kappa;
        decision.eligible = scratch.rows.len() as u32;
        decision.filtered = filtered;
        let spot = spot_of(row.index);
        scratch.spots[spot].add(row.uncached, row.cached);
        self.send(now, pick, target, cost, decision, scratch);
    }

    fn candidate(&self, spot: &Spot, cached: u32, uncached: u32) -> Candidate {
        let prefill_s = spot.prefill_s(uncached, cached);
        Candidate {
            endpoint: self.endpoints[spot.index as usize].name.clone(),
            score: 0.0,
            cached_tokens: cached,
            uncached_tokens: uncached,
            queue_s: spot.queue_s,
            prefill_s,
            others_s: prefill_s * BETA * spot.decoding,
            duplicate_s: 0.0,
            decode_s: GAMMA * TYPICAL_OUTPUT * spot.context_s(),
            misses: None,
            in_flight: spot.in_flight + spot.others,
            context_tokens: spot.context as u64,
            kv_use: spot.kv_used / spot.kv_capacity,
            handicap_s: spot.handicap_s,
        }
    }

    fn record(&self, candidates: Vec<Candidate>, target: &Target) -> Decision {
        let chosen: Arc<str> = self.endpoints[target.index as usize].name.clone();
        let runner_up = candidates.get(1);
        Decision {
            policy: self.config.policy,
            chosen,
            eligible: 0,
            filtered: Filtered::default(),
            runner_up: runner_up.map(|other| other.endpoint.clone()),
            margin: runner_up.map(|other| other.score - candidates[0].score),
            candidates,
            tie: None,
            kappa: 0.0,
            predicted: Predicted {
                cached_tokens: target.cached,
                uncached_tokens: target.uncached,
                queue_s: target.queue_s,
                prefill_s: target.prefill_s,
                ttft_s: target.queue_s + target.prefill_s,
            },
            waited: Duration::ZERO,
            queue_position: 0,
            turn: Turn::default(),
        }
    }

    fn send(
        &mut self,
        now: Timestamp,
        pick: Pick,
        target: Target,
        cost: u64,
        mut decision: Decision,
        scratch: &Scratch,
    ) {
        let Some((mut waiting, charge)) = self.queue.take(now, &self.config.flow, pick.place, cost)
        else {
            return;
        };
        self.left_queue(pick.place, &mut waiting);
        let deadline = waiting.deadline;
        decision.waited = now.since(waiting.arrived);
        decision.queue_position = waiting.position;
        decision.turn = Turn {
            band: waiting.band.0,
            by_share: pick.by_share,
            slack_s: deadline.seconds_since(now) - now.seconds_since(deadline),
            tpot_s: waiting.tpot_s,
            expected_output: waiting.output,
            misses: decision.turn.misses,
            passed: waiting.passed,
            overloaded: self.queue.is_overloaded(waiting.band),
            charged_wtu: charge.cost() as f64 / 1e6,
        };
        let booking = self.book(now, &waiting, target, charge);
        let index = target.index as usize;
        let holder = self.endpoints[index]
            .holder
            .expect("an endpoint that is up has a cache");
        if scratch.picks.len() > 1 {
            self.follow(scratch, holder, &waiting.request.blocks);
        }
        let blocks = std::mem::take(&mut waiting.request.blocks);
        self.unstored.push((holder, blocks));
        let endpoint = self.endpoints[index].id;
        self.last_chosen = Some(endpoint);
        self.outputs.push_back(Output::Dispatch {
            request: waiting.request.key,
            booking,
            endpoint,
            decision: Box::new(decision),
        });
    }

    fn book(
        &mut self,
        now: Timestamp,
        waiting: &Waiting,
        target: Target,
        charge: Charge,
    ) -> BookingId {
        let request = &waiting.request;
        let id = BookingId(self.next_booking);
        self.next_booking += 1;
        let index = target.index as usize;
        let endpoint = &mut self.endpoints[index];
        let ttft = target.queue_s + target.prefill_s;
        let mut booking = Booking {
            id,
            endpoint: endpoint.id,
            incarnation: endpoint.incarnation,
            uncached: target.uncached,
            cached: target.cached,
            output_bound: u32::try_from(request.output_bound).unwrap_or(u32::MAX),
            output: 0,
            phase: Phase::Prefill,
            streaming: request.streaming,
            dispatched_at: now,
            first_token_at: None,
            last_at: now,
            patience_s: 0.0,
            alone: endpoint.load.prefilling() == 0,
            abandoned: false,
            position: 0,
            stream: 0,
            band: waiting.band.0,
            fairness: request.fairness.clone(),
            model: waiting.model,
            tpot_s: waiting.tpot_s,
            expected_output: waiting.output,
            charge: Some(charge),
            calm: (now, 0),
            prefill_timer: None,
        };
        endpoint.load.add(now, &mut booking);
        booking.patience_s = self.patience_seconds(index, &booking, ttft);
        if !booking.streaming {
            let presumed = Some(now.after_seconds(ttft));
            self.timers
                .set(&mut booking.prefill_timer, Timer::Prefilled(id), presumed);
        }
        self.watch_for_hang(index, booking.overdue_at());
        self.assigned.add(now, target.prefill_s);
        self.mean_uncached += MEAN_STEP * (f64::from(target.uncached) - self.mean_uncached);
        self.bookings.insert(id, booking);
        id
    }
}
