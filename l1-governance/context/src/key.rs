//! Keys, and the file they are read from.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use jsonwebtoken::crypto::{self, CryptoProvider};
use jsonwebtoken::jwk::EllipticCurve;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};

use crate::ids::{IdError, KeyId, PoolName};
use crate::token::{Signer, Verifier};

/// The shortest shared secret accepted, in bytes: as long as the signature it makes.
pub const MIN_SECRET_BYTES: usize = 32;

/// A key that signs, verifies, or both. Proven usable when it was read; never shown.
#[derive(Clone)]
pub struct Key(Kind);

#[derive(Clone)]
enum Kind {
    Shared {
        signing: EncodingKey,
        verifying: DecodingKey,
    },
    Private {
        signing: EncodingKey,
        verifying: DecodingKey,
    },
    Public {
        verifying: DecodingKey,
    },
}

/// Why bytes or text are not a usable key. Never repeats them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A shared secret shorter than [`MIN_SECRET_BYTES`].
    #[error(
        "the secret has {0} bytes; at least {MIN_SECRET_BYTES} random bytes are needed, e.g. `openssl rand -hex 32`"
    )]
    TooShort(usize),
    /// Not an Ed25519 key in PEM.
    #[error(
        "this is not an Ed25519 key in PEM; make one with `openssl genpkey -algorithm ed25519`"
    )]
    NotEd25519,
    /// A public key where a signing key is needed.
    #[error("a public key can only verify; L1 needs the private key or a shared secret")]
    CannotSign,
}

impl Key {
    /// A secret known to both sides, for HS256.
    pub fn shared(secret: &[u8]) -> Result<Self, KeyError> {
        let too_short = || KeyError::TooShort(secret.len());
        if secret.len() < MIN_SECRET_BYTES {
            return Err(too_short());
        }
        let signing = EncodingKey::from_secret(secret).map_err(|_| too_short())?;
        let verifying = DecodingKey::from_secret(secret).map_err(|_| too_short())?;
        Ok(Self(Kind::Shared { signing, verifying }))
    }

    /// An Ed25519 key in PEM, private (signs and verifies) or public (verifies only), for `EdDSA`.
    pub fn ed25519_pem(pem: &str) -> Result<Self, KeyError> {
        if let Ok(verifying) = DecodingKey::from_ed_pem(pem.as_bytes()) {
            return Self::public(verifying);
        }
        let signing = EncodingKey::from_ed_pem(pem.as_bytes()).map_err(|_| KeyError::NotEd25519)?;
        let keys = &CryptoProvider::try_get_default()
            .ok_or(KeyError::NotEd25519)?
            .key_utils;
        let public =
            (keys.ed_pub_components_from_private_key)(signing.as_bytes(), &EllipticCurve::Ed25519)
                .map_err(|_| KeyError::NotEd25519)?;
        // Signing is infallible from here on: the same bytes were just read as a private key.
        let verifying = DecodingKey::from_ed_der(&public);
        Ok(Self(Kind::Private { signing, verifying }))
    }

    fn public(verifying: DecodingKey) -> Result<Self, KeyError> {
        // The verifier slices the first 32 bytes; a try with a worthless signature shows that the point is valid.
        let long_enough = verifying
            .try_get_as_bytes()
            .is_ok_and(|bytes| bytes.len() == 32);
        let nothing = URL_SAFE_NO_PAD.encode([0; 64]);
        if !long_enough || crypto::verify(&nothing, b"", &verifying, Algorithm::EdDSA).is_err() {
            return Err(KeyError::NotEd25519);
        }
        Ok(Self(Kind::Public { verifying }))
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.0 {
            Kind::Shared { .. } => Algorithm::HS256,
            Kind::Private { .. } | Kind::Public { .. } => Algorithm::EdDSA,
        }
    }

    pub(crate) fn encoding(&self) -> Option<&EncodingKey> {
        match &self.0 {
            Kind::Shared { signing, .. } | Kind::Private { signing, .. } => Some(signing),
            Kind::Public { .. } => None,
        }
    }

    pub(crate) fn decoding(&self) -> &DecodingKey {
        match &self.0 {
            Kind::Shared { verifying, .. }
            | Kind::Private { verifying, .. }
            | Kind::Public { verifying } => verifying,
        }
    }
}

/// Shows the kind, never the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Shared { .. } => "Key(shared secret)",
            Kind::Private { .. } => "Key(ed25519 private)",
            Kind::Public { .. } => "Key(ed25519 public)",
        })
    }
}

/// The keys in force: the first signs, all verify. Two at most, so that a rotation has a beginning and an end.
///
/// The file is plain text, one entry per key, the current one first:
/// ```text
/// # lines starting with # and empty lines are skipped
/// kid: 2026-11
/// secret: hex:4f5a...            (or base64:...; at least 32 bytes)
/// kid: 2026-10
/// -----BEGIN PRIVATE KEY-----    (or PUBLIC KEY; Ed25519)
/// ...
/// -----END PRIVATE KEY-----
/// ```
#[derive(Debug, Clone)]
pub struct KeyRing {
    keys: Vec<(KeyId, Key)>,
}

/// What is wrong with a key file, and where. Never repeats what stands there, except a `kid`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// No entry at all.
    #[error("the key file has no key; write `kid: NAME` and below it `secret: hex:...`")]
    Empty,
    /// More than a current and a previous key.
    #[error(
        "line {line}: a third key; a key file holds the current key and, while it is rotated, the previous one"
    )]
    TooMany {
        /// Counted from 1.
        line: usize,
    },
    /// The same `kid` twice.
    #[error("line {line}: the kid `{kid}` is used twice; every key needs its own")]
    Duplicate {
        /// Counted from 1.
        line: usize,
        /// The name used twice.
        kid: KeyId,
    },
    /// The name of a key is not valid.
    #[error("line {line}: the kid {source}")]
    Kid {
        /// Counted from 1.
        line: usize,
        /// What is wrong with the name.
        source: IdError,
    },
    /// A key name without a key.
    #[error("line {line}: the key `{kid}` has no secret and no PEM block below it")]
    NoKey {
        /// Counted from 1.
        line: usize,
        /// The name without a key.
        kid: KeyId,
    },
    /// Something other than an entry.
    #[error("line {line}: expected {expected}")]
    Unexpected {
        /// Counted from 1.
        line: usize,
        /// What may stand here.
        expected: &'static str,
    },
    /// The key itself is not usable.
    #[error("line {line}: {source}")]
    Key {
        /// Counted from 1.
        line: usize,
        /// What is wrong with the key.
        source: KeyError,
    },
}

impl KeyRing {
    /// A ring of one key.
    pub fn single(kid: KeyId, key: Key) -> Self {
        Self {
            keys: vec![(kid, key)],
        }
    }

    /// Reads a key file; its format is described at [`KeyRing`].
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        let mut lines = text
            .lines()
            .zip(1..)
            .map(|(text, line)| (line, text.trim()))
            .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'));
        let mut keys: Vec<(KeyId, Key)> = Vec::new();
        while let Some((line, entry)) = lines.next() {
            let Some(kid) = entry.strip_prefix("kid:") else {
                return Err(KeyRingError::Unexpected {
                    line,
                    expected: "`kid: NAME`",
                });
            };
            let kid =
                KeyId::new(kid.trim()).map_err(|source| KeyRingError::Kid { line, source })?;
            if keys.iter().any(|(known, _)| *known == kid) {
                return Err(KeyRingError::Duplicate { line, kid });
            }
            if keys.len() == 2 {
                return Err(KeyRingError::TooMany { line });
            }
            let Some((line, entry)) = lines.next() else {
                return Err(KeyRingError::NoKey { line, kid });
            };
            let key = parse_key(line, entry, &mut lines)?;
            keys.push((kid, key));
        }
        if keys.is_empty() {
            Err(KeyRingError::Empty)
        } else {
            Ok(Self { keys })
        }
    }

    /// A signer with the current key.
    pub fn signer(&self) -> Result<Signer, KeyError> {
        let (kid, key) = &self.keys[0];
        Signer::new(kid.clone(), key)
    }

    /// A verifier of every key in the ring.
    pub fn verifier(&self, audience: PoolName) -> Verifier {
        Verifier::new(self.keys.iter().cloned(), audience)
    }

    /// The names of the keys, the current one first.
    pub fn kids(&self) -> impl Iterator<Item = &KeyId> {
        self.keys.iter().map(|(kid, _)| kid)
    }
}

const SECRET: &str = "`secret: hex:...`, `secret: base64:...` or an Ed25519 PEM block";

fn parse_key<'a>(
    line: usize,
    entry: &str,
    rest: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<Key, KeyRingError> {
    let bad = |source| KeyRingError::Key { line, source };
    if entry.starts_with("-----BEGIN ") {
        let mut pem = String::from(entry);
        for (_, text) in rest {
            pem.push('\n');
            pem.push_str(text);
            if text.starts_with("-----END ") {
                return Key::ed25519_pem(&pem).map_err(bad);
            }
        }
        return Err(KeyRingError::Unexpected {
            line,
            expected: "a PEM block that ends with an END line",
        });
    }
    let secret = entry.strip_prefix("secret:").map(str::trim);
    let secret = match secret.and_then(|secret| secret.split_once(':')) {
        Some(("hex", digits)) => from_hex(digits),
        Some(("base64", text)) => from_base64(text),
        Some(_) | None => {
            return Err(KeyRingError::Unexpected {
                line,
                expected: SECRET,
            });
        }
    };
    let secret = secret.ok_or(KeyRingError::Unexpected {
        line,
        expected: "valid hexadecimal or base64 digits",
    })?;
    Key::shared(&secret).map_err(bad)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8))
        .collect()
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD]
        .iter()
        .find_map(|engine| engine.decode(text).ok())
}

#[cfg(test)]
mod tests;
