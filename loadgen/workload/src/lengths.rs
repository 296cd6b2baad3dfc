//! Distributions of lengths in tokens.

use std::fmt;
use std::str::FromStr;

use rand::{Rng, RngExt};

/// How many tokens a prompt or an answer has. Never zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lengths {
    /// `512`
    Fixed(u32),
    /// `100..900`, both included.
    Uniform { least: u32, most: u32 },
    /// `lognormal:500,2000,8000`: median, 90th percentile and largest.
    LogNormal { median: u32, p90: u32, most: u32 },
}

/// Not a distribution of lengths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no length; write 512, or 100..900, or lognormal:MEDIAN,P90,MOST with 1 <= MEDIAN <= P90 <= MOST <= 4000000"
)]
pub struct BadLengths(String);

const MOST: u32 = 4_000_000;
/// Standard normal deviate of the 90th percentile.
const Z90: f64 = 1.281_551_565_544_6;

impl Lengths {
    pub(crate) fn draw(self, random: &mut impl Rng) -> u32 {
        match self {
            Self::Fixed(length) => length,
            Self::Uniform { least, most } => random.random_range(least..=most),
            Self::LogNormal { median, p90, most } => {
                let sigma = (f64::from(p90) / f64::from(median)).ln() / Z90;
                let length = f64::from(median) * (sigma * normal(random)).exp();
                length.round().clamp(1.0, f64::from(most)) as u32
            }
        }
    }
}

/// A standard normal deviate (Box and Muller).
pub(crate) fn normal(random: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

impl FromStr for Lengths {
    type Err = BadLengths;

    fn from_str(text: &str) -> Result<Self, BadLengths> {
        parse(text).ok_or_else(|| BadLengths(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Lengths> {
    if let Some(parameters) = text.strip_prefix("lognormal:") {
        let values: Vec<u32> = parameters.split(',').map(length).collect::<Option<_>>()?;
        let [median, p90, most] = values[..] else {
            return None;
        };
        return (median <= p90 && p90 <= most).then_some(Lengths::LogNormal { median, p90, most });
    }
    if let Some((least, most)) = text.split_once("..") {
        let (least, most) = (length(least)?, length(most)?);
        return (least <= most).then_some(Lengths::Uniform { least, most });
    }
    length(text).map(Lengths::Fixed)
}

fn length(text: &str) -> Option<u32> {
    text.trim()
        .parse()
        .ok()
        .filter(|length| (1..=MOST).contains(length))
}

impl fmt::Display for Lengths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(formatter, "{length}"),
            Self::Uniform { least, most } => write!(formatter, "{least}..{most}"),
            Self::LogNormal { median, p90, most } => {
                write!(formatter, "lognormal:{median},{p90},{most}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lengths;
    use crate::seed::{Purpose, stream};

    #[test]
    fn lengths_are_written_as_they_are_read() {
        for text in ["1", "512", "100..900", "7..7", "lognormal:500,2000,8000"] {
            assert_eq!(
                text.parse::<Lengths>().map(|lengths| lengths.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "",
            "0",
            "-1",
            "9..8",
            "1..",
            "lognormal:1,2",
            "lognormal:3,2,9",
            "4000001",
            "x",
        ] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        for (text, p50, p90) in [
            ("512", 512, 512),
            ("100..900", 500, 820),
            ("lognormal:500,2000,8000", 500, 2_000),
        ] {
            let lengths: Lengths = text.parse().expect("valid");
            let mut random = stream(1, Purpose::Lengths, 0);
            let mut drawn: Vec<u32> = (0..20_000).map(|_| lengths.draw(&mut random)).collect();
            drawn.sort_unstable();
            for (found, expected) in [(drawn[10_000], p50), (drawn[18_000], p90)] {
                assert!(
                    found.abs_diff(expected) <= expected / 25,
                    "{text}: {found} for {expected}"
                );
            }
        }
    }
}
