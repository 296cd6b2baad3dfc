//! Who pays: accounts, the path a request draws on, and the policies that limit them. Nothing here counts.

mod amount;
mod id;
mod policy;
mod window;

#[cfg(test)]
mod tests;

pub use amount::{AmountError, parse_tokens, parse_wtu};
pub use id::{AccountId, AccountIdError, AccountPath, Kind};
pub use policy::{Boost, Carry, Limit, PolicyError, PolicyName, PolicySpec, Tier, Unit};
pub use window::{CalendarUnit, Span, Window, WindowError};

/// Milliseconds since the Unix epoch, as an argument and never read from a clock here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// The end of a window that never ends. The largest value a signed database integer holds.
    pub const FOREVER: UnixMs = UnixMs(i64::MAX as u64);

    /// `self + ms`, at most [`UnixMs::FOREVER`].
    #[must_use]
    pub fn plus(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms).min(Self::FOREVER.0))
    }

    /// Milliseconds from `earlier` to `self`, zero when `earlier` is later.
    pub fn since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
