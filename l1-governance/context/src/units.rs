//! Quantities with one unit each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A priority level: higher first, negative can be shed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Band(pub i32);

impl Band {
    /// Whether requests of this band may be dropped to make room.
    pub fn is_sheddable(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An amount of quota in millionths of a weighted token unit.
///
/// It has no operators: every addition says what happens when it does not fit.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MicroWtu(pub u64);

impl MicroWtu {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount.
    pub const MAX: Self = Self(u64::MAX);

    /// The sum, unless it does not fit.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference, unless it is negative.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// The product, unless it does not fit.
    pub fn checked_mul(self, factor: u64) -> Option<Self> {
        self.0.checked_mul(factor).map(Self)
    }

    /// The sum, at most [`MicroWtu::MAX`].
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// In whole units, with as many decimals as needed: `12.5`.
impl fmt::Display for MicroWtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, micro) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if micro == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{micro:06}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_in_whole_units() {
        for (micro, shown) in [
            (0, "0"),
            (1, "0.000001"),
            (12_500_000, "12.5"),
            (3_000_000, "3"),
            (1_020_000, "1.02"),
        ] {
            assert_eq!(MicroWtu(micro).to_string(), shown);
        }
    }

    #[test]
    fn arithmetic_never_wraps() {
        assert_eq!(MicroWtu::MAX.checked_add(MicroWtu(1)), None);
        assert_eq!(MicroWtu::MAX.saturating_add(MicroWtu(1)), MicroWtu::MAX);
        assert_eq!(MicroWtu(1).checked_sub(MicroWtu(2)), None);
        assert_eq!(MicroWtu(1).saturating_sub(MicroWtu(2)), MicroWtu::ZERO);
        assert_eq!(MicroWtu::MAX.checked_mul(2), None);
        assert_eq!(MicroWtu(2).checked_mul(3), Some(MicroWtu(6)));
    }
}
