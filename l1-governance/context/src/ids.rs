//! Names and identifiers, valid by construction.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::{Builder, Uuid};

/// The longest name accepted, in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// Why a text is not a valid name or identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("must not be empty")]
    Empty,
    /// The text is longer than [`MAX_ID_BYTES`].
    #[error("is {0} bytes long; at most {MAX_ID_BYTES} are allowed")]
    TooLong(usize),
    /// A byte is a space, a control character or not ASCII.
    #[error("has a character at byte {0} that is not visible ASCII")]
    NotVisible(usize),
    /// Not a `UUIDv7` in hyphenated form.
    #[error("is not a UUID of version 7")]
    NotUuidV7,
    /// Not 32 hexadecimal digits.
    #[error("is not a hash of 32 hexadecimal digits")]
    NotHash,
}

fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > MAX_ID_BYTES {
        return Err(IdError::TooLong(text.len()));
    }
    match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
        Some(at) => Err(IdError::NotVisible(at)),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// 1 to 128 bytes of visible ASCII. Cheap to clone.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text and takes it as a name.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), &*self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                Self::new(&*text).map_err(|error| serde::de::Error::custom(format_args!("{text:?} {error}")))
            }
        }
    };
}

name!(/** The customer an account path starts with. */ TenantId);
name!(/** Who shares one fair queue inside a band. */ FairnessId);
name!(/** A named set of priority, waiting time and latency targets. */ ObjectiveName);
name!(/** Requests of one domain may reuse each other's prefix cache; others never. */ CacheDomain);
name!(/** The version of the policy snapshot a decision was made with. */ PolicyVersion);
name!(/** One set of interchangeable engine replicas. */ PoolName);
name!(/** The public name of a signing key (`kid`). */ KeyId);

macro_rules! uuid_v7 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// A `UUIDv7`: sorts by the time it was made.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Builds an id from the Unix time in milliseconds and ten random bytes.
            pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
                Self(Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
            }

            /// The id as a UUID.
            pub fn as_uuid(&self) -> &Uuid {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                match Uuid::try_parse(text) {
                    Ok(uuid) if text.len() == 36 && uuid.get_version_num() == 7 => Ok(Self(uuid)),
                    Ok(_) | Err(_) => Err(IdError::NotUuidV7),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

uuid_v7!(/** What a client asked for, whatever number of attempts it takes. */ RequestId);
uuid_v7!(/** One try of a request on one endpoint; the token's `jti`. */ AttemptId);

/// A hash of an account path: tells paths apart without telling who they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathHash(pub [u8; 16]);

impl PathHash {
    /// Hashes the ids of a path, outermost account first. Lengths are hashed too, so `a,bc` differs from `ab,c`.
    pub fn of<'a>(accounts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for account in accounts {
            hasher.update(&(account.len() as u64).to_le_bytes());
            hasher.update(account.as_bytes());
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(hash)
    }
}

impl FromStr for PathHash {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(lower_hex) {
            return Err(IdError::NotHash);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| IdError::NotHash)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for PathHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PathHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathHash({self})")
    }
}

impl Serialize for PathHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PathHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
