//! What scrapes say of an engine, each field with its own time, and what follows about requests that are not ours.

use std::time::Duration;

use super::load::Load;
use crate::peers::MOST_REQUESTS;
use crate::{Observation, Timestamp};

/// Seconds added to the cost of an endpoint whose metrics are very old.
const MAX_HANDICAP_S: f64 = 0.5;
/// Seconds beyond the limit of age after which the handicap is whole.
const HANDICAP_RISE_S: f64 = 10.0;

#[derive(Clone, Copy, Debug)]
struct Dated<T> {
    value: T,
    at: Timestamp,
}

/// The latest known value of every field.
///
/// Load is kept as the part that is not ours: scrape minus own bookings at that moment. Adding the own bookings of any
/// later moment gives the scrape plus own dispatches minus own completions since, and never less than the own bookings.
#[derive(Debug)]
pub(crate) struct View {
    foreign_waiting: Option<Dated<u32>>,
    foreign_running: Option<Dated<u32>>,
    foreign_context: Option<Dated<f64>>,
    sharing: Option<Dated<f64>>,
    block_size: Option<u32>,
    num_blocks: Option<u64>,
    kv_tokens: Option<u64>,
    max_context: Option<u32>,
    start_time_s: Option<f64>,
    counter: Option<f64>,
    known_since: Timestamp,
    last_scrape: Option<Timestamp>,
    failed_scrapes: u32,
}

/// Load that is not ours, as far as it is known well enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Foreign {
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    pub(crate) context: f64,
}

impl View {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            foreign_waiting: None,
            foreign_running: None,
            foreign_context: None,
            sharing: None,
            block_size: None,
            num_blocks: None,
            kv_tokens: None,
            max_context: None,
            start_time_s: None,
            counter: None,
            known_since: now,
            last_scrape: None,
            failed_scrapes: 0,
        }
    }

    /// Whether this observation comes from another process than the last one.
    pub(crate) fn shows_restart(&self, observation: &Observation) -> bool {
        let started = |(old, new): (f64, f64)| (old - new).abs() > 1.0;
        let fell = |(old, new): (f64, f64)| new < old;
        self.start_time_s
            .zip(observation.start_time_s)
            .is_some_and(started)
            || self
                .counter
                .zip(observation.monotone_counter)
                .is_some_and(fell)
    }

    /// Whether the engine has computed something since the last observation.
    pub(crate) fn shows_work(&self, observation: &Observation) -> bool {
        let rose = |(old, new): (f64, f64)| new > old;
        self.counter
            .zip(observation.monotone_counter)
            .is_some_and(rose)
    }

    pub(crate) fn observe(&mut self, now: Timestamp, observation: &Observation, own: &Load) {
        self.last_scrape = Some(now);
        self.failed_scrapes = 0;
        merge(&mut self.block_size, observation.block_size);
        merge(&mut self.num_blocks, observation.num_blocks);
        merge(&mut self.kv_tokens, observation.kv_tokens);
        merge(&mut self.max_context, observation.max_context);
        merge(&mut self.start_time_s, observation.start_time_s);
        merge(&mut self.counter, observation.monotone_counter);
        if let Some(waiting) = observation.waiting.map(|count| count.min(MOST_REQUESTS)) {
            self.foreign_waiting = Some(Dated {
                value: waiting.saturating_sub(own.prefilling()),
                at: now,
            });
        }
        if let Some(running) = observation.running.map(|count| count.min(MOST_REQUESTS)) {
            // Ours may wait or run by the engine's account; together they are what is ours.
            let elsewhere = observation.waiting.unwrap_or(0).min(own.prefilling());
            let own_running = own.count() - elsewhere;
            self.foreign_running = Some(Dated {
                value: running.saturating_sub(own_running),
                at: now,
            });
        }
        if let Some((share, capacity)) = observation
            .kv_use
            .filter(|share| (0.0..=1.0).contains(share))
            .zip(self.capacity())
        {
            let (used, ours) = (share * capacity as f64, own.context() as f64);
            let foreign = (used - ours).max(0.0);
            self.sharing = Some(Dated {
                value: if ours > 0.0 {
                    (used / ours).min(1.0)
                } else {
                    1.0
                },
                at: now,
            });
            self.foreign_context = Some(Dated {
                value: foreign,
                at: now,
            });
        }
    }

    pub(crate) fn scrape_failed(&mut self) {
        self.failed_scrapes = self.failed_scrapes.saturating_add(1);
    }

    /// Whether scrapes fail one after the other.
    pub(crate) fn is_silent(&self) -> bool {
        self.failed_scrapes >= 3
    }

    /// Tokens of a block, as the engine tells it.
    pub(crate) fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// KV capacity in tokens, as the engine tells it.
    pub(crate) fn capacity(&self) -> Option<u64> {
        let blocks = || Some(self.num_blocks?.saturating_mul(u64::from(self.block_size?)));
        self.kv_tokens.or_else(blocks).filter(|tokens| *tokens > 0)
    }

    pub(crate) fn max_context(&self) -> Option<u32> {
        self.max_context
    }

    /// What is others', as far as it was seen at `oldest` or later.
    pub(crate) fn foreign(&self, oldest: Timestamp) -> Foreign {
        Foreign {
            waiting: fresh(self.foreign_waiting, oldest),
            running: fresh(self.foreign_running, oldest),
            context: fresh(self.foreign_context, oldest),
        }
    }

    /// Whether anybody else's request was seen waiting.
    pub(crate) fn has_foreign_waiting(&self) -> bool {
        self.foreign_waiting.is_some_and(|dated| dated.value > 0)
    }

    /// Memory our requests take, as a share of the sum of their contexts, as far as it was seen at `oldest` or later:
    /// blocks they have in common are there once.
    pub(crate) fn sharing(&self, oldest: Timestamp) -> f64 {
        self.sharing
            .filter(|dated| dated.at >= oldest)
            .map_or(1.0, |dated| dated.value)
    }

    /// Whether the load was seen at `oldest` or later.
    pub(crate) fn is_fresh(&self, oldest: Timestamp) -> bool {
        self.load_seen().is_some_and(|at| at >= oldest)
    }

    pub(crate) fn age_seconds(&self, now: Timestamp) -> Option<f64> {
        self.last_scrape.map(|at| now.seconds_since(at))
    }

    /// Seconds of cost for not knowing: nothing while own bookings can stand in, then rising.
    pub(crate) fn handicap_seconds(&self, oldest: Timestamp) -> f64 {
        let seen = self.load_seen().unwrap_or(self.known_since);
        if seen >= oldest {
            return 0.0;
        }
        MAX_HANDICAP_S * (oldest.seconds_since(seen) / HANDICAP_RISE_S).min(1.0)
    }

    /// Until when, if nothing new is seen, what follows from this stays the same: fields lapse `life` after they were seen.
    pub(crate) fn holds_until(&self, now: Timestamp, life: Duration) -> Timestamp {
        let rises = self.load_seen().unwrap_or(self.known_since) + life;
        let handicap = if now <= rises {
            rises
        } else if now <= rises.after_seconds(HANDICAP_RISE_S) {
            now
        } else {
            Timestamp::MAX
        };
        let contexts = [self.foreign_context, self.sharing].map(|dated| Some(dated?.at));
        let counts = [self.foreign_waiting, self.foreign_running].map(|dated| Some(dated?.at));
        contexts
            .into_iter()
            .chain(counts)
            .flatten()
            .map(|at| at + life)
            .filter(|lapse| *lapse >= now)
            .fold(handicap, Timestamp::min)
    }

    fn load_seen(&self) -> Option<Timestamp> {
        let waiting = self.foreign_waiting.map(|dated| dated.at);
        let running = self.foreign_running.map(|dated| dated.at);
        waiting.max(running)
    }
}

fn merge<T>(old: &mut Option<T>, new: Option<T>) {
    if new.is_some() {
        *old = new;
    }
}

fn fresh<T: Default>(dated: Option<Dated<T>>, oldest: Timestamp) -> T {
    dated
        .filter(|dated| dated.at >= oldest)
        .map(|dated| dated.value)
        .unwrap_or_default()
}
