//! How an attempt that ended is settled. A function of what happened and what was seen; the rules
//! of the ledger in one table.

use governance_context::Work;
use governance_core::ledger::{Observed, Reason, Settlement};

/// What happened to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The answer is complete.
    Complete,
    /// The engine answered with an error of this status, or put one into its stream.
    EngineError(u16),
    /// L2 says that nothing ran.
    NoWork,
    /// No connection to L2.
    NotReached,
    /// The answer broke off.
    Cut,
    /// Silence for too long.
    TimedOut,
    /// Something on our side panicked.
    Panicked,
    /// The client left; what L2 says about the attempt, if it says anything.
    ClientGone(Option<Work>),
}

/// What passed by until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Reported usage, or counted output. A report of zeros is one.
    pub(crate) observed: Option<Observed>,
    /// What a complete answer without any report is taken for.
    pub(crate) fallback: Observed,
}

pub(crate) fn settlement(end: End, seen: Seen) -> Settlement {
    let observed = seen.observed;
    let unknown = |reason| Settlement::Unknown { reason, observed };
    match (end, observed) {
        (End::Complete, observed) => Settlement::Commit(observed.unwrap_or(seen.fallback)),
        (End::NoWork, _) | (End::ClientGone(Some(Work::None)), None) => Settlement::Release {
            reason: Reason::NoWork,
        },
        (End::NotReached, _) => Settlement::Release {
            reason: Reason::ConnectFailed,
        },
        (End::EngineError(_) | End::ClientGone(_), Some(observed)) => Settlement::Commit(observed),
        (End::EngineError(status), None) if status < 500 => Settlement::Release {
            reason: Reason::EngineRefused,
        },
        (End::EngineError(_), None) => unknown(Reason::EngineFailed),
        (End::ClientGone(_), None) => unknown(Reason::CancelUnconfirmed),
        (End::Cut, _) => unknown(Reason::Cut),
        (End::TimedOut, _) => unknown(Reason::TimedOut),
        (End::Panicked, _) => unknown(Reason::Dropped),
    }
}

#[cfg(test)]
mod tests {
    use governance_context::MicroWtu;
    use governance_core::ledger::Basis;
    use governance_core::price::Tokens;

    use super::*;

    fn tokens(prompt: u64, output: u64, basis: Basis) -> Observed {
        Observed {
            usage: Tokens::from_usage(prompt, None, output),
            charge: MicroWtu(prompt + output),
            basis,
        }
    }

    #[test]
    fn every_end_has_one_settlement() {
        let fallback = tokens(9, 0, Basis::Estimated);
        let some = Some(tokens(9, 3, Basis::Measured));
        let commit = Settlement::Commit(tokens(9, 3, Basis::Measured));
        let release = |reason| Settlement::Release { reason };
        let unknown = |reason, observed| Settlement::Unknown { reason, observed };
        for (end, observed, expected) in [
            (End::Complete, some, commit),
            (End::Complete, None, Settlement::Commit(fallback)),
            (End::EngineError(500), some, commit),
            (
                End::EngineError(500),
                None,
                unknown(Reason::EngineFailed, None),
            ),
            (End::EngineError(400), None, release(Reason::EngineRefused)),
            (End::NoWork, None, release(Reason::NoWork)),
            (End::NotReached, None, release(Reason::ConnectFailed)),
            (End::Cut, None, unknown(Reason::Cut, None)),
            (End::Cut, some, unknown(Reason::Cut, some)),
            (End::TimedOut, some, unknown(Reason::TimedOut, some)),
            (End::Panicked, None, unknown(Reason::Dropped, None)),
            (End::ClientGone(None), some, commit),
            (End::ClientGone(Some(Work::None)), some, commit),
            (
                End::ClientGone(Some(Work::None)),
                None,
                release(Reason::NoWork),
            ),
            (
                End::ClientGone(Some(Work::Prefill)),
                None,
                unknown(Reason::CancelUnconfirmed, None),
            ),
            (
                End::ClientGone(None),
                None,
                unknown(Reason::CancelUnconfirmed, None),
            ),
        ] {
            let seen = Seen { observed, fallback };
            assert_eq!(settlement(end, seen), expected, "{end:?} {observed:?}");
        }
    }

    #[test]
    fn a_report_of_zeros_is_a_value_and_not_missing() {
        let zeros = tokens(0, 0, Basis::Measured);
        let seen = Seen {
            observed: Some(zeros),
            fallback: tokens(9, 0, Basis::Estimated),
        };
        assert_eq!(
            settlement(End::ClientGone(None), seen),
            Settlement::Commit(zeros)
        );
        assert_eq!(settlement(End::Complete, seen), Settlement::Commit(zeros));
    }
}
