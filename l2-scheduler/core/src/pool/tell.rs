//! What this scheduler tells the others of the pool, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use super::timers::Timer;
use super::{Output, Pool};
use crate::endpoint::Endpoint;
use crate::endpoint::booking::Booking;
use crate::peers::{MOST_TOLD, SLACK_EDGES, SentPrompt};
use crate::residency::Block;
use crate::{EndpointId, EndpointLoad, Extent, LoadVector, Timestamp};

/// Vectors are so far apart at least: many schedulers must not drown each other.
const PAUSE: Duration = Duration::from_millis(20);
/// Once others are wrong by so many seconds of prefill about any endpoint, they are told before it is time.
const NEWS_S: f64 = 0.03;

/// What others have not been told yet, and when they are told next.
#[derive(Debug, Default)]
pub(super) struct Teller {
    /// Prompts sent since the last vector.
    sent: Vec<SentPrompt>,
    sent_blocks: usize,
    /// Endpoints where prefills began or ended since the last vector.
    changed: BTreeMap<EndpointId, Drift>,
    /// When the last vector was made.
    last: Option<Timestamp>,
    /// When the next whole one is due; never where nothing is told.
    whole_at: Option<Timestamp>,
    /// When the next one of either kind is due.
    timer: Option<Timestamp>,
    is_due: bool,
}

/// How much more prefill an endpoint has before it than others know.
#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    tokens: i64,
    double_area: i64,
}

impl Drift {
    /// Returns by how many tokens, and which area, others are wrong now.
    fn add(&mut self, booking: &Booking, change: Prefill) -> (f64, f64) {
        let tokens = i64::from(booking.uncached);
        let double_area = i64::try_from(booking.double_area()).unwrap_or(i64::MAX);
        let sign = match change {
            Prefill::Begins => 1,
            Prefill::Ends => -1,
        };
        self.tokens = self.tokens.saturating_add(sign * tokens);
        self.double_area = self.double_area.saturating_add(sign * double_area);
        let area = self.double_area.unsigned_abs() as f64 / 2.0;
        (self.tokens.unsigned_abs() as f64, area)
    }
}

/// A prefill enters the line of an endpoint, or leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefill {
    Begins,
    Ends,
}

impl Teller {
    fn take_sent(&mut self) -> Vec<SentPrompt> {
        self.sent_blocks = 0;
        std::mem::take(&mut self.sent)
    }
}

impl Pool {
    /// The first vector comes at a time of its own, so that schedulers that start together do not speak together.
    pub(super) fn begin_telling(&mut self) {
        if let Some(every) = self.config.peers.every {
            let share = self.peers.chance() * every.as_secs_f64();
            self.teller.whole_at = Some(Timestamp::ZERO.after_seconds(share));
            self.tell_by(self.teller.whole_at);
        }
    }

    /// Whether anybody is told what this scheduler does.
    fn has_audience(&self, now: Timestamp) -> bool {
        self.teller.whole_at.is_some() && self.peers.silence(now).is_some()
    }

    /// A prompt went to an endpoint.
    pub(super) fn note_sent(&mut self, now: Timestamp, index: usize, blocks: &[Block]) {
        if !self.has_audience(now) {
            return;
        }
        let teller = &mut self.teller;
        let fits = blocks.len().min(MOST_TOLD - teller.sent_blocks);
        if fits > 0 {
            let blocks = blocks[..fits].iter();
            teller.sent_blocks += fits;
            teller.sent.push(SentPrompt {
                endpoint: self.endpoints[index].name.clone(),
                blocks: blocks.map(|block| (block.hash, block.end_tokens)).collect(),
            });
        }
    }

    /// What prefills on an endpoint has changed.
    pub(super) fn note_prefill(
        &mut self,
        now: Timestamp,
        index: usize,
        booking: &Booking,
        change: Prefill,
    ) {
        if !self.has_audience(now) {
            return;
        }
        let endpoint = &self.endpoints[index];
        let drift = self.teller.changed.entry(endpoint.id).or_default();
        let wrong = drift.add(booking, change);
        let model = &self.classes[endpoint.class].model;
        let wrong_s = model.work(wrong.0, wrong.1).tokens_s * endpoint.pace.factor();
        if wrong_s < NEWS_S {
            return;
        }
        let soonest = self.teller.last.map_or(now, |last| now.max(last + PAUSE));
        if self.teller.timer.is_some_and(|at| soonest < at) {
            self.tell_by(Some(soonest));
        }
    }

    fn tell_by(&mut self, at: Option<Timestamp>) {
        self.timers.set(&mut self.teller.timer, Timer::Tell, at);
    }

    /// The vector itself is made when outputs are asked for: after the turn, so that it tells of it.
    pub(super) fn teller_is_due(&mut self) {
        self.teller.timer = None;
        self.teller.is_due = true;
    }

    /// A vector, if one is due.
    pub(super) fn tell(&mut self, now: Timestamp) -> Option<Output> {
        if !std::mem::take(&mut self.teller.is_due) {
            return None;
        }
        let (every, whole_at) = self.config.peers.every.zip(self.teller.whole_at)?;
        // News just before the whole would be told twice, and too soon one after the other.
        let vector = if now + PAUSE > whole_at {
            self.teller.whole_at = Some(now + every);
            self.whole_load(now)
        } else {
            self.news(now)
        };
        self.teller.last = Some(now);
        self.tell_by(self.teller.whole_at);
        Some(Output::Tell(vector))
    }

    /// All that this scheduler has put on the endpoints.
    pub(super) fn whole_load(&mut self, now: Timestamp) -> LoadVector {
        self.teller.changed.clear();
        let has_load = |endpoint: &&Endpoint| endpoint.load.count() > 0;
        let endpoints = self.endpoints.iter().filter(has_load);
        LoadVector {
            extent: Extent::Whole,
            endpoints: endpoints
                .map(|endpoint| self.own_load(now, endpoint))
                .collect(),
            sent: self.teller.take_sent(),
        }
    }

    /// Where anything changed since the last vector.
    fn news(&mut self, now: Timestamp) -> LoadVector {
        let changed = std::mem::take(&mut self.teller.changed);
        let indices = changed.keys().filter_map(|id| self.index_of(*id));
        LoadVector {
            extent: Extent::Changed,
            endpoints: indices
                .map(|index| self.own_load(now, &self.endpoints[index]))
                .collect(),
            sent: self.teller.take_sent(),
        }
    }

    fn own_load(&self, now: Timestamp, endpoint: &Endpoint) -> EndpointLoad {
        let load = &endpoint.load;
        let model = self.classes[endpoint.class].calibration.model();
        let over = model.over(f64::from(load.decoding()), load.decoding_context() as f64);
        let step_s = model.decode_step(over) * endpoint.pace.factor();
        let mut slack = [0; 8];
        for stream in load.streams() {
            let seconds = stream.slack(now, step_s);
            slack[SLACK_EDGES.partition_point(|edge| *edge < seconds)] += 1;
        }
        EndpointLoad {
            endpoint: endpoint.name.clone(),
            prefilling: load.prefilling(),
            pending_tokens: load.pending_tokens(),
            pending_double_area: load.pending_double_area(),
            pending_context: load.pending_context(),
            decoding: load.decoding(),
            decoding_context: load.decoding_context(),
            slack,
        }
    }
}
