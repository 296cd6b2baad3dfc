//! The form of a vector on its way: its body, and headers that say whose it is, when it was written, and prove both.

use std::fmt;

use governance_context::names;
use http::{HeaderMap, HeaderValue};
use http_body_util::LengthLimitError;
use thiserror::Error;

/// A vector that was written longer ago, or later than this from now, is not believed.
const LIFE_MS: u64 = 5_000;
/// The shortest secret that is accepted.
const SECRET_BYTES: usize = 32;
const NAME_BYTES: usize = 128;
/// What the secret is used for; the same secret signs nothing else.
const PURPOSE: &str = "headpond 2026 load vectors between schedulers v1";

/// The key that all schedulers of a pool share.
#[derive(Clone)]
pub struct PeerKey([u8; 32]);

/// A text that is no key.
#[derive(Debug, Error)]
#[error(
    "the secret has {0} characters; at least {SECRET_BYTES} are needed, e.g. `openssl rand -hex 32`"
)]
pub struct PeerKeyError(usize);

/// Why a vector is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Unbelieved {
    #[error("the headers that sign a load vector are missing or unreadable")]
    NoSignature,
    #[error("the signature is not right; do all schedulers have the same peers.key_file?")]
    Forged,
    #[error("the vector is older than another one, or not from now; are the clocks right?")]
    Stale,
    #[error("the vector is too large")]
    TooLarge,
    #[error("the body is not a load vector")]
    Malformed,
    #[error("too many schedulers")]
    TooMany,
}

/// What stands in the headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) replica: String,
    pub(crate) unix_ms: u64,
    mac: blake3::Hash,
}

impl PeerKey {
    /// Reads the text of a key file.
    pub fn parse(text: &str) -> Result<Self, PeerKeyError> {
        let text = text.trim();
        if text.len() < SECRET_BYTES {
            return Err(PeerKeyError(text.len()));
        }
        Ok(Self(blake3::derive_key(PURPOSE, text.as_bytes())))
    }

    pub(crate) fn sign(&self, replica: &str, unix_ms: u64, body: &[u8]) -> Head {
        Head {
            replica: replica.to_owned(),
            unix_ms,
            mac: self.mac(replica, unix_ms, body),
        }
    }

    /// In constant time.
    pub(crate) fn check(&self, head: &Head, body: &[u8]) -> Result<(), Unbelieved> {
        if self.mac(&head.replica, head.unix_ms, body) == head.mac {
            Ok(())
        } else {
            Err(Unbelieved::Forged)
        }
    }

    /// Lengths stand in front, so that no byte can move from one part to another.
    fn mac(&self, replica: &str, unix_ms: u64, body: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.0)
            .update(&unix_ms.to_be_bytes())
            .update(&(replica.len() as u64).to_be_bytes())
            .update(replica.as_bytes())
            .update(body)
            .finalize()
    }
}

impl Head {
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Unbelieved> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let read = || {
            let replica = text(names::PEER)?;
            (1..=NAME_BYTES).contains(&replica.len()).then_some(())?;
            Some(Self {
                replica: replica.to_owned(),
                unix_ms: text(names::PEER_TIME)?.parse().ok()?,
                mac: blake3::Hash::from_hex(text(names::PEER_MAC)?).ok()?,
            })
        };
        read().ok_or(Unbelieved::NoSignature)
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(3);
        let replica =
            HeaderValue::from_str(&self.replica).expect("a checked name is visible ASCII");
        headers.insert(names::PEER, replica);
        headers.insert(names::PEER_TIME, self.unix_ms.into());
        let mac = HeaderValue::from_str(&self.mac.to_hex()).expect("hexadecimal digits");
        headers.insert(names::PEER_MAC, mac);
        headers
    }

    pub(crate) fn is_recent(&self, now_ms: u64) -> Result<(), Unbelieved> {
        if self.unix_ms.abs_diff(now_ms) <= LIFE_MS {
            Ok(())
        } else {
            Err(Unbelieved::Stale)
        }
    }
}

impl Unbelieved {
    /// Why a body could not be read.
    pub(super) fn of_body(error: &(dyn std::error::Error + 'static)) -> Self {
        if error.is::<LengthLimitError>() {
            Self::TooLarge
        } else {
            Self::Malformed
        }
    }

    /// What it is counted as.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoSignature => "no_signature",
            Self::Forged => "forged",
            Self::Stale => "stale",
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::TooMany => "too_many",
        }
    }
}

/// Never shows the key.
impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(letter: &str) -> PeerKey {
        PeerKey::parse(&letter.repeat(32)).expect("long enough")
    }

    #[test]
    fn what_is_signed_is_believed_and_nothing_else() {
        let head = key("a").sign("r1", 1_000, b"body");
        let read = Head::read(&head.headers()).expect("all headers");
        assert_eq!(read, head);
        assert_eq!(key("a").check(&read, b"body"), Ok(()));
        let other = |change: fn(&mut Head)| {
            let mut head = head.clone();
            change(&mut head);
            head
        };
        for (key, head, body) in [
            (key("b"), head.clone(), &b"body"[..]),
            (key("a"), head.clone(), b"bodY"),
            (key("a"), other(|head| head.unix_ms += 1), b"body"),
            (key("a"), other(|head| head.replica.push('x')), b"body"),
        ] {
            assert_eq!(key.check(&head, body), Err(Unbelieved::Forged));
        }
    }

    #[test]
    fn a_vector_lives_for_seconds() {
        let head = key("a").sign("r1", 10_000, b"");
        for (now, expected) in [
            (10_000, Ok(())),
            (15_000, Ok(())),
            (5_000, Ok(())),
            (15_001, Err(Unbelieved::Stale)),
            (4_999, Err(Unbelieved::Stale)),
        ] {
            assert_eq!(head.is_recent(now), expected, "{now}");
        }
    }

    #[test]
    fn headers_that_are_missing_or_absurd_are_no_signature() {
        let whole = key("a").sign("r1", 1, b"").headers();
        for (name, value) in [
            (names::PEER, None),
            (names::PEER_TIME, None),
            (names::PEER_MAC, None),
            (names::PEER_TIME, Some("-1".to_owned())),
            (names::PEER_MAC, Some("00".to_owned())),
            (names::PEER, Some("x".repeat(129))),
        ] {
            let mut headers = whole.clone();
            match value {
                None => drop(headers.remove(name)),
                Some(value) => drop(headers.insert(name, value.parse().expect("ASCII"))),
            }
            assert_eq!(Head::read(&headers), Err(Unbelieved::NoSignature), "{name}");
        }
    }

    #[test]
    fn a_short_secret_is_refused_without_being_shown() {
        let error = PeerKey::parse(" hunter2 \n").expect_err("too short");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert_eq!(format!("{:?}", key("a")), "PeerKey(..)");
    }
}
