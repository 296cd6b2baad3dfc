//! Start-time fair queueing between the flows of a band (Goyal, Vin and Cheng 1996), in whole micro-WTU per unit of weight.
//!
//! A flow's tag `v` is the work it has had per weight. While there is enough for all only deadlines count. Under overload
//! flows are ordered by how many quanta they are ahead of the band's virtual time; inside a quantum deadlines decide.

use crate::Timestamp;

/// Work per unit of weight.
pub(crate) type Tag = u64;

/// Under overload the order counts quanta from this long after the last doomed request on.
const OVERLOAD_NANOS: u64 = 5_000_000_000;

/// What puts the flows of a band into order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranking {
    /// There is enough for all: deadlines alone.
    Deadline,
    /// Whole quanta ahead of `base`, then deadlines.
    Lag { base: Tag, quantum: Tag },
    /// Tags alone.
    Strict,
}

impl Ranking {
    /// Smaller goes first.
    pub(crate) fn rank(self, tag: Tag) -> u64 {
        match self {
            Self::Deadline => 0,
            Self::Lag { base, quantum } => tag.saturating_sub(base) / quantum.max(1),
            Self::Strict => tag,
        }
    }
}

/// The virtual time of one band.
#[derive(Debug)]
pub(crate) struct VirtualTime {
    pub(crate) now: Tag,
    pub(crate) ranking: Ranking,
    overloaded_until: Option<Timestamp>,
}

/// The part of a quantum that virtual time may move before flows are ranked anew.
const REBASE_PARTS: u64 = 8;

impl VirtualTime {
    pub(crate) fn new(strict: bool) -> Self {
        Self {
            now: 0,
            ranking: if strict {
                Ranking::Strict
            } else {
                Ranking::Deadline
            },
            overloaded_until: None,
        }
    }

    /// Another order from here on.
    pub(crate) fn order(&mut self, strict: bool) {
        if strict {
            self.ranking = Ranking::Strict;
        } else if self.ranking == Ranking::Strict {
            self.ranking = Ranking::Deadline;
        }
    }

    pub(crate) fn is_overloaded(&self) -> bool {
        self.overloaded_until.is_some()
    }

    /// A request can no longer be served in time. True on entering overload: then nobody owes anybody anything.
    pub(crate) fn doomed(&mut self, at: Timestamp) -> bool {
        let entered = self.overloaded_until.is_none();
        self.overloaded_until = Some(Timestamp(at.0.saturating_add(OVERLOAD_NANOS)));
        entered
    }

    /// The least tag of a flow with a queue is `least`; `quantum` is what a quantum should be now. True when all flows
    /// have to be ranked anew.
    pub(crate) fn advance(&mut self, at: Timestamp, least: Option<Tag>, quantum: Tag) -> bool {
        self.now = self.now.max(least.unwrap_or(0));
        if self.overloaded_until.is_some_and(|until| until <= at) {
            self.overloaded_until = None;
        }
        if self.ranking == Ranking::Strict {
            return false;
        }
        let wanted = match (self.overloaded_until, self.ranking) {
            (None, _) => Ranking::Deadline,
            (Some(_), Ranking::Lag { base, quantum: old }) => {
                let moved = self.now.saturating_sub(base) > old / REBASE_PARTS;
                let is_other = quantum > old.saturating_mul(3) / 2 || quantum < old / 3 * 2;
                if moved || is_other {
                    Ranking::Lag {
                        base: self.now,
                        quantum,
                    }
                } else {
                    self.ranking
                }
            }
            (Some(_), Ranking::Deadline | Ranking::Strict) => Ranking::Lag {
                base: self.now,
                quantum,
            },
        };
        std::mem::replace(&mut self.ranking, wanted) != wanted
    }
}
