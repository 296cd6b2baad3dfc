//! Windows are functions of (policy, instant). No job resets anything.
//!
//! Calendar arithmetic is on the proleptic Gregorian calendar after Howard Hinnant's `days_from_civil`.

use super::UnixMs;

const DAY_MS: i64 = 86_400_000;
const MAX_PERIOD_MS: u64 = 10 * 366 * 86_400_000;
const MAX_MONTHS: u32 = 120;

/// From `start` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First instant.
    pub start: UnixMs,
    /// First instant of the next window; [`UnixMs::FOREVER`] for a balance.
    pub end: UnixMs,
}

/// The unit of a calendar window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// Midnight to midnight.
    Day,
    /// Monday to Sunday.
    Week,
    /// The first to the last of a month.
    Month,
}

/// When a limit starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Window {
    /// Equal periods counted from `origin`.
    Rolling {
        /// The start of one of the periods.
        origin: UnixMs,
        /// The length of each, at least one second.
        period_ms: u64,
    },
    /// Days, weeks or months at a fixed distance from UTC.
    Calendar {
        /// Minutes east of UTC.
        offset_minutes: i16,
        /// How long.
        unit: CalendarUnit,
    },
    /// Every `months` months on the day and time of `at`, in UTC. The 31st becomes the last day of a shorter
    /// month and comes back in the next long one.
    Anchor {
        /// One of the boundaries.
        at: UnixMs,
        /// How many months apart.
        months: u32,
    },
    /// Never: one window for ever.
    Balance,
}

/// Why a window is not one the mode can keep exactly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Not a mode.
    #[error("{0:?} is not a window mode: rolling, calendar, anchor or balance")]
    Mode(String),
    /// Not a duration.
    #[error("{0:?} is not a period: a whole number and one of s, m, h, d, w, mo")]
    Period(String),
    /// The mode has no exact window of that length.
    #[error("{mode} windows cannot last {period:?} exactly: use {instead}")]
    Inexact {
        /// The mode.
        mode: &'static str,
        /// The period asked for.
        period: String,
        /// What the mode can do; it follows "use".
        instead: &'static str,
    },
    /// Not a fixed offset.
    #[error(
        "{0:?} is not a zone: UTC or a fixed offset such as +02:00 (zone names with daylight saving are not supported)"
    )]
    Zone(String),
    /// The mode needs an instant to count from.
    #[error("{0} windows need an anchor instant to count from")]
    NoAnchor(&'static str),
}

impl Window {
    /// Reads a window from its four parts; `zone` may be empty for UTC, `period` is empty for a balance.
    pub fn parse(
        mode: &str,
        period: &str,
        zone: &str,
        anchor: Option<UnixMs>,
    ) -> Result<Window, WindowError> {
        match mode {
            "rolling" => Ok(Window::Rolling {
                origin: anchor.ok_or(WindowError::NoAnchor("rolling"))?,
                period_ms: rolling_period(period)?,
            }),
            "calendar" => Ok(Window::Calendar {
                offset_minutes: offset(zone)?,
                unit: calendar_unit(period)?,
            }),
            "anchor" => Ok(Window::Anchor {
                at: anchor.ok_or(WindowError::NoAnchor("anchor"))?,
                months: anchor_months(period)?,
            }),
            "balance" if period.is_empty() => Ok(Window::Balance),
            "balance" => Err(WindowError::Inexact {
                mode: "balance",
                period: period.to_owned(),
                instead: "no period: a balance never starts over",
            }),
            other => Err(WindowError::Mode(other.to_owned())),
        }
    }

    /// The mode, as [`Window::parse`] reads it.
    pub fn mode(&self) -> &'static str {
        match self {
            Window::Rolling { .. } => "rolling",
            Window::Calendar { .. } => "calendar",
            Window::Anchor { .. } => "anchor",
            Window::Balance => "balance",
        }
    }

    /// The period, as [`Window::parse`] reads it.
    pub fn period(&self) -> String {
        match self {
            Window::Rolling { period_ms, .. } => format!("{}s", period_ms / 1000),
            Window::Calendar { unit, .. } => match unit {
                CalendarUnit::Day => "1d".to_owned(),
                CalendarUnit::Week => "1w".to_owned(),
                CalendarUnit::Month => "1mo".to_owned(),
            },
            Window::Anchor { months, .. } => format!("{months}mo"),
            Window::Balance => String::new(),
        }
    }

    /// The zone, as [`Window::parse`] reads it.
    pub fn zone(&self) -> String {
        match self {
            Window::Calendar {
                offset_minutes: 0, ..
            }
            | Window::Rolling { .. }
            | Window::Anchor { .. }
            | Window::Balance => "UTC".to_owned(),
            Window::Calendar { offset_minutes, .. } => {
                let sign = if *offset_minutes < 0 { '-' } else { '+' };
                let minutes = offset_minutes.unsigned_abs();
                format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }

    /// The instant it counts from, if it has one.
    pub fn anchor(&self) -> Option<UnixMs> {
        match self {
            Window::Rolling { origin, .. } => Some(*origin),
            Window::Anchor { at, .. } => Some(*at),
            Window::Calendar { .. } | Window::Balance => None,
        }
    }

    /// The window an instant lies in.
    pub fn span(&self, now: UnixMs) -> Span {
        let t = i64::try_from(now.0).unwrap_or(i64::MAX / 2);
        match *self {
            Window::Balance => Span {
                start: UnixMs(0),
                end: UnixMs::FOREVER,
            },
            Window::Rolling { origin, period_ms } => {
                let first = origin.0 % period_ms.max(1);
                let start = if now.0 < first {
                    0
                } else {
                    now.0 - (now.0 - first) % period_ms.max(1)
                };
                let end = if now.0 < first {
                    first
                } else {
                    start.saturating_add(period_ms)
                };
                Span {
                    start: UnixMs(start),
                    end: UnixMs(end),
                }
            }
            Window::Calendar {
                offset_minutes,
                unit,
            } => {
                let shift = i64::from(offset_minutes) * 60_000;
                let (first, next) = calendar_days((t + shift).div_euclid(DAY_MS), unit);
                span(first * DAY_MS - shift, next * DAY_MS - shift)
            }
            Window::Anchor { at, months } => anchor_span(
                t,
                i64::try_from(at.0).unwrap_or(0),
                i64::from(months.max(1)),
            ),
        }
    }
}

fn span(start: i64, end: i64) -> Span {
    let clamp = |t: i64| UnixMs(u64::try_from(t).unwrap_or(0));
    Span {
        start: clamp(start),
        end: clamp(end),
    }
}

fn calendar_days(day: i64, unit: CalendarUnit) -> (i64, i64) {
    match unit {
        CalendarUnit::Day => (day, day + 1),
        CalendarUnit::Week => {
            // Day 0, 1970-01-01, was a Thursday.
            let monday = day - (day + 3).rem_euclid(7);
            (monday, monday + 7)
        }
        CalendarUnit::Month => {
            let (month, _) = civil(day);
            (days(month, 1), days(month + 1, 1))
        }
    }
}

fn anchor_span(t: i64, at: i64, months: i64) -> Span {
    let (first, day) = civil(at.div_euclid(DAY_MS));
    let time = at.rem_euclid(DAY_MS);
    let boundary = |k: i64| {
        let month = first + k * months;
        let last = days(month + 1, 1) - days(month, 1);
        days(month, day.min(last)) * DAY_MS + time
    };
    let (month, _) = civil(t.div_euclid(DAY_MS));
    let mut k = (month - first).div_euclid(months);
    if boundary(k) > t {
        k -= 1;
    }
    span(boundary(k), boundary(k + 1))
}

/// (months since year 0, day of month from 1) of a day since the epoch.
fn civil(day: i64) -> (i64, i64) {
    let z = day + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    (year * 12 + month - 1, day)
}

/// Days since the epoch of a day of a month, the month counted since year 0.
fn days(month: i64, day: i64) -> i64 {
    let m = month.rem_euclid(12) + 1;
    let y = month.div_euclid(12) - i64::from(m <= 2);
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = if m > 2 { m - 3 } else { m + 9 };
    let doy = (153 * mp + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468
}

fn split_period(text: &str) -> Result<(u64, &str), WindowError> {
    let refuse = || WindowError::Period(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().map_err(|_| refuse())?;
    if count == 0 || !matches!(unit, "s" | "m" | "h" | "d" | "w" | "mo") {
        return Err(refuse());
    }
    Ok((count, unit))
}

fn rolling_period(text: &str) -> Result<u64, WindowError> {
    let (count, unit) = split_period(text)?;
    let ms: u64 = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => {
            return Err(WindowError::Inexact {
                mode: "rolling",
                period: text.to_owned(),
                instead: "days, or an anchor window: months differ in length",
            });
        }
    };
    count
        .checked_mul(ms)
        .filter(|ms| *ms <= MAX_PERIOD_MS)
        .ok_or_else(|| WindowError::Period(text.to_owned()))
}

fn calendar_unit(text: &str) -> Result<CalendarUnit, WindowError> {
    match text {
        "1d" => Ok(CalendarUnit::Day),
        "1w" => Ok(CalendarUnit::Week),
        "1mo" => Ok(CalendarUnit::Month),
        other => {
            split_period(other)?;
            Err(WindowError::Inexact {
                mode: "calendar",
                period: other.to_owned(),
                instead: "1d, 1w or 1mo, or a rolling or anchor window for other lengths",
            })
        }
    }
}

fn anchor_months(text: &str) -> Result<u32, WindowError> {
    let (count, unit) = split_period(text)?;
    match u32::try_from(count) {
        Ok(months) if unit == "mo" && months <= MAX_MONTHS => Ok(months),
        _ => Err(WindowError::Inexact {
            mode: "anchor",
            period: text.to_owned(),
            instead: "1mo to 120mo, or a rolling window for hours, days and weeks",
        }),
    }
}

fn offset(zone: &str) -> Result<i16, WindowError> {
    let refuse = || WindowError::Zone(zone.to_owned());
    if zone.is_empty() || zone == "UTC" || zone == "Z" {
        return Ok(0);
    }
    let (sign, rest) = match zone.split_at_checked(1) {
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        _ => return Err(refuse()),
    };
    let (hours, minutes) = rest.split_once(':').ok_or_else(refuse)?;
    let number = |text: &str, max: i16| {
        let two = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        two.then(|| text.parse().ok())
            .flatten()
            .filter(|n: &i16| *n <= max)
    };
    let hours = number(hours, 14).ok_or_else(refuse)?;
    let minutes = number(minutes, 59).ok_or_else(refuse)?;
    Ok(sign * (hours * 60 + minutes))
}
