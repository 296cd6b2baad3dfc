//! The only place that chooses: from a request to an endpoint that is booked in the same step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::queue::Waiting;
use super::timers::Timer;
use super::{Output, Pool};
use crate::cost::{Offer, attention_area, kappa};
use crate::decision::{Candidate, Decision, Filtered, Predicted};
use crate::endpoint::ModelKey;
use crate::endpoint::booking::{Booking, Phase};
use crate::filters::{Eligible, Filters};
use crate::policy::{Choice, Row, Setting, choose};
use crate::window::WINDOW_S;
use crate::{BookingId, EmptiedBy, Request, Timestamp};

/// Requests of one lane that may be passed over in one turn because only their own history keeps them waiting.
const LOOK_AHEAD: usize = 64;
/// Waiting prompts of others are taken to be as long as our own on average; this until there are any.
pub(super) const FIRST_MEAN_UNCACHED: f64 = 1000.0;
const MEAN_STEP: f64 = 0.02;

/// What may let somebody go who waits.
#[derive(Clone, Copy)]
pub(super) enum Changed {
    Fleet,
    Endpoint(usize),
    /// Another request waits for this model.
    Lane(ModelKey),
}

/// What became of an attempt to place a request.
pub(super) enum Placement {
    Dispatched,
    /// It has to wait for room. `alike`: so has every request for the same model.
    Full {
        alike: bool,
    },
    Empty(EmptiedBy),
}

impl Placement {
    fn of(eligible: &Eligible) -> Self {
        match eligible {
            Eligible::Some(_) => Self::Dispatched,
            Eligible::Full { alike } => Self::Full { alike: *alike },
            Eligible::None(filter) => Self::Empty(*filter),
        }
    }
}

/// Buffers kept between decisions.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    filters: Filters,
    /// Blocks cached, by endpoint.
    depths: Vec<u32>,
    rows: Vec<Row>,
    scores: Vec<f64>,
}

/// When a request arrived, and behind how many.
#[derive(Clone, Copy)]
struct Arrival {
    at: Timestamp,
    position: usize,
}

impl Pool {
    /// Dispatches whatever waits and can go because of what changed.
    pub(super) fn turn(&mut self, now: Timestamp, changed: Changed) {
        if self.queue.len() == 0 {
            return;
        }
        let may_go = |model: &ModelKey| match changed {
            Changed::Fleet => true,
            Changed::Endpoint(index) => self.endpoints[index].serves(*model),
            Changed::Lane(lane) => lane == *model,
        };
        let mut heads: BinaryHeap<Reverse<(u64, ModelKey, usize)>> = self
            .queue
            .models()
            .filter(may_go)
            .filter_map(|model| Some(Reverse((self.queue.next_in_lane(model, 0)?, model, 0))))
            .collect();
        while let Some(Reverse((place, model, passed))) = heads.pop() {
            let passed = match self.place_waiting(now, place) {
                Placement::Dispatched => passed,
                Placement::Full { alike: false } | Placement::Empty(EmptiedBy::Context)
                    if passed < LOOK_AHEAD =>
                {
                    passed + 1
                }
                Placement::Full { .. } | Placement::Empty(_) => continue,
            };
            if let Some(next) = self.queue.next_in_lane(model, place) {
                heads.push(Reverse((next, model, passed)));
            }
        }
    }

    fn place_waiting(&mut self, now: Timestamp, place: u64) -> Placement {
        let mut scratch = std::mem::take(&mut self.scratch);
        let eligible = match self.queue.get(place) {
            Some(waiting) => {
                scratch
                    .filters
                    .apply(&self.endpoints, &waiting.request, waiting.model)
            }
            None => Eligible::Full { alike: false },
        };
        let placement = Placement::of(&eligible);
        if let Eligible::Some(filtered) = eligible
            && let Some(Waiting {
                request,
                arrived,
                position,
                ..
            }) = self.leave_queue(place)
        {
            self.dispatch(
                now,
                &request,
                Arrival {
                    at: arrived,
                    position,
                },
                filtered,
                &mut scratch,
            );
        }
        self.scratch = scratch;
        placement
    }

    /// Dispatches a request that has just arrived, if any endpoint can take it.
    pub(super) fn place_new(
        &mut self,
        now: Timestamp,
        request: &Request,
        model: ModelKey,
    ) -> Placement {
        let mut scratch = std::mem::take(&mut self.scratch);
        let eligible = scratch.filters.apply(&self.endpoints, request, model);
        let placement = Placement::of(&eligible);
        if let Eligible::Some(filtered) = eligible {
            let arrival = Arrival {
                at: now,
                position: self.queue.lane_length(model),
            };
            self.dispatch(now, request, arrival, filtered, &mut scratch);
        }
        self.scratch = scratch;
        placement
    }

    /// Which filter leaves nothing for `request`, if one does.
    pub(super) fn emptied_by(&self, request: &Request, model: ModelKey) -> Option<EmptiedBy> {
        match Filters::default().apply(&self.endpoints, request, model) {
            Eligible::None(filter) => Some(filter),
            Eligible::Some(_) | Eligible::Full { .. } => None,
        }
    }

    fn dispatch(
        &mut self,
        now: Timestamp,
        request: &Request,
        arrival: Arrival,
        filtered: Filtered,
        scratch: &mut Scratch,
    ) {
        let spread = self.find_cached(request, &mut scratch.depths);
        self.fill_rows(now, request, scratch);
        let engines = scratch.rows.len() as u32 + filtered.full + filtered.tried;
        let (kappa, turn) = (
            self.kappa(now, engines, &scratch.rows),
            self.turn_of_round_robin(),
        );
        let policy = self.config.policy;
        policy.score(
            &scratch.rows,
            &mut Setting {
                kappa,
                turn,
                rng: &mut self.rng,
            },
            &mut scratch.scores,
        );
        let choice = choose(
            &scratch.rows,
            &scratch.scores,
            policy.ties(),
            spread,
            &mut self.rng,
        );
        let row = scratch.rows[choice.chosen];
        let mut decision = self.record(&choice, scratch);
        decision.filtered = filtered;
        decision.kappa = kappa;
        decision.waited = now.since(arrival.at);
        decision.queue_position = arrival.position;
        let booking = self.book(now, request, &row);
        let endpoint = self.endpoints[row.index as usize].id;
        self.last_chosen = Some(endpoint);
        self.outputs.push_back(Output::Dispatch {
            request: request.key,
            booking,
            endpoint,
            decision: Box::new(decision),
        });
    }

    /// Blocks cached per endpoint, and the hash that spreads prompts nobody holds: the first block behind what any
    /// endpoint shares. (The first block of all would send everyone with one system prompt to one endpoint.)
    fn find_cached(&self, request: &Request, depths: &mut Vec<u32>) -> Option<u64> {
        depths.clear();
        depths.resize(self.endpoints.len(), 0);
        let mut deepest = 0;
        self.residency.lookup(&request.blocks, |holder, depth| {
            if let Some(Some(index)) = self.by_holder.get(holder.index()) {
                depths[*index as usize] = depth as u32;
                deepest = deepest.max(depth);
            }
        });
        request
            .blocks
            .get(deepest)
            .or(request.blocks.last())
            .map(|block| block.hash)
    }

    fn fill_rows(&self, now: Timestamp, request: &Request, scratch: &mut Scratch) {
        let counted = request.blocks.last().map_or(0, |block| block.end_tokens);
        let prompt = match u32::try_from(request.prompt_tokens).unwrap_or(u32::MAX) {
            0 => counted.max(1),
            tokens => tokens,
        };
        // Blocks estimate tokens from bytes where the prompt was counted.
        let scale = (f64::from(prompt) / f64::from(counted.max(1))).min(1.0);
        let oldest = self.oldest_metrics(now);
        scratch.rows.clear();
        for index in &scratch.filters.eligible {
            let depth = scratch.depths[*index as usize] as usize;
            let held = if depth == 0 {
                0
            } else {
                request.blocks[depth - 1].end_tokens
            };
            // An engine always computes the last token.
            let cached = ((f64::from(held) * scale) as u32).min(prompt - 1);
            scratch
                .rows
                .push(self.row(now, oldest, *index, cached, prompt - cached));
        }
    }

    fn row(
        &self,
        now: Timestamp,
        oldest: Timestamp,
        index: u32,
        cached: u32,
        uncached: u32,
    ) -> Row {
        let endpoint = &self.endpoints[index as usize];
        let model = self.classes[endpoint.class].calibration.model();
        let foreign = endpoint.view.foreign(oldest);
        let pace = endpoint.pace.factor();
        let decoding = f64::from(endpoint.load.decoding() + foreign.running);
        let context = endpoint.load.decoding_context() as f64 + foreign.context;
        let over = model.over(decoding, context);
        let waiting = f64::from(foreign.waiting) * self.mean_uncached;
        Row {
            index,
            cached,
            uncached,
            offer: Offer {
                queue_s: endpoint.load.queue_seconds(now, model, over, pace, waiting),
                prefill_s: model.prefill(
                    f64::from(uncached),
                    attention_area(uncached, cached),
                    over,
                ) * pace,
                decoding,
                context_s: model.per_context * context * pace,
                handicap_s: endpoint.view.handicap_seconds(oldest),
            },
            in_flight: endpoint.load.count() + foreign.waiting + foreign.running,
            context: context as u64,
            kv_use: self.kv_share(endpoint, foreign.context),
            weight: endpoint.weight,
            name_hash: endpoint.name_hash,
        }
    }

    fn kappa(&mut self, now: Timestamp, engines: u32, rows: &[Row]) -> f64 {
        let prefill = self.assigned.sum(now) / (f64::from(engines) * WINDOW_S);
        let kv = rows.iter().map(|row| row.kv_use).sum::<f64>() / rows.len() as f64;
        kappa(prefill, kv)
    }

    fn turn_of_round_robin(&self) -> u32 {
        let last = self.last_chosen;
        self.endpoints
            .partition_point(|endpoint| Some(endpoint.id) <= last) as u32
    }

    fn record(&self, choice: &Choice, scratch: &Scratch) -> Decision {
        let name = |at: usize| -> Arc<str> {
            self.endpoints[scratch.rows[at].index as usize].name.clone()
        };
        let candidate = |at: &usize| {
            let row = &scratch.rows[*at];
            Candidate {
                endpoint: name(*at),
                score: scratch.scores[*at],
                cached_tokens: row.cached,
                uncached_tokens: row.uncached,
                queue_s: row.offer.queue_s,
                prefill_s: row.offer.prefill_s,
                in_flight: row.in_flight,
                context_tokens: row.context,
                kv_use: row.kv_use,
                handicap_s: row.offer.handicap_s,
            }
        };
        let row = &scratch.rows[choice.chosen];
        let runner_up = choice.ranking.get(1).copied();
        Decision {
            policy: self.config.policy,
            chosen: name(choice.chosen),
            candidates: choice.ranking.iter().map(candidate).collect(),
            eligible: scratch.rows.len() as u32,
            filtered: Filtered::default(),
            runner_up: runner_up.map(name),
            margin: runner_up.map(|at| scratch.scores[at] - scratch.scores[choice.chosen]),
            tie: choice.tie,
            kappa: 0.0,
            predicted: Predicted {
                cached_tokens: row.cached,
                uncached_tokens: row.uncached,
                queue_s: row.offer.queue_s,
                prefill_s: row.offer.prefill_s,
                ttft_s: row.offer.queue_s + row.offer.prefill_s,
            },
            waited: std::time::Duration::ZERO,
            queue_position: 0,
        }
    }

    fn book(&mut self, now: Timestamp, request: &Request, row: &Row) -> BookingId {
        let id = BookingId(self.next_booking);
        self.next_booking += 1;
        let index = row.index as usize;
        let endpoint = &mut self.endpoints[index];
        let ttft = row.offer.queue_s + row.offer.prefill_s;
        let mut booking = Booking {
            id,
            endpoint: endpoint.id,
            incarnation: endpoint.incarnation,
            uncached: row.uncached,
            cached: row.cached,
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
        let holder = self.endpoints[index]
            .holder
            .expect("an endpoint that is up has a cache");
        self.residency.insert(holder, &request.blocks);
        self.assigned.add(now, row.offer.prefill_s);
        self.mean_uncached += MEAN_STEP * (f64::from(row.uncached) - self.mean_uncached);
        self.bookings.insert(id, booking);
        id
    }
}
