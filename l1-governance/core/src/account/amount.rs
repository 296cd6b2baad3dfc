//! Limits as people write them, read into integers. Negative, fractional beyond the unit, infinite or absent is refused.

use governance_context::MicroWtu;

/// The largest limit: a trillion WTU, or a quintillion tokens. Far above use, far below overflow.
const MAX: u128 = 1_000_000_000_000_000_000;
const MICRO_DIGITS: usize = 6;

/// Why a limit was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Nothing was given where a number is needed.
    #[error("a limit is empty; give a number of zero or more, or leave the limit out")]
    Empty,
    /// Below zero.
    #[error("the limit {0:?} is negative; give a number of zero or more")]
    Negative(String),
    /// Not a plain decimal number: `NaN`, `inf`, `1e400`, words.
    #[error("the limit {0:?} is not a plain decimal number such as 1500 or 2.5")]
    NotANumber(String),
    /// More decimals than the unit has.
    #[error("the limit {text:?} has more than {digits} decimals")]
    TooFine {
        /// What was given.
        text: String,
        /// How many decimals the unit has.
        digits: usize,
    },
    /// Above the largest representable limit.
    #[error("the limit {0:?} is too large")]
    TooLarge(String),
}

/// A WTU amount such as `1500` or `0.25`, exact to one micro-WTU.
pub fn parse_wtu(text: &str) -> Result<MicroWtu, AmountError> {
    parse(text, MICRO_DIGITS).map(MicroWtu)
}

/// A whole number of tokens.
pub fn parse_tokens(text: &str) -> Result<u64, AmountError> {
    parse(text, 0)
}

fn parse(text: &str, digits: usize) -> Result<u64, AmountError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(AmountError::Empty);
    }
    if let Some(rest) = trimmed.strip_prefix('-') {
        let number = rest.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        return Err(if number {
            AmountError::Negative(trimmed.to_owned())
        } else {
            AmountError::NotANumber(trimmed.to_owned())
        });
    }
    let (whole, fraction) = trimmed.split_once('.').unwrap_or((trimmed, ""));
    let plain = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(fraction) || trimmed.ends_with('.') {
        return Err(AmountError::NotANumber(trimmed.to_owned()));
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > digits {
        return Err(AmountError::TooFine {
            text: trimmed.to_owned(),
            digits,
        });
    }
    let scaled = format!("{whole}{fraction:0<digits$}");
    let significant = scaled.trim_start_matches('0');
    let value = if significant.is_empty() {
        Some(0)
    } else {
        significant.parse::<u128>().ok().filter(|v| *v <= MAX)
    };
    value
        .and_then(|v| u64::try_from(v).ok())
        .ok_or_else(|| AmountError::TooLarge(trimmed.to_owned()))
}
