//! How many files and sockets the process may have open, and how many of them clients get.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the ledger, the listeners, the operators and the metrics of engines.
const OURS: u64 = 64;

/// Raises the limit as far as the system lets us: clients that do nothing but connect soon use up
/// the customary 1,024, and then no engine can be reached.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)");
    }
}

/// How many clients may be connected, so that each of them can have a connection to an engine too.
pub(crate) fn for_clients() -> usize {
    places(getrlimit(Resource::Nofile).current)
}

fn places(limit: Option<u64>) -> usize {
    let places = limit.map_or(u64::MAX, |limit| (limit.saturating_sub(OURS) / 2).max(1));
    usize::try_from(places).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_can_have_a_connection_to_an_engine() {
        for (limit, expected) in [
            (Some(1024), 480),
            (Some(66), 1),
            (Some(10), 1),
            (None, usize::MAX),
        ] {
            assert_eq!(places(limit), expected, "{limit:?}");
        }
    }
}
