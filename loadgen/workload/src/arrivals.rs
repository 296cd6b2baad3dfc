//! When requests arrive, whatever the system makes of them: open loop.

use std::str::FromStr;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::seed::{Purpose, stream};

/// The law of arrivals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Evenly spaced.
    Constant(Rate),
    /// Independent of each other.
    Poisson(Rate),
    /// At the times of a trace divided by `factor`, after each was moved later by a uniform `0..jitter`.
    Recorded { factor: Factor, jitter: Duration },
}

/// Requests per second: positive, at most a million.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Rate(f64);

/// By how much a trace is sped up: positive, at most a million.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Factor(f64);

/// Neither a rate nor a factor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is out of range; give a number above 0 and up to 1000000")]
pub struct OutOfRange(String);

macro_rules! positive {
    ($name:ident) => {
        impl $name {
            pub fn new(value: f64) -> Result<Self, OutOfRange> {
                if value > 0.0 && value <= 1e6 {
                    Ok(Self(value))
                } else {
                    Err(OutOfRange(value.to_string()))
                }
            }

            pub fn get(self) -> f64 {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = OutOfRange;

            fn from_str(text: &str) -> Result<Self, OutOfRange> {
                text.parse()
                    .map_err(|_| OutOfRange(format!("{text:?}")))
                    .and_then(Self::new)
            }
        }
    };
}

positive!(Rate);
positive!(Factor);

impl Factor {
    /// As recorded.
    pub const ONE: Self = Self(1.0);
}

/// Endless arrival times from zero on.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    law: Law,
    /// Seconds; a sum of seconds stays exact to a microsecond for centuries.
    now: f64,
}

#[derive(Debug, Clone)]
enum Law {
    Constant(f64),
    Poisson(f64, Box<ChaCha8Rng>),
}

impl Clock {
    pub(crate) fn constant(rate: Rate) -> Self {
        Self {
            law: Law::Constant(rate.0),
            now: 0.0,
        }
    }

    pub(crate) fn poisson(rate: Rate, seed: u64) -> Self {
        Self {
            law: Law::Poisson(rate.0, Box::new(stream(seed, Purpose::Arrivals, 0))),
            now: 0.0,
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.now += match &mut self.law {
            Law::Constant(rate) => 1.0 / *rate,
            Law::Poisson(rate, random) => -(1.0 - random.random::<f64>()).ln() / *rate,
        };
        Duration::from_secs_f64(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Factor, Rate};

    #[test]
    fn constant_arrivals_are_evenly_spaced() {
        let mut clock = Clock::constant(Rate::new(4.0).expect("in range"));
        let times: Vec<u128> = (0..4).map(|_| clock.next().as_millis()).collect();
        assert_eq!(times, [250, 500, 750, 1_000]);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_the_law() {
        for seed in 0..4 {
            let mut clock = Clock::poisson(Rate::new(10.0).expect("in range"), seed);
            let times: Vec<f64> = (0..20_000).map(|_| clock.next().as_secs_f64()).collect();
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance =
                gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 10.0 - 1.0).abs() < 0.03, "mean gap {mean}");
            assert!(
                (variance.sqrt() / mean - 1.0).abs() < 0.05,
                "spread {}",
                variance.sqrt() / mean
            );
        }
    }

    #[test]
    fn rates_are_positive_numbers() {
        assert_eq!("2.5".parse().map(Rate::get), Ok(2.5));
        for text in ["0", "-1", "NaN", "inf", "1e9", "", "x"] {
            assert!(
                text.parse::<Rate>().is_err() && text.parse::<Factor>().is_err(),
                "{text}"
            );
        }
    }
}
