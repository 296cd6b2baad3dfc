//! How long a request may wait for its turn, and who says so. Decides nothing: the pool does the same sum.

use std::time::Duration;

use scheduler_core::Timestamp;
use serde::Serialize;

/// The limit that comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct WaitLimit {
    pub(crate) by: LimitedBy,
    #[serde(rename = "ms", serialize_with = "millis")]
    pub(crate) time: Duration,
}

/// Whose time to live it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitedBy {
    /// The band's, from the moment a turn was asked for.
    Band,
    /// The request's own, from its arrival: L1 takes it from an objective, an account or its `timeouts.queue`.
    Request,
}

impl WaitLimit {
    pub(crate) fn first_of(
        band: Duration,
        own: Duration,
        arrived: Timestamp,
        asked: Timestamp,
    ) -> Self {
        if asked + band <= arrived + own {
            Self {
                by: LimitedBy::Band,
                time: band,
            }
        } else {
            Self {
                by: LimitedBy::Request,
                time: own,
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
            (2, 60, 0, LimitedBy::Band, 2),
            (30, 5, 0, LimitedBy::Request, 5),
            (5, 5, 0, LimitedBy::Band, 5),
            // A second attempt: the band's time begins anew, its own does not.
            (4, 5, 3, LimitedBy::Request, 5),
        ] {
            let limit = WaitLimit::first_of(seconds(band), seconds(own), at(0), at(asked));
            assert_eq!((limit.by, limit.time), (by, seconds(time)));
        }
    }
}
