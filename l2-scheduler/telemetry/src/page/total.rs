//! Folding the series of one family into one number. A family with an unusable series has no total.

use crate::sample::Malformed;

/// Sum, mean and extremes over the series of a family.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Total {
    #[default]
    Absent,
    Known {
        sum: f64,
        smallest: f64,
        largest: f64,
        series: u32,
    },
    Broken,
}

impl Total {
    /// Takes in one series.
    pub(super) fn add(&mut self, value: Result<f64, Malformed>) {
        *self = match (*self, value) {
            (Self::Absent, Ok(value)) => Self::Known {
                sum: value,
                smallest: value,
                largest: value,
                series: 1,
            },
            (
                Self::Known {
                    sum,
                    smallest,
                    largest,
                    series,
                },
                Ok(value),
            ) => Self::Known {
                sum: sum + value,
                smallest: smallest.min(value),
                largest: largest.max(value),
                series: series.saturating_add(1),
            },
            (Self::Broken, _) | (_, Err(Malformed)) => Self::Broken,
        };
    }

    pub(super) fn seen(self) -> bool {
        !matches!(self, Self::Absent)
    }

    pub(super) fn sum(self) -> Option<f64> {
        match self {
            Self::Known { sum, .. } => Some(sum),
            Self::Absent | Self::Broken => None,
        }
    }

    pub(super) fn mean(self) -> Option<f64> {
        match self {
            Self::Known { sum, series, .. } => Some(sum / f64::from(series)),
            Self::Absent | Self::Broken => None,
        }
    }

    pub(super) fn smallest(self) -> Option<f64> {
        match self {
            Self::Known { smallest, .. } => Some(smallest),
            Self::Absent | Self::Broken => None,
        }
    }

    pub(super) fn largest(self) -> Option<f64> {
        match self {
            Self::Known { largest, .. } => Some(largest),
            Self::Absent | Self::Broken => None,
        }
    }
}

/// Series of replicated ranks: one value per data-parallel rank (the largest its tensor and pipeline ranks report,
/// which all tell of the same batch), totalled over data-parallel ranks.
#[derive(Debug, Clone, Default)]
pub(super) struct PerRank {
    values: Vec<(u32, f64)>,
    broken: bool,
}

/// More data-parallel ranks than any engine has; a page with more is not believed.
const MOST_RANKS: usize = 1024;

impl PerRank {
    pub(super) fn add(&mut self, value: Result<(u32, f64), Malformed>) {
        let Ok((rank, value)) = value else {
            self.broken = true;
            return;
        };
        if let Some((_, largest)) = self.values.iter_mut().find(|(known, _)| *known == rank) {
            *largest = largest.max(value);
        } else if self.values.len() < MOST_RANKS {
            self.values.push((rank, value));
        } else {
            self.broken = true;
        }
    }

    pub(super) fn total(&self) -> Total {
        let mut total = Total::default();
        if self.broken {
            total.add(Err(Malformed));
        }
        for &(_, value) in &self.values {
            total.add(Ok(value));
        }
        total
    }
}

/// A number of things: not negative and no larger than any engine can mean. Fractions are cut.
pub(super) fn count(value: Option<f64>) -> Option<u32> {
    value
        .filter(|value| (0.0..=f64::from(u32::MAX)).contains(value))
        .map(|value| value as u32)
}

/// As [`count`], for tokens and blocks: below 2^53, where numbers are exact.
pub(super) fn large_count(value: Option<f64>) -> Option<u64> {
    value
        .filter(|value| (0.0..9_007_199_254_740_992.0).contains(value))
        .map(|value| value as u64)
}

/// A share of something; a little above one is rounding, more is nonsense.
pub(super) fn share(value: Option<f64>) -> Option<f64> {
    value
        .filter(|value| (0.0..=1.05).contains(value))
        .map(|value| value.min(1.0))
}
