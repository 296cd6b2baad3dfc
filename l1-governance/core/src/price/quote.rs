//! A price as it was when the hold was taken.

use std::sync::Arc;

use governance_context::{Band, MicroWtu};

use super::book::{ContextBand, GroupName, PriceVersion};
use super::{MAX_TOKENS, Rates, Ratio, Tokens};

const PICO_PER_MICRO: u128 = 1_000_000;

/// What to do with a model that has no price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unpriced {
    /// Refuse `no_price`.
    #[default]
    Refuse,
    /// Hold and charge this much per attempt until someone rates it again.
    Floor(MicroWtu),
}

/// A model without a price under the strict rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model {0:?} has no price in force")]
pub struct NoPrice(pub String);

/// Which versions a charge was made with, enough to make it again from the raw tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The priced model.
    pub model: Arc<str>,
    /// The account group.
    pub group: GroupName,
    /// The priority band.
    pub band: Band,
    /// Version of the price; 0 for the floor of an unpriced model.
    pub price: PriceVersion,
    /// Version of the ratios; 0 when there were none.
    pub ratios: PriceVersion,
    /// Version of the rounding rule.
    pub rounding: u32,
}

/// The factors of a priced model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rated {
    pub(super) bands: Arc<[ContextBand]>,
    pub(super) group: Ratio,
    pub(super) band: Ratio,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Factors {
    Rated(Rated),
    Floor(MicroWtu),
}

/// The price of one attempt, fixed when it is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    stamp: Stamp,
    factors: Factors,
}

impl Quote {
    pub(super) fn rated(stamp: Stamp, rated: Rated) -> Quote {
        Quote {
            stamp,
            factors: Factors::Rated(rated),
        }
    }

    pub(super) fn floor(model: &str, group: &GroupName, band: Band, floor: MicroWtu) -> Quote {
        let stamp = Stamp {
            model: model.into(),
            group: group.clone(),
            band,
            price: PriceVersion(0),
            ratios: PriceVersion(0),
            rounding: super::ROUNDING,
        };
        Quote {
            stamp,
            factors: Factors::Floor(floor),
        }
    }

    /// The versions it was made with.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The charge for what the engine counted. No tokens cost nothing.
    pub fn charge(&self, tokens: &Tokens) -> MicroWtu {
        match &self.factors {
            Factors::Floor(floor) if tokens.total() > 0 => *floor,
            Factors::Floor(_) => MicroWtu(0),
            Factors::Rated(rated) => rated.charge(rated.rates_for(tokens.prompt()), tokens),
        }
    }

    /// An estimate: the prompt uncached, the output as expected.
    pub fn estimate(&self, prompt: u64, output: u64) -> MicroWtu {
        self.charge(&Tokens {
            uncached: prompt,
            cached: 0,
            decode: output,
        })
    }

    /// The most an attempt can cost whose prompt has at most `prompt` tokens, all uncached, and each of whose
    /// `n` choices has at most `output` tokens. Never below any charge within those bounds.
    pub fn largest(&self, prompt: u64, output: u64, n: u32) -> MicroWtu {
        let tokens = Tokens {
            uncached: prompt,
            cached: 0,
            decode: output.saturating_mul(u64::from(n.max(1))),
        };
        match &self.factors {
            Factors::Floor(floor) => *floor,
            Factors::Rated(rated) => rated.charge(rated.dearest(prompt), &tokens),
        }
    }

    /// The largest output bound per choice whose [`Quote::largest`] still fits into `budget`: how far
    /// `max_tokens` must be clamped. `None` when not even the prompt fits.
    pub fn affordable_output(&self, prompt: u64, n: u32, budget: MicroWtu) -> Option<u64> {
        if self.largest(prompt, 0, n) > budget {
            return None;
        }
        let (mut fits, mut too_much) = (0, MAX_TOKENS);
        while too_much - fits > 1 {
            let middle = u64::midpoint(fits, too_much);
            if self.largest(prompt, middle, n) <= budget {
                fits = middle;
            } else {
                too_much = middle;
            }
        }
        Some(fits)
    }
}

impl Rated {
    fn rates_for(&self, prompt: u64) -> Rates {
        let band = self
            .bands
            .iter()
            .find(|band| band.up_to.is_none_or(|most| prompt <= most));
        band.map(|band| band.rates).unwrap_or_default()
    }

    /// The dearest rate of each class over the bands a prompt of at most `prompt` tokens can fall into.
    fn dearest(&self, prompt: u64) -> Rates {
        let mut most = Rates::default();
        for band in self.bands.iter() {
            most.uncached = most.uncached.max(band.rates.uncached);
            most.decode = most.decode.max(band.rates.decode);
            if band.up_to.is_none_or(|end| prompt <= end) {
                break;
            }
        }
        most
    }

    fn charge(&self, rates: Rates, tokens: &Tokens) -> MicroWtu {
        // At most 3 · 2⁴⁰ tokens · 2⁴⁰ pico · 2²⁰ · 2²⁰ < 2¹²⁸.
        let class = |tokens: u64, rate: u64| u128::from(tokens.min(MAX_TOKENS)) * u128::from(rate);
        let pico = class(tokens.uncached, rates.uncached.0)
            + class(tokens.cached, rates.cached.0)
            + class(tokens.decode, rates.decode.0);
        let scaled = pico * u128::from(self.group.num) * u128::from(self.band.num);
        let divisor = PICO_PER_MICRO * u128::from(self.group.den) * u128::from(self.band.den);
        MicroWtu(u64::try_from(scaled.div_ceil(divisor)).unwrap_or(u64::MAX))
    }
}
