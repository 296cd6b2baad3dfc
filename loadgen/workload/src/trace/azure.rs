//! The form of the Azure LLM inference traces: a CSV of dates and lengths, without blocks.

use std::time::Duration;

use super::problem::{Problem, number, tokens};
use super::{Blocks, Line};

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const DAY_S: u64 = 86_400;

/// Whether a line is the first of such a file; some have a mark of their encoding before it.
pub(super) fn is_header(line: &str) -> bool {
    line.trim_start_matches('\u{feff}').trim_end() == HEADER
}

#[derive(Default)]
pub(super) struct Reader {
    /// The first date: since the start of the year 0.
    origin: Option<Duration>,
}

impl Reader {
    pub(super) fn origin(&self) -> Duration {
        self.origin.unwrap_or_default()
    }

    pub(super) fn read(&mut self, line: &str) -> Result<Option<Line>, Problem> {
        if is_header(line) {
            return Ok(None);
        }
        let columns: Vec<&str> = line.trim_end().split(',').collect();
        let [at, input, output] = columns[..] else {
            return Err(Problem::Columns {
                found: columns.len(),
                expected: "3 (TIMESTAMP, ContextTokens, GeneratedTokens, separated by commas)",
            });
        };
        let at = date(at).ok_or_else(|| Problem::Date(at.to_owned()))?;
        self.origin.get_or_insert(at);
        Ok(Some(Line {
            at,
            input_tokens: tokens("ContextTokens", input)?,
            output_tokens: tokens("GeneratedTokens", output)?,
            blocks: Blocks::Own,
        }))
    }
}

/// `2023-11-16 18:15:46.6805900`, with or without a fraction of up to nine digits and a zone of `+00:00`.
fn date(text: &str) -> Option<Duration> {
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let (day, time) = text.split_once(' ')?;
    let mut parts = day.split('-');
    let (year, month, day) = (
        digits(parts.next()?, 4, 9_999)?,
        digits(parts.next()?, 2, 12)?,
        digits(parts.next()?, 2, 31)?,
    );
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = clock.split(':');
    let (hour, minute, second) = (
        digits(clock.next()?, 2, 23)?,
        digits(clock.next()?, 2, 59)?,
        digits(clock.next()?, 2, 59)?,
    );
    let is_over = parts.next().is_some() || clock.next().is_some();
    if is_over || month == 0 || day == 0 || day > days_in(year, month) || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let nanoseconds = digits(fraction, fraction.len(), 999_999_999)? * scale;
    let seconds = days(year, month, day) * DAY_S + hour * 3_600 + minute * 60 + second;
    Some(Duration::new(seconds, u32::try_from(nanoseconds).ok()?))
}

fn digits(text: &str, count: usize, most: u64) -> Option<u64> {
    let value = number("", text, most).ok()?;
    (text.len() == count).then_some(value)
}

/// Days before a date of the Gregorian calendar, from the start of the year 0.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let leap_days = match year.checked_sub(1) {
        Some(before) => before / 4 - before / 100 + before / 400 + 1,
        None => 0,
    };
    let months: u64 = (1..month).map(|month| days_in(year, month)).sum();
    year * 365 + leap_days + months + day - 1
}

fn days_in(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
