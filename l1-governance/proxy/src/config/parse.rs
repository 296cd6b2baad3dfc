//! The small readers of the configuration: durations, decimals, choices, names.

use std::time::Duration;

use super::ConfigError;

pub(super) type Checked<T> = Result<T, ConfigError>;

/// Where in the file a value stands, as people would point at it: `tenants[0].limits[1].per`.
#[derive(Clone, Debug)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn root(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(super) fn field(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn index(&self, name: &str, index: usize) -> Self {
        Self(format!("{}.{name}[{index}]", self.0))
    }

    pub(super) fn refuse(
        &self,
        value: impl std::fmt::Debug,
        allowed: impl Into<String>,
    ) -> ConfigError {
        ConfigError {
            field: self.0.clone(),
            value: format!("{value:?}"),
            allowed: allowed.into(),
        }
    }
}

/// What stands there, in a word of ours instead of the one that was written.
pub(super) struct Word(pub(super) &'static str);

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Reads `250ms`, `30s`, `5m`, `24h`, `7d`: a whole number and one unit, so that no period is
/// approximated.
pub(super) fn duration(text: &str, path: &Path) -> Result<Duration, ConfigError> {
    let refuse = || {
        path.refuse(
            text,
            "a whole number above 0 and one unit of ms, s, m, h, d; for example 30s",
        )
    };
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(refuse)?;
    let number: u64 = text[..split].parse().map_err(|_| refuse())?;
    let unit_ms: u64 = match &text[split..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(refuse()),
    };
    match number.checked_mul(unit_ms) {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        Some(_) | None => Err(refuse()),
    }
}

/// Reads a decimal of at least 0 as a whole number of 10^-`digits`, without rounding.
pub(super) fn decimal(text: &str, digits: usize, path: &Path) -> Result<u64, ConfigError> {
    let refuse = || {
        path.refuse(
            text,
            format!("a decimal number of at least 0 with at most {digits} digits after the point"),
        )
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(fraction) || fraction.len() > digits {
        return Err(refuse());
    }
    if text.ends_with('.') {
        return Err(refuse());
    }
    let scaled = format!("{whole}{fraction:0<digits$}");
    scaled.parse().map_err(|_| refuse())
}

/// Picks one of a few words.
pub(super) fn choice<T: Copy>(
    text: &str,
    choices: &[(&str, T)],
    path: &Path,
) -> Result<T, ConfigError> {
    choices
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            path.refuse(text, format!("one of {}", words.join(", ")))
        })
}

/// Names of tenants, projects, users and keys: they stand in account paths, logs and labels.
pub(super) fn name(text: &str, path: &Path) -> Result<String, ConfigError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=64).contains(&text.len()) && text.bytes().all(fine) {
        return Ok(text.to_owned());
    }
    Err(path.refuse(text, "1 to 64 letters, digits, '-', '_' or '.'"))
}

/// Names of models: as `name`, and `/` and `:` besides.
pub(super) fn model_name(text: &str, path: &Path) -> Result<String, ConfigError> {
    if (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(path.refuse(text, "1 to 128 visible ASCII characters"))
}
