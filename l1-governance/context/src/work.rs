//! What an engine may have computed for an attempt that failed.

use std::fmt;

/// The value of the header [`names::WORK`](crate::names::WORK) on every answer of L2 that is not a success.
///
/// Ordered: more work is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Certainly nothing ran: the hold can be released, another attempt is free of charge.
    None,
    /// The prompt may have been processed, nothing was generated that anyone saw.
    Prefill,
    /// Output was or may have been generated.
    Partial,
}

impl Work {
    /// The header value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Prefill => "prefill",
            Self::Partial => "partial",
        }
    }

    /// Reads a header value. Anything unknown is `None`: the caller must then assume that work was done.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Prefill, Self::Partial]
            .into_iter()
            .find(|work| work.as_str() == text)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
