//! Guaranteed shares between bands: who was promised part of all work and has not had it.

/// The account of one band, in micro-WTU: grows with all work by the promised share, shrinks with the band's own.
#[derive(Debug, Default)]
pub(crate) struct Share {
    credit: i64,
}

/// A band that could not use its share for long does not save it up: at most this many micro-WTU.
const MOST: i64 = 1_000_000_000_000;

impl Share {
    /// Work of `cost` went to some band while this one had something waiting.
    pub(crate) fn earn(&mut self, cost: u64, share: f64) {
        let earned = (cost as f64 * share) as i64;
        self.credit = self.credit.saturating_add(earned).min(MOST);
    }

    /// Work of the band itself. What it got beyond its share is not held against it later.
    pub(crate) fn spend(&mut self, cost: u64) {
        self.credit = self
            .credit
            .saturating_sub(i64::try_from(cost).unwrap_or(i64::MAX))
            .max(0);
    }

    /// Nothing of it waits: it wants nothing.
    pub(crate) fn forget(&mut self) {
        self.credit = 0;
    }

    /// Whether it may go before higher bands with work of `cost`.
    pub(crate) fn covers(&self, cost: u64) -> bool {
        // Nobody can save up for more than the most.
        self.credit >= i64::try_from(cost).unwrap_or(MOST).min(MOST)
    }
}
