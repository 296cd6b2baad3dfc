//! Virtual keys as values: their text, the keyed hash of it, what a key may do, and the one ceiling on every write.

use std::collections::BTreeSet;
use std::fmt;

use governance_context::{MicroWtu, ObjectiveName};

use crate::account::{AccountId, UnixMs};

#[cfg(test)]
mod tests;

const PUBLIC_LEN: usize = 12;
const SECRET_LEN: usize = 32;
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// The part of a key that may be shown: 12 letters and digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicPart([u8; PUBLIC_LEN]);

impl PublicPart {
    /// Reads a public part, with or without the leading `hp-`.
    pub fn parse(text: &str) -> Option<PublicPart> {
        let bytes = text.strip_prefix("hp-").unwrap_or(text).as_bytes();
        let bytes: [u8; PUBLIC_LEN] = bytes.try_into().ok()?;
        bytes
            .iter()
            .all(|b| ALPHABET.contains(b))
            .then_some(PublicPart(bytes))
    }

    /// The text, without `hp-`.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a public part is ASCII")
    }
}

impl fmt::Display for PublicPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hp-{}", self.as_str())
    }
}

impl fmt::Debug for PublicPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A whole key, `hp-<12 public>-<32 secret>`. Shown once, when it is made; never printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText {
    public: PublicPart,
    text: Box<str>,
}

impl KeyText {
    /// Makes a key from 44 random bytes.
    pub fn generate(random: &[u8; PUBLIC_LEN + SECRET_LEN]) -> KeyText {
        let letter = |byte: &u8| char::from(ALPHABET[usize::from(byte % 32)]);
        let (public, secret) = random.split_at(PUBLIC_LEN);
        let public: String = public.iter().map(letter).collect();
        let secret: String = secret.iter().map(letter).collect();
        KeyText {
            public: PublicPart::parse(&public).expect("the letters come from the alphabet"),
            text: format!("hp-{public}-{secret}").into(),
        }
    }

    /// Reads a key. A secret is 16 to 128 letters and digits, so that keys made elsewhere can be brought along.
    pub fn parse(text: &str) -> Option<KeyText> {
        let (public, secret) = text.strip_prefix("hp-")?.split_once('-')?;
        let length = (16..=128).contains(&secret.len());
        if !length || !secret.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return None;
        }
        Some(KeyText {
            public: PublicPart::parse(public)?,
            text: text.into(),
        })
    }

    /// The part that may be shown.
    pub fn public(&self) -> PublicPart {
        self.public
    }

    /// The whole key, for the one who is to keep it.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// What is stored.
    pub fn hash(&self, pepper: &Pepper) -> KeyHash {
        KeyHash(blake3::keyed_hash(&pepper.0, self.text.as_bytes()))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-…", self.public)
    }
}

/// The secret under which keys are hashed. It is not stored beside the hashes.
#[derive(Clone)]
pub struct Pepper(pub [u8; 32]);

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(…)")
    }
}

/// A keyed hash of a key. Compares in constant time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(blake3::Hash);

impl KeyHash {
    /// From storage.
    pub fn from_bytes(bytes: [u8; 32]) -> KeyHash {
        KeyHash(blake3::Hash::from_bytes(bytes))
    }

    /// For storage.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// What a key's owner may do to other keys.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Their own keys.
    Member,
    /// All keys of their project.
    Lead,
}

impl Role {
    /// The name stored with the key.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Member => "member",
            Role::Lead => "lead",
        }
    }

    /// The inverse of [`Role::as_str`].
    pub fn parse(text: &str) -> Option<Role> {
        [Role::Member, Role::Lead]
            .into_iter()
            .find(|role| role.as_str() == text)
    }
}

/// Which models.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Models {
    /// All that exist, now or later.
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Models {
    /// Whether `model` is among them.
    pub fn allows(&self, model: &str) -> bool {
        match self {
            Models::All => true,
            Models::Only(names) => names.contains(model),
        }
    }
}

/// What a key may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// Which models it may use.
    pub models: Models,
    /// How much it may spend in all; `None` for no limit of its own.
    pub budget: Option<MicroWtu>,
    /// First instant it no longer works; `None` for never.
    pub expires: Option<UnixMs>,
    /// What its owner may do to other keys.
    pub role: Role,
    /// The objective of its requests; `None` for that of its project.
    pub objective: Option<ObjectiveName>,
}

/// Who asks for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// The operator of the installation: no ceiling.
    Operator,
    /// The owner of a key.
    Key {
        /// The user account the key belongs to.
        owner: AccountId,
        /// What the key may do.
        scope: Scope,
    },
}

/// How far a request for a key goes beyond what the asker has. The first that is found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Beyond {
    /// Someone else's key.
    #[error("the account {0} is not yours to manage")]
    Owner(AccountId),
    /// A model the asker may not use; `None` when all models were asked for.
    #[error("a key cannot be given models its maker may not use")]
    Models(Option<String>),
    /// More than the asker may spend.
    #[error("a key cannot be given a larger budget than its maker has")]
    Budget,
    /// Longer than the asker's own key lasts.
    #[error("a key cannot outlive the key it is made with")]
    Expiry,
    /// A role above the asker's.
    #[error("a key cannot be given a higher role than its maker has")]
    Role,
    /// Another objective than the asker's.
    #[error(
        "a key cannot be given another objective than its maker has; only the admin token chooses objectives"
    )]
    Objective,
}

/// The one ceiling: create, update, regenerate, temporary increase and bulk edit all ask it, with the scope as
/// it would be afterwards. Nobody gives what they do not have.
pub fn ceiling(actor: &Actor, owner: &AccountId, asked: &Scope) -> Result<(), Beyond> {
    let Actor::Key { owner: own, scope } = actor else {
        return Ok(());
    };
    let reach = match scope.role {
        Role::Member => Some(own.clone()),
        Role::Lead => own.parent(),
    };
    // A key directly below a tenant has no project to lead: it reaches its own account only.
    let reach = reach
        .filter(|account| account.parent().is_some())
        .unwrap_or_else(|| own.clone());
    if !owner.is_within(&reach) {
        return Err(Beyond::Owner(owner.clone()));
    }
    if asked.role > scope.role {
        return Err(Beyond::Role);
    }
    // Which of two objectives is the better one is not for this function to know.
    if asked.objective != scope.objective {
        return Err(Beyond::Objective);
    }
    models_within(&scope.models, &asked.models)?;
    within(scope.budget, asked.budget)
        .then_some(())
        .ok_or(Beyond::Budget)?;
    within(scope.expires, asked.expires)
        .then_some(())
        .ok_or(Beyond::Expiry)
}

fn models_within(own: &Models, asked: &Models) -> Result<(), Beyond> {
    match (own, asked) {
        (Models::All, _) => Ok(()),
        (Models::Only(_), Models::All) => Err(Beyond::Models(None)),
        (Models::Only(own), Models::Only(asked)) => match asked.difference(own).next() {
            None => Ok(()),
            Some(model) => Err(Beyond::Models(Some(model.clone()))),
        },
    }
}

/// `None` is no limit, the most there can be.
fn within<T: PartialOrd>(own: Option<T>, asked: Option<T>) -> bool {
    match (own, asked) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(own), Some(asked)) => asked <= own,
    }
}
