//! A choice becomes a booking and a record.

use std::sync::Arc;
use std::time::Duration;

use super::tell::Prefill;
use super::timers::Timer;
use super::turn::Scratch;
use super::{Output, Pool};
use crate::decision::{Candidate, Decision, Filtered, Predicted, TieBreak, Turn};
use crate::endpoint::booking::{Booking, Phase};
use crate::flow::queue::{Charge, Pick, Waiting};
use crate::plan::{Spot, Toll};
use crate::residency::Footprint;
use crate::{BookingId, Timestamp};

/// Waiting prompts of others are taken to be as long as our own on average; this until there are any.
pub(super) const FIRST_MEAN_UNCACHED: f64 = 1000.0;
const MEAN_STEP: f64 = 0.02;

/// One endpoint a request could have gone to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    /// Index of the endpoint.
    pub(super) index: u32,
    pub(super) cached: u32,
    pub(super) uncached: u32,
    /// Seconds of the prefill there.
    pub(super) prefill_s: f64,
    /// What the policy ranked by; least wins.
    pub(super) score: f64,
    pub(super) toll: Option<Toll>,
}

/// Which of the contenders won, and why.
pub(super) struct Verdict {
    /// The winner, then its closest rivals.
    pub(super) ranking: Vec<Contender>,
    /// Seconds of the shortest prefill anywhere.
    pub(super) least_prefill_s: f64,
    /// Endpoints left after the filters.
    pub(super) eligible: u32,
    pub(super) tie: Option<TieBreak>,
    pub(super) filtered: Filtered,
    /// What its flow is charged.
    pub(super) cost: u64,
}

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
    /// Sends a request to the first of the ranking.
    pub(super) fn dispatch(
        &mut self,
        now: Timestamp,
        pick: Pick,
        verdict: &Verdict,
        scratch: &mut Scratch,
    ) {
        let board = &mut scratch.board;
        let duplicate = (scratch.kappa, verdict.least_prefill_s);
        let candidates: Vec<_> = verdict
            .ranking
            .iter()
            .map(|contender| self.candidate(contender, board.spot(contender.index), duplicate))
            .collect();
        let winner = verdict.ranking[0];
        let target = Target {
            index: winner.index,
            cached: winner.cached,
            uncached: winner.uncached,
            queue_s: board.spot(winner.index).queue_s,
            prefill_s: winner.prefill_s,
        };
        board.add(winner.index, winner.uncached, winner.cached);
        let mut decision = self.record(candidates, &target);
        decision.tie = verdict.tie;
        decision.kappa = scratch.kappa;
        decision.eligible = verdict.eligible;
        decision.filtered = verdict.filtered;
        decision.turn.misses = winner.toll.map_or(0.0, |toll| toll.misses);
        self.send(now, pick, target, verdict.cost, decision, scratch);
    }

    fn candidate(
        &self,
        contender: &Contender,
        spot: &Spot,
        (kappa, least_prefill_s): (f64, f64),
    ) -> Candidate {
        let offer = spot.offer(contender.prefill_s);
        Candidate {
            endpoint: self.endpoints[spot.index as usize].name.clone(),
            score: contender.score,
            cached_tokens: contender.cached,
            uncached_tokens: contender.uncached,
            queue_s: offer.queue_s,
            prefill_s: offer.prefill_s,
            others_s: offer.others_s(),
            duplicate_s: offer.duplicate_s(kappa, least_prefill_s),
            decode_s: offer.decode_s(),
            misses: contender.toll.map(|toll| toll.misses),
            rest_s: contender.toll.map_or(0.0, |toll| toll.rest_s),
            in_flight: spot.in_flight + spot.others,
            context_tokens: spot.context as u64,
            kv_use: spot.kv_use(),
            handicap_s: offer.handicap_s,
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
        self.note_sent(now, index, &blocks);
        self.leave_footprint(booking, index, holder, blocks);
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
            footprint: Footprint::default(),
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
        self.note_prefill(now, index, &booking, Prefill::Begins);
        self.assigned.add(now, target.prefill_s);
        self.mean_uncached += MEAN_STEP * (f64::from(target.uncached) - self.mean_uncached);
        self.bookings.insert(id, booking);
        id
    }
}
