//! Tenants of different habits, as seeded arrivals.

use std::time::Duration;

use governance_context::Band;
use pool_simulator::{Load, Offer};
use scheduler_core::Targets;
use workload::{Answer, BlockId, Planned, Prompt, Run};

/// What one tenant sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    pub(crate) per_second: f64,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    pub(crate) band: i32,
    /// Seconds between which it sends.
    pub(crate) during: (f64, f64),
}

impl Habit {
    pub(crate) const fn new(per_second: f64, prompt: u32, output: u32) -> Self {
        Self {
            per_second,
            prompt,
            output,
            band: 0,
            during: (0.0, 60.0),
        }
    }

    pub(crate) const fn in_band(self, band: i32) -> Self {
        Self { band, ..self }
    }

    pub(crate) const fn during(self, from: f64, to: f64) -> Self {
        Self {
            during: (from, to),
            ..self
        }
    }

    pub(crate) const fn times(self, factor: f64) -> Self {
        Self {
            per_second: self.per_second * factor,
            ..self
        }
    }

    /// WTU per second it asks for.
    pub(crate) fn work(self) -> f64 {
        self.per_second * (f64::from(self.prompt) + 2.0 * f64::from(self.output))
    }
}

/// Poisson arrivals of every tenant; lengths vary by half around its habit; prompts share nothing.
pub(crate) fn offers(habits: &[Habit], seed: u64) -> Vec<Offer> {
    let mut offers = Vec::new();
    let mut own = 0;
    for (habit, tenant) in habits.iter().zip(0..) {
        let mut chance = Chance(seed << 8 | u64::from(tenant));
        let mut at = habit.during.0;
        loop {
            at += -(1.0 - chance.unit()).ln() / habit.per_second.max(1e-9);
            if at >= habit.during.1 {
                break;
            }
            own += 1;
            let around = |length: u32, unit: f64| (f64::from(length) * (0.5 + unit)) as u32;
            let planned = Planned {
                index: 0,
                at: Duration::from_secs_f64(at),
                prompt: Prompt::new([Run {
                    first: BlockId(1 << 60 | own << 16),
                    tokens: around(habit.prompt, chance.unit()).max(1),
                }]),
                output_tokens: around(habit.output, chance.unit()).max(2),
                answer: Answer::Nobodys,
                tenant,
            };
            offers.push(Offer {
                planned,
                band: Band(habit.band),
                targets: Targets::default(),
            });
        }
    }
    offers.sort_by_key(|offer| offer.planned.at);
    for (offer, index) in offers.iter_mut().zip(0..) {
        offer.planned.index = index;
    }
    offers
}

/// What these tenants send.
pub(crate) fn crowd(habits: &[Habit], seed: u64) -> Load {
    Load::new(offers(habits, seed))
}

/// `SplitMix64`.
struct Chance(u64);

impl Chance {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
