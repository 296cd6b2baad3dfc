//! Tier A: request rates (GCRA) and concurrency, several limits of several accounts judged together.
//!
//! One call judges all limits of a request and counts all of them or none, so a refusal by the third of five
//! leaves nothing behind and nobody can see a count that is taken back.

use rustc_hash::FxHashMap;

use crate::account::AccountId;

#[cfg(test)]
mod tests;

/// Nanoseconds on a clock that only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

/// A rate: `count` per `period`, at most `burst` at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    period_ns: u64,
    burst: u32,
}

/// Why a limit is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A limit of zero would be a closed door with a misleading message.
    #[error("a limit of 0 admits nobody; end the account or the key instead")]
    Zero,
    /// More than one per nanosecond or a period over a year.
    #[error("the rate is not between one per year and one per nanosecond")]
    OutOfRange,
}

impl Rate {
    /// `count` per `period_ns`, with a burst of `burst`.
    pub fn new(count: u32, period_ns: u64, burst: u32) -> Result<Rate, LimitError> {
        if count == 0 || burst == 0 {
            return Err(LimitError::Zero);
        }
        if period_ns / u64::from(count) == 0 || period_ns > 366 * 86_400 * 1_000_000_000 {
            return Err(LimitError::OutOfRange);
        }
        Ok(Rate {
            count,
            period_ns,
            burst,
        })
    }

    /// `count` per minute, all of which may come at once.
    pub fn per_minute(count: u32) -> Result<Rate, LimitError> {
        Rate::new(count, 60_000_000_000, count)
    }

    /// Nanoseconds between two requests at this rate, rounded up: the limit is never exceeded by rounding.
    fn interval(&self) -> u64 {
        self.period_ns.div_ceil(u64::from(self.count))
    }

    /// How long `cost` requests occupy. A multiple of the interval, so that exactly `burst` fit at once.
    fn span(&self, cost: u32) -> u64 {
        self.interval().saturating_mul(u64::from(cost))
    }
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Requests per time.
    Rate(Rate),
    /// Requests at once.
    Concurrency(u32),
}

/// One limit of one account. An account may have several, of different [`Rule`]s.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Whose.
    pub account: AccountId,
    /// What.
    pub rule: Rule,
}

/// Where an account stands against one limit, for `x-ratelimit-*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Burst, or the most at once.
    pub limit: u32,
    /// How many more would be admitted at this instant.
    pub remaining: u32,
    /// Nanoseconds until all of `limit` is there again; 0 for concurrency.
    pub reset_ns: u64,
}

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A limit is reached. `retry_after_ns` is when *this* request fits every rate, if time alone helps.
    Limit {
        /// The limit that keeps it out longest.
        limit: Limit,
        /// Where it stands.
        standing: Standing,
        /// Nanoseconds to wait; `None` when it depends on others finishing, or never fits.
        retry_after_ns: Option<u64>,
    },
    /// Too many distinct limits are in use; nothing is evicted that still counts.
    TableFull,
}

/// Proof of admission. Its concurrency is given back by [`Table::release`], once.
#[derive(Debug)]
#[must_use = "concurrency that is not released stays taken"]
pub struct Admitted {
    taken: Vec<Limit>,
}

/// How long a request waits for a limit. The order says which limit is told: the one that takes longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    /// It fits.
    None,
    /// It fits after so many nanoseconds.
    For(u64),
    /// Until others finish, or for ever: time alone does not help.
    ForOthers,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Theoretical arrival time of GCRA: when the bucket is full again.
    Rate {
        full_at: Nanos,
    },
    Concurrency {
        running: u32,
    },
}

impl State {
    fn idle(self, now: Nanos) -> bool {
        match self {
            State::Rate { full_at } => full_at <= now,
            State::Concurrency { running } => running == 0,
        }
    }
}

/// The counters of all limits in use; an idle one is the same as none and is evicted when room is needed.
#[derive(Debug)]
pub struct Table {
    states: FxHashMap<Limit, State>,
    capacity: usize,
    now: Nanos,
    /// No idle entry is expected before this instant unless something is released.
    barren_until: Nanos,
}

impl Table {
    /// A table of at most `capacity` limits in use.
    pub fn new(capacity: usize) -> Table {
        Table {
            states: FxHashMap::default(),
            capacity,
            now: Nanos(0),
            barren_until: Nanos(0),
        }
    }

    /// Admits one request that weighs `cost` against every limit, or against none.
    pub fn admit(&mut self, now: Nanos, limits: &[Limit], cost: u32) -> Result<Admitted, Refused> {
        self.now = self.now.max(now);
        let now = self.now;
        if let Some(refused) = self.tightest_refusal(now, limits, cost) {
            return Err(refused);
        }
        self.make_room(limits)?;
        for limit in limits {
            self.count(now, limit, cost);
        }
        let concurrent = |limit: &&Limit| matches!(limit.rule, Rule::Concurrency(_));
        Ok(Admitted {
            taken: limits.iter().filter(concurrent).cloned().collect(),
        })
    }

    /// Gives back the concurrency of a request that ended.
    pub fn release(&mut self, admitted: Admitted) {
        for limit in admitted.taken {
            if let Some(State::Concurrency { running }) = self.states.get_mut(&limit) {
                *running = running.saturating_sub(1);
                if *running == 0 {
                    self.states.remove(&limit);
                }
            }
        }
    }

    /// Where an account stands against a limit.
    pub fn standing(&self, now: Nanos, limit: &Limit) -> Standing {
        let now = now.max(self.now);
        match (limit.rule, self.states.get(limit)) {
            (Rule::Rate(rate), state) => {
                let full_at = match state {
                    Some(State::Rate { full_at }) => full_at.0,
                    _ => 0,
                };
                let busy = full_at.saturating_sub(now.0);
                let free = rate.span(rate.burst).saturating_sub(busy);
                Standing {
                    limit: rate.burst,
                    remaining: u32::try_from(free / rate.interval())
                        .unwrap_or(u32::MAX)
                        .min(rate.burst),
                    reset_ns: busy,
                }
            }
            (Rule::Concurrency(most), state) => {
                let running = match state {
                    Some(State::Concurrency { running }) => *running,
                    _ => 0,
                };
                Standing {
                    limit: most,
                    remaining: most.saturating_sub(running),
                    reset_ns: 0,
                }
            }
        }
    }

    /// How many limits are counted.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    fn tightest_refusal(&self, now: Nanos, limits: &[Limit], cost: u32) -> Option<Refused> {
        let waits = limits
            .iter()
            .map(|limit| (limit, self.wait(now, limit, cost)));
        let (limit, wait) = waits.max_by_key(|(_, wait)| *wait)?;
        let retry_after_ns = match wait {
            Wait::None => return None,
            Wait::For(ns) => Some(ns),
            Wait::ForOthers => None,
        };
        Some(Refused::Limit {
            limit: limit.clone(),
            standing: self.standing(now, limit),
            retry_after_ns,
        })
    }

    fn wait(&self, now: Nanos, limit: &Limit, cost: u32) -> Wait {
        let state = self.states.get(limit);
        match limit.rule {
            Rule::Concurrency(most) => match state {
                Some(State::Concurrency { running }) if *running >= most => Wait::ForOthers,
                _ if most == 0 => Wait::ForOthers,
                _ => Wait::None,
            },
            Rule::Rate(rate) if cost > rate.burst => Wait::ForOthers,
            Rule::Rate(rate) => {
                let full_at = match state {
                    Some(State::Rate { full_at }) => (*full_at).max(now),
                    _ => now,
                };
                let then = full_at.0.saturating_add(rate.span(cost));
                let allowed = now.0.saturating_add(rate.span(rate.burst));
                if then > allowed {
                    Wait::For(then - allowed)
                } else {
                    Wait::None
                }
            }
        }
    }

    fn count(&mut self, now: Nanos, limit: &Limit, cost: u32) {
        let fresh = match limit.rule {
            Rule::Rate(_) => State::Rate { full_at: now },
            Rule::Concurrency(_) => State::Concurrency { running: 0 },
        };
        let state = self.states.entry(limit.clone()).or_insert(fresh);
        match (state, limit.rule) {
            (State::Rate { full_at }, Rule::Rate(rate)) => {
                *full_at = Nanos((*full_at).max(now).0.saturating_add(rate.span(cost)));
                self.barren_until = self.barren_until.min(*full_at);
            }
            (State::Concurrency { running }, _) => *running += 1,
            (State::Rate { .. }, Rule::Concurrency(_)) => {}
        }
    }

    fn make_room(&mut self, limits: &[Limit]) -> Result<(), Refused> {
        let missing = limits
            .iter()
            .filter(|limit| !self.states.contains_key(limit))
            .count();
        if self.states.len() + missing <= self.capacity {
            return Ok(());
        }
        if self.now >= self.barren_until {
            let now = self.now;
            let mut next = Nanos(u64::MAX);
            self.states.retain(|_, state| {
                if let State::Rate { full_at } = state {
                    next = next.min((*full_at).max(Nanos(now.0 + 1)));
                }
                !state.idle(now)
            });
            self.barren_until = next;
        }
        let still = limits
            .iter()
            .filter(|limit| !self.states.contains_key(limit))
            .count();
        if self.states.len() + still <= self.capacity {
            Ok(())
        } else {
            Err(Refused::TableFull)
        }
    }
}
