//! How long a request may wait for its turn, and who says so. Decides nothing: the pool does the same sum.

use std::time::Duration;

use governance_context::TtlSource;
use scheduler_core::Timestamp;
use serde::Serialize;

/// The limit that comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct WaitLimit {
    pub(crate) by: LimitedBy,
    #[serde(rename = "ms", serialize_with = "millis")]
    pub(crate) time: Duration,
}

/// The request's own limit, from its arrival, and where L1 took it from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnLimit {
    pub(crate) time: Duration,
    pub(crate) by: TtlSource,
}

/// Whose time to live it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitedBy {
    /// The band's, from the moment a turn was asked for.
    Band,
    /// The request's own.
    Own(TtlSource),
}

impl LimitedBy {
    /// The word in records.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Band => "band",
            Self::Own(TtlSource::Gateway) => "timeouts.queue",
            Self::Own(TtlSource::Objective) => "objective",
            Self::Own(TtlSource::Tenant) => "tenant",
            Self::Own(TtlSource::Project) => "project",
            Self::Own(TtlSource::Key) => "key",
            Self::Own(TtlSource::Unsaid) => "request",
        }
    }
}

impl Serialize for LimitedBy {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl WaitLimit {
    pub(crate) fn first_of(
        band: Duration,
        own: OwnLimit,
        arrived: Timestamp,
        asked: Timestamp,
    ) -> Self {
        if asked + band <= arrived + own.time {
            Self {
                by: LimitedBy::Band,
                time: band,
            }
        } else {
            Self {
                by: LimitedBy::Own(own.by),
                time: own.time,
            }
        }
    }
}

fn millis<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_comes_first_is_named() {
        let seconds = Duration::from_secs;
        let at = |time: u64| Timestamp::default() + seconds(time);
        for (band, own, asked, by, time) in [
            (2, 60, 0, "band", 2),
            (30, 5, 0, "timeouts.queue", 5),
            (5, 5, 0, "band", 5),
            // A second attempt: the band's time begins anew, its own does not.
            (4, 5, 3, "timeouts.queue", 5),
        ] {
            let own = OwnLimit {
                time: seconds(own),
                by: TtlSource::Gateway,
            };
            let limit = WaitLimit::first_of(seconds(band), own, at(0), at(asked));
            assert_eq!((limit.by.as_str(), limit.time), (by, seconds(time)));
        }
    }
}
