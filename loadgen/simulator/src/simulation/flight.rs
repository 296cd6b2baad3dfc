//! One request on its way, and what is written down of it.

use engine_model::RequestId;
use scheduler_core::BookingId;

use super::NEVER;
use crate::load::{Entry, nanoseconds};
use crate::outcome::{End, Record};
use crate::scenario::Scenario;

const TPOT_S: f64 = 0.1;
/// Bits of an engine's request id that are the place in the load; those above count attempts.
const INDEX_BITS: u32 = 40;

pub(super) struct Flight {
    pub(super) record: Record,
    /// Who schedules it.
    pub(super) scheduler: u32,
    /// Of the attempt under way.
    pub(super) booking: Option<BookingId>,
    pub(super) engine: u32,
    pub(super) attempts: u32,
    /// Nanoseconds, as all times here.
    arrived: u64,
    pub(super) first: u64,
    last: u64,
    /// When its scheduler last heard of it.
    pub(super) told: u64,
    stall: u64,
    ttft_target: u64,
    tpot_target_s: f64,
}

/// Whether requests still arrive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arriving {
    Still,
    Over,
}

impl Flight {
    pub(super) fn new(entry: &Entry, scenario: &Scenario) -> Self {
        let profile = scenario.profile;
        let prefill = profile.prefill_seconds(entry.prompt_tokens, 0);
        let ttft_target = match entry.targets.ttft {
            Some(target) => nanoseconds(target),
            None => ((1.0 + 3.0 * prefill) * 1e9) as u64,
        };
        let tpot_target_s = entry
            .targets
            .tpot
            .map_or(TPOT_S, |target| target.as_secs_f64());
        let record = Record {
            tenant: entry.tenant,
            band: entry.band,
            prompt_tokens: entry.prompt_tokens,
            output_tokens: entry.output_tokens,
            end: End::Open,
            arrived_s: seconds(entry.at),
            waited_s: f64::NAN,
            ttft_s: f64::NAN,
            tpot_s: f64::NAN,
            stall_s: f64::NAN,
            total_s: f64::NAN,
            best_ttft_s: profile
                .prefill_seconds(entry.prompt_tokens - entry.best_cached, entry.best_cached),
            believed_tokens: 0,
            cached_tokens: 0,
            computed_tokens: 0,
            met_ttft: false,
            good: false,
            in_time: false,
        };
        Self {
            record,
            scheduler: chosen_scheduler(entry.at, scenario),
            booking: None,
            engine: 0,
            attempts: 0,
            arrived: entry.at,
            first: NEVER,
            last: 0,
            told: 0,
            stall: 0,
            ttft_target,
            tpot_target_s,
        }
    }

    /// Begins an attempt; its id is unlike that of any other.
    pub(super) fn board(
        &mut self,
        now: u64,
        index: usize,
        booking: BookingId,
        engine: u32,
    ) -> RequestId {
        self.record.waited_s = seconds(now - self.arrived);
        self.booking = Some(booking);
        self.engine = engine;
        self.attempts += 1;
        self.id(index)
    }

    /// Of the attempt under way.
    pub(super) fn id(&self, index: usize) -> RequestId {
        RequestId(index as u64 | u64::from(self.attempts) << INDEX_BITS)
    }

    pub(super) fn index(id: RequestId) -> usize {
        (id.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    pub(super) fn first_token(&mut self, now: u64) {
        self.first = now;
        self.last = now;
        self.told = now;
        let ttft = now - self.arrived;
        self.record.ttft_s = seconds(ttft);
        self.record.met_ttft = ttft <= self.ttft_target;
    }

    pub(super) fn token(&mut self, now: u64) {
        self.stall = self.stall.max(now - self.last);
        self.last = now;
    }

    pub(super) fn completed(&mut self, now: u64, arriving: Arriving) {
        if self.first == NEVER {
            // It only read its prompt.
            self.first_token(now);
        }
        let record = &mut self.record;
        record.end = End::Completed;
        record.in_time = arriving == Arriving::Still || record.met_ttft;
        record.total_s = seconds(now - self.arrived);
        if record.output_tokens > 1 {
            record.tpot_s = seconds(now - self.first) / f64::from(record.output_tokens - 1);
            record.stall_s = seconds(self.stall);
        }
        let keeps_pace = !record.is_paced() || record.tpot_s <= self.tpot_target_s;
        record.good = record.met_ttft && keeps_pace;
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

/// Requests come to any scheduler: to which depends on when they come, so that it is the same for every policy.
fn chosen_scheduler(at: u64, scenario: &Scenario) -> u32 {
    let mut mixed = at ^ scenario.seed.rotate_left(32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed >> 33) % u64::from(scenario.schedulers.max(1))) as u32
}
