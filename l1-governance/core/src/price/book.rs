//! The price book: which rates, bands and ratios were in force when.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use governance_context::Band;

use super::quote::{NoPrice, Quote, Rated, Stamp, Unpriced};
use super::{PicoPerToken, ROUNDING, Rates, Ratio};
use crate::account::UnixMs;

/// The version of a price or of the ratios; larger is newer.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct PriceVersion(pub u32);

/// The name of a group of accounts that share a ratio; empty for the standard group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupName(pub Arc<str>);

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Rates for prompts up to a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextBand {
    /// Longest prompt, in tokens, this band applies to; `None` in the last band.
    pub up_to: Option<u64>,
    /// The rates.
    pub rates: Rates,
}

/// One model's rates from an instant on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priced {
    /// Unique and growing per model.
    pub version: PriceVersion,
    /// First instant in force.
    pub effective: UnixMs,
    /// By growing prompt length; the last one has no end.
    pub bands: Arc<[ContextBand]>,
}

/// Ratios of groups and bands from an instant on; what is not named has ratio one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ratios {
    /// Unique and growing.
    pub version: PriceVersion,
    /// First instant in force.
    pub effective: UnixMs,
    /// Ratio by account group.
    pub groups: BTreeMap<GroupName, Ratio>,
    /// Ratio by priority band.
    pub bands: BTreeMap<Band, Ratio>,
}

/// What a price may not be: the guard against a price per million entered as a price per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sanity {
    /// The largest rate. Default 10⁹ pico-WTU per token, which is 1,000 WTU per million tokens.
    pub max_rate: PicoPerToken,
    /// How many times a new version may be above or below the one before it. Default 20.
    pub max_step: u32,
}

impl Default for Sanity {
    fn default() -> Self {
        Sanity {
            max_rate: PicoPerToken(1_000_000_000),
            max_step: 20,
        }
    }
}

/// Why a price was not accepted into the book.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// Above the bound: most likely entered in the wrong unit.
    #[error(
        "{model}: the {class} rate of {rate} pico-WTU per token is above the bound of {bound}; was a price per million entered as a price per token?"
    )]
    AboveBound {
        /// The model.
        model: String,
        /// The token class.
        class: &'static str,
        /// What was entered.
        rate: u64,
        /// The bound.
        bound: u64,
    },
    /// Too far from the version before it.
    #[error(
        "{model}: the {class} rate goes from {before} to {after} pico-WTU per token, more than {step} times; enter it in smaller steps or raise the bound"
    )]
    Step {
        /// The model.
        model: String,
        /// The token class.
        class: &'static str,
        /// In force before.
        before: u64,
        /// Entered.
        after: u64,
        /// The bound.
        step: u32,
    },
    /// A cached token may not cost more than a computed one.
    #[error("{0}: a cached token costs more than an uncached one")]
    CachedAboveUncached(String),
    /// The bands do not cover every length once.
    #[error("{0}: context bands must grow, and the last one must have no end")]
    Bands(String),
    /// Versions and dates must both grow.
    #[error("{name}: version {version} is not newer than version {last} in both number and date")]
    NotNewer {
        /// The model, or `ratios`.
        name: String,
        /// Entered.
        version: u32,
        /// The newest so far.
        last: u32,
    },
}

/// Collects prices and checks each as it comes.
#[derive(Debug, Default)]
pub struct BookBuilder {
    book: Book,
    sanity: Sanity,
}

impl BookBuilder {
    /// An empty book with these bounds.
    pub fn new(sanity: Sanity) -> BookBuilder {
        BookBuilder {
            book: Book::default(),
            sanity,
        }
    }

    /// What to do with models that have no price. Strict unless said otherwise.
    #[must_use]
    pub fn unpriced(mut self, rule: Unpriced) -> BookBuilder {
        self.book.unpriced = rule;
        self
    }

    /// Adds a version of a model's price.
    pub fn price(mut self, model: &str, priced: Priced) -> Result<BookBuilder, BookError> {
        check_bands(model, &priced.bands)?;
        for band in priced.bands.iter() {
            self.check_rates(model, &band.rates)?;
        }
        let versions = self.book.models.entry(model.into()).or_default();
        if let Some(last) = versions.last() {
            newer(
                model,
                (last.version, last.effective),
                (priced.version, priced.effective),
            )?;
            check_step(model, self.sanity.max_step, &last.bands, &priced.bands)?;
        }
        versions.push(priced);
        Ok(self)
    }

    /// Adds a version of the ratios.
    pub fn ratios(mut self, ratios: Ratios) -> Result<BookBuilder, BookError> {
        if let Some(last) = self.book.ratios.last() {
            newer(
                "ratios",
                (last.version, last.effective),
                (ratios.version, ratios.effective),
            )?;
        }
        self.book.ratios.push(ratios);
        Ok(self)
    }

    /// The book.
    pub fn build(self) -> Book {
        self.book
    }

    fn check_rates(&self, model: &str, rates: &Rates) -> Result<(), BookError> {
        // Charge arithmetic in u128 needs rates below 2⁴⁰.
        let bound = self.sanity.max_rate.0.min(1 << 40);
        for (class, rate) in classes(rates) {
            if rate > bound {
                let model = model.to_owned();
                return Err(BookError::AboveBound {
                    model,
                    class,
                    rate,
                    bound,
                });
            }
        }
        if rates.cached > rates.uncached {
            return Err(BookError::CachedAboveUncached(model.to_owned()));
        }
        Ok(())
    }
}

fn classes(rates: &Rates) -> [(&'static str, u64); 3] {
    [
        ("uncached", rates.uncached.0),
        ("cached", rates.cached.0),
        ("decode", rates.decode.0),
    ]
}

fn check_bands(model: &str, bands: &[ContextBand]) -> Result<(), BookError> {
    let grows = bands
        .windows(2)
        .all(|pair| match (pair[0].up_to, pair[1].up_to) {
            (Some(a), Some(b)) => a < b,
            (Some(_), None) => true,
            (None, _) => false,
        });
    let ends = bands.last().is_some_and(|band| band.up_to.is_none());
    if grows && ends {
        Ok(())
    } else {
        Err(BookError::Bands(model.to_owned()))
    }
}

fn check_step(
    model: &str,
    step: u32,
    before: &[ContextBand],
    after: &[ContextBand],
) -> Result<(), BookError> {
    let (Some(old), Some(new)) = (before.first(), after.first()) else {
        return Ok(());
    };
    for ((class, before), (_, after)) in classes(&old.rates).into_iter().zip(classes(&new.rates)) {
        let far = |low: u64, high: u64| low > 0 && high > low.saturating_mul(u64::from(step));
        if far(before, after) || (after > 0 && far(after, before)) {
            let model = model.to_owned();
            return Err(BookError::Step {
                model,
                class,
                before,
                after,
                step,
            });
        }
    }
    Ok(())
}

fn newer(
    name: &str,
    last: (PriceVersion, UnixMs),
    next: (PriceVersion, UnixMs),
) -> Result<(), BookError> {
    if next.0 > last.0 && next.1 > last.1 {
        return Ok(());
    }
    Err(BookError::NotNewer {
        name: name.to_owned(),
        version: next.0.0,
        last: last.0.0,
    })
}

/// Every version of every price, oldest first. Immutable; replaced as a whole.
#[derive(Debug, Clone, Default)]
pub struct Book {
    models: BTreeMap<Arc<str>, Vec<Priced>>,
    ratios: Vec<Ratios>,
    unpriced: Unpriced,
}

impl Book {
    /// The price of a model for an account group and a band at an instant. The quote is kept with the hold and
    /// used at settlement, whatever the book says by then.
    pub fn quote(
        &self,
        model: &str,
        group: &GroupName,
        band: Band,
        now: UnixMs,
    ) -> Result<Quote, NoPrice> {
        let ratios = in_force(&self.ratios, now, |ratios| ratios.effective);
        let found = self.models.get_key_value(model);
        let priced = found
            .and_then(|(name, versions)| Some((name, in_force(versions, now, |p| p.effective)?)));
        match (priced, self.unpriced) {
            (Some((name, priced)), _) => Ok(rate(name.clone(), priced, ratios, group, band)),
            (None, Unpriced::Floor(floor)) => Ok(Quote::floor(model, group, band, floor)),
            (None, Unpriced::Refuse) => Err(NoPrice(model.to_owned())),
        }
    }

    /// The price a stamp names, or another version of it: re-rating from raw tokens.
    pub fn requote(&self, stamp: &Stamp, version: PriceVersion) -> Result<Quote, NoPrice> {
        let none = || NoPrice(stamp.model.to_string());
        let versions = self.models.get(&stamp.model).ok_or_else(none)?;
        let priced = versions
            .iter()
            .find(|priced| priced.version == version)
            .ok_or_else(none)?;
        let ratios = self
            .ratios
            .iter()
            .find(|ratios| ratios.version == stamp.ratios);
        Ok(rate(
            stamp.model.clone(),
            priced,
            ratios,
            &stamp.group,
            stamp.band,
        ))
    }

    /// The models with a price, by name.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(|name| &**name)
    }
}

fn in_force<T>(versions: &[T], now: UnixMs, effective: impl Fn(&T) -> UnixMs) -> Option<&T> {
    versions
        .iter()
        .rev()
        .find(|version| effective(version) <= now)
}

fn rate(
    model: Arc<str>,
    priced: &Priced,
    ratios: Option<&Ratios>,
    group: &GroupName,
    band: Band,
) -> Quote {
    let of_group = ratios
        .and_then(|r| r.groups.get(group))
        .copied()
        .unwrap_or(Ratio::ONE);
    let of_band = ratios
        .and_then(|r| r.bands.get(&band))
        .copied()
        .unwrap_or(Ratio::ONE);
    let stamp = Stamp {
        model,
        group: group.clone(),
        band,
        price: priced.version,
        ratios: ratios.map(|r| r.version).unwrap_or_default(),
        rounding: ROUNDING,
    };
    Quote::rated(
        stamp,
        Rated {
            bands: priced.bands.clone(),
            group: of_group,
            band: of_band,
        },
    )
}
