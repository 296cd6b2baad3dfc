//! The traces that come with the program.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Trace;

/// A trace by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Embedded {
    /// `mooncake_conversation`: one hour of chat traffic.
    MooncakeConversation,
    /// `mooncake_synthetic`: public data sets with Poisson arrivals.
    MooncakeSynthetic,
}

/// No trace of this name is built in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no trace named {0:?}; built in are mooncake_conversation and mooncake_synthetic")]
pub struct UnknownTrace(pub String);

impl Embedded {
    pub const ALL: [Self; 2] = [Self::MooncakeConversation, Self::MooncakeSynthetic];

    pub fn name(self) -> &'static str {
        match self {
            Self::MooncakeConversation => "mooncake_conversation",
            Self::MooncakeSynthetic => "mooncake_synthetic",
        }
    }

    /// How far its time stamps are quantised, which is what a replay jitters them by.
    pub fn jitter(self) -> Duration {
        match self {
            Self::MooncakeConversation => Duration::from_secs(3),
            Self::MooncakeSynthetic => Duration::from_millis(500),
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::MooncakeConversation => include_str!("../../traces/mooncake_conversation.tsv"),
            Self::MooncakeSynthetic => include_str!("../../traces/mooncake_synthetic.tsv"),
        }
    }

    pub fn load(self) -> Trace {
        Trace::parse(self.text()).expect("the built-in traces are checked by a test")
    }
}

impl FromStr for Embedded {
    type Err = UnknownTrace;

    fn from_str(name: &str) -> Result<Self, UnknownTrace> {
        let known = Self::ALL.into_iter().find(|trace| trace.name() == name);
        known.ok_or_else(|| UnknownTrace(name.to_owned()))
    }
}

impl fmt::Display for Embedded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
