//! Names of other schedulers as small numbers, with the time of the newest vector of each.

use scheduler_core::PeerId;

use super::message::Unbelieved;
use crate::config::MOST_PEERS;

/// Whoever has been silent for so long is gone; another takes its number.
const GONE_MS: u64 = 10_000;

/// Who has been heard.
///
/// It bounds names, which only the shell knows, and answers whoever is one too many. The pool bounds the numbers that it
/// is fed once more: it trusts no shell, and the simulation feeds it without one. What is read before this, a body of a
/// stated length whose signature is right, is bounded in [`Peers::hear`](super::Peers::hear).
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The place is the number.
    peers: Vec<Peer>,
}

#[derive(Debug)]
struct Peer {
    replica: String,
    newest_ms: u64,
}

impl Table {
    /// Notes a vector that was written at `unix_ms`. Each is believed once, and none after a newer one.
    pub(super) fn hear(&mut self, replica: &str, unix_ms: u64) -> Result<PeerId, Unbelieved> {
        let known = self.peers.iter().position(|peer| peer.replica == replica);
        let place = match known {
            Some(place) if unix_ms <= self.peers[place].newest_ms => {
                return Err(Unbelieved::Stale);
            }
            Some(place) => place,
            None => self.place_for(unix_ms)?,
        };
        self.peers[place] = Peer {
            replica: replica.to_owned(),
            newest_ms: unix_ms,
        };
        Ok(PeerId(place as u64))
    }

    fn place_for(&mut self, now_ms: u64) -> Result<usize, Unbelieved> {
        let gone = |peer: &Peer| peer.newest_ms.saturating_add(GONE_MS) < now_ms;
        if let Some(place) = self.peers.iter().position(gone) {
            return Ok(place);
        }
        if self.peers.len() == MOST_PEERS {
            return Err(Unbelieved::TooMany);
        }
        self.peers.push(Peer {
            replica: String::new(),
            newest_ms: 0,
        });
        Ok(self.peers.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_believed_once_and_never_after_a_newer_one() {
        let mut table = Table::default();
        assert_eq!(table.hear("a", 100), Ok(PeerId(0)));
        assert_eq!(table.hear("b", 100), Ok(PeerId(1)));
        assert_eq!(table.hear("a", 100), Err(Unbelieved::Stale));
        assert_eq!(table.hear("a", 99), Err(Unbelieved::Stale));
        assert_eq!(table.hear("a", 101), Ok(PeerId(0)));
    }

    #[test]
    fn schedulers_that_come_and_go_do_not_use_up_the_numbers() {
        let mut table = Table::default();
        for n in 0..1_000_u64 {
            let now = n * GONE_MS;
            let number = table.hear(&format!("r{n}"), now).expect("a number");
            assert!(number.0 < 3, "{number:?}");
        }
        let mut table = Table::default();
        for n in 0..MOST_PEERS {
            assert!(table.hear(&format!("r{n}"), 100).is_ok());
        }
        assert_eq!(table.hear("one more", 100), Err(Unbelieved::TooMany));
        assert_eq!(table.hear("r3", 200), Ok(PeerId(3)));
    }
}
