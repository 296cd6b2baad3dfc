//! A token is good for one attempt.

use std::collections::{HashSet, VecDeque};

use crate::ids::AttemptId;
use crate::refusal::Refusal;
use crate::token::{LIFETIME_S, SKEW_S};

/// The longest a token can be valid after it was first seen: it may come early and stay late by the skew.
const REMEMBERED_S: u64 = LIFETIME_S + 2 * SKEW_S;

/// The attempts whose tokens are still valid. Call it after [`Verifier::verify`](crate::Verifier::verify).
///
/// An attempt is remembered until its token has expired, whether it is still running or not, so nobody has to report
/// its end. Bounded: when full, the oldest attempt is forgotten early and counted; its token is then still bound to
/// its body and its few seconds.
#[derive(Debug)]
pub struct ReplayGuard {
    known: HashSet<AttemptId>,
    /// In the order of entering, with the second after which each is forgotten.
    order: VecDeque<(u64, AttemptId)>,
    capacity: usize,
    forgotten_early: u64,
}

impl ReplayGuard {
    /// A guard that remembers at most this many attempts; at least one.
    ///
    /// Requests per second × 40 s are needed to remember all of them.
    pub fn new(capacity: usize) -> Self {
        Self {
            known: HashSet::new(),
            order: VecDeque::new(),
            capacity: capacity.max(1),
            forgotten_early: 0,
        }
    }

    /// Takes an attempt in, unless it is known.
    pub fn enter(&mut self, attempt: AttemptId, now_unix_s: u64) -> Result<(), Refusal> {
        while self
            .order
            .front()
            .is_some_and(|(until, _)| *until < now_unix_s)
        {
            self.forget_oldest();
        }
        if self.known.contains(&attempt) {
            return Err(Refusal::Replayed);
        }
        if self.order.len() == self.capacity {
            self.forget_oldest();
            self.forgotten_early += 1;
        }
        self.known.insert(attempt);
        self.order
            .push_back((now_unix_s.saturating_add(REMEMBERED_S), attempt));
        Ok(())
    }

    /// How many attempts were forgotten before their tokens expired because the guard was full.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }

    /// How many attempts are remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no attempt is remembered.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn forget_oldest(&mut self) {
        if let Some((_, attempt)) = self.order.pop_front() {
            self.known.remove(&attempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(n: u8) -> AttemptId {
        AttemptId::new(1_700_000_000_000, [n; 10])
    }

    #[test]
    fn an_attempt_enters_once_until_its_token_has_expired() {
        let mut guard = ReplayGuard::new(10);
        assert_eq!(guard.enter(attempt(1), 100), Ok(()));
        assert_eq!(guard.enter(attempt(2), 100), Ok(()));
        for now in [100, 101, 130, 140] {
            assert_eq!(
                guard.enter(attempt(1), now),
                Err(Refusal::Replayed),
                "at {now}"
            );
        }
        assert_eq!(guard.enter(attempt(1), 141), Ok(()));
        assert_eq!(guard.len(), 1, "expired attempts are forgotten");
    }

    #[test]
    fn a_full_guard_forgets_the_oldest_and_counts_it() {
        let mut guard = ReplayGuard::new(2);
        for n in 1..=3 {
            assert_eq!(guard.enter(attempt(n), 100), Ok(()));
        }
        assert_eq!((guard.len(), guard.forgotten_early()), (2, 1));
        assert_eq!(guard.enter(attempt(3), 100), Err(Refusal::Replayed));
        assert_eq!(guard.enter(attempt(2), 100), Err(Refusal::Replayed));
        assert_eq!(guard.enter(attempt(1), 100), Ok(()));
    }

    #[test]
    fn a_clock_that_steps_back_does_not_open_a_gap() {
        let mut guard = ReplayGuard::new(10);
        guard.enter(attempt(1), 100).unwrap();
        guard.enter(attempt(2), 50).unwrap();
        assert_eq!(guard.enter(attempt(1), 60), Err(Refusal::Replayed));
        assert_eq!(guard.enter(attempt(2), 60), Err(Refusal::Replayed));
    }
}
