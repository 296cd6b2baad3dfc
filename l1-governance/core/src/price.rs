//! What a request costs: a versioned, effective-dated price book in integers, rounded once and upwards.
//!
//! `charge = ceil( Σ_class tokens × rate × group × band )`: rates in pico-WTU per token, charges in micro-WTU,
//! ratios as fractions. Raw tokens are kept beside every charge, so any version can rate them again.

mod book;
mod quote;

#[cfg(test)]
mod tests;

pub use book::{
    Book, BookBuilder, BookError, ContextBand, GroupName, PriceVersion, Priced, Ratios, Sanity,
};
pub use quote::{NoPrice, Quote, Stamp, Unpriced};

/// The version of the rounding rule: one rounding per attempt, upwards, to one micro-WTU.
pub const ROUNDING: u32 = 1;

/// Token counts above this are taken as this; no engine produces a trillion tokens.
const MAX_TOKENS: u64 = 1 << 40;

/// A rate in pico-WTU (10⁻¹² WTU) per token. One pico-WTU per token is one micro-WTU per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PicoPerToken(pub u64);

impl PicoPerToken {
    /// A rate written per million tokens, such as `2.5`; exact to six decimals.
    pub fn per_million(wtu: &str) -> Result<PicoPerToken, crate::account::AmountError> {
        // WTU per 10⁶ tokens × 10¹² pico / 10⁶ tokens = 10⁶ pico per token: the micro-WTU figure itself.
        crate::account::parse_wtu(wtu).map(|micro| PicoPerToken(micro.0))
    }
}

/// The three rates of one model in one context band.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// Input tokens the engine computes.
    pub uncached: PicoPerToken,
    /// Input tokens found in the prefix cache.
    pub cached: PicoPerToken,
    /// Output tokens.
    pub decode: PicoPerToken,
}

/// A fraction of integers; both parts 1 to 1,048,576.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    num: u32,
    den: u32,
}

impl Ratio {
    /// One.
    pub const ONE: Ratio = Ratio { num: 1, den: 1 };
    const MAX: u32 = 1 << 20;

    /// `num / den`, or `None` when a part is zero or above 2²⁰.
    pub fn new(num: u32, den: u32) -> Option<Ratio> {
        let allowed = 1..=Self::MAX;
        (allowed.contains(&num) && allowed.contains(&den)).then_some(Ratio { num, den })
    }

    /// Reads `3/2`, `1` or `0.75`.
    pub fn parse(text: &str) -> Option<Ratio> {
        if let Some((num, den)) = text.split_once('/') {
            return Ratio::new(num.trim().parse().ok()?, den.trim().parse().ok()?);
        }
        let micro = u32::try_from(crate::account::parse_wtu(text).ok()?.0).ok()?;
        let divisor = gcd(micro, 1_000_000).max(1);
        Ratio::new(micro / divisor, 1_000_000 / divisor)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What the engine counted, the raw material of every charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Tokens {
    /// Input tokens computed.
    pub uncached: u64,
    /// Input tokens found in the cache.
    pub cached: u64,
    /// Output tokens, of all choices.
    pub decode: u64,
}

impl Tokens {
    /// From a usage object: prompt tokens of which some were cached, and output tokens.
    pub fn from_usage(prompt: u64, cached: Option<u64>, output: u64) -> Tokens {
        let cached = cached.unwrap_or(0).min(prompt);
        Tokens {
            uncached: prompt - cached,
            cached,
            decode: output,
        }
    }

    /// Input tokens.
    pub fn prompt(&self) -> u64 {
        self.uncached.saturating_add(self.cached)
    }

    /// All tokens.
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.decode)
    }
}
