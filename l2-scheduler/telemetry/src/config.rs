//! Settings of the scraper: the file form and the checked form. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `scrape:` of a configuration file. Every field may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    interval_ms: u64,
    idle_interval_ms: u64,
    timeout_ms: u64,
    max_page_bytes: u64,
}

impl Default for File {
    fn default() -> Self {
        Self {
            interval_ms: 100,
            idle_interval_ms: 1_000,
            timeout_ms: 1_000,
            max_page_bytes: 4 << 20,
        }
    }
}

/// How to scrape. Holding one means it is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Time between two scrapes of an endpoint at work, 50 to 1,000 ms.
    pub(crate) interval: Duration,
    /// The same for an endpoint that is idle and was not picked, or does not answer; at least `interval`.
    pub(crate) idle_interval: Duration,
    /// Time for one scrape, connecting included.
    pub(crate) timeout: Duration,
    /// A longer answer is refused.
    pub(crate) max_page_bytes: usize,
}

/// A setting outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("scrape.{field}: {value} is out of range, allowed are {least} to {most}")]
pub struct ConfigError {
    pub field: &'static str,
    pub value: u64,
    pub least: u64,
    pub most: u64,
}

impl Config {
    /// Checks the ranges.
    pub fn check(file: &File) -> Result<Self, ConfigError> {
        let interval = within("interval_ms", file.interval_ms, 50, 1_000)?;
        let idle = within("idle_interval_ms", file.idle_interval_ms, interval, 60_000)?;
        let timeout = within("timeout_ms", file.timeout_ms, 10, 60_000)?;
        let bytes = within("max_page_bytes", file.max_page_bytes, 4 << 10, 256 << 20)?;
        Ok(Self {
            interval: Duration::from_millis(interval),
            idle_interval: Duration::from_millis(idle),
            timeout: Duration::from_millis(timeout),
            max_page_bytes: bytes as usize,
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::check(&File::default()).expect("the defaults are within their ranges")
    }
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<u64, ConfigError> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError {
            field,
            value,
            least,
            most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, File};

    fn check(file: File, expected: &str) {
        let found = match Config::check(&file) {
            Ok(config) => format!(
                "{:?} {:?} {:?}",
                config.interval, config.idle_interval, config.timeout
            ),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn settings_have_defaults_and_ranges() {
        check(File::default(), "100ms 1s 1s");
        check(
            File {
                interval_ms: 1_000,
                ..File::default()
            },
            "1s 1s 1s",
        );
        check(
            File {
                interval_ms: 49,
                ..File::default()
            },
            "scrape.interval_ms: 49 is out of range, allowed are 50 to 1000",
        );
        check(
            File {
                idle_interval_ms: 99,
                ..File::default()
            },
            "scrape.idle_interval_ms: 99 is out of range, allowed are 100 to 60000",
        );
        check(
            File {
                timeout_ms: 0,
                ..File::default()
            },
            "scrape.timeout_ms: 0 is out of range, allowed are 10 to 60000",
        );
        check(
            File {
                max_page_bytes: 0,
                ..File::default()
            },
            "scrape.max_page_bytes: 0 is out of range, allowed are 4096 to 268435456",
        );
    }
}
