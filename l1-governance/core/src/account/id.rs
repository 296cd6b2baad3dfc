//! Account ids. The id *is* the path: `acme/search/ann/hp-1a2b` belongs to `acme/search/ann`.

use std::fmt;
use std::sync::Arc;

use governance_context::TenantId;

const MAX_BYTES: usize = 256;
const MAX_LEVEL_BYTES: usize = 100;
const MAX_DEPTH: usize = 8;

/// What an account stands for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A customer, the first level.
    Tenant,
    /// A project of a tenant.
    Project,
    /// A person or service of a project.
    User,
    /// A virtual key.
    Key,
    /// An agent session.
    Task,
    /// A share of a pool.
    Pool,
}

impl Kind {
    /// The name stored in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Tenant => "tenant",
            Kind::Project => "project",
            Kind::User => "user",
            Kind::Key => "key",
            Kind::Task => "task",
            Kind::Pool => "pool",
        }
    }

    /// The inverse of [`Kind::as_str`].
    pub fn parse(text: &str) -> Option<Kind> {
        [
            Kind::Tenant,
            Kind::Project,
            Kind::User,
            Kind::Key,
            Kind::Task,
            Kind::Pool,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == text)
    }
}

/// Why a text is not an account id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an account id: {why}")]
pub struct AccountIdError {
    text: String,
    why: &'static str,
}

/// Names of `A-Z a-z 0-9 . _ - :` joined by `/`, at most 256 bytes and 8 levels of 100 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(Arc<str>);

impl AccountId {
    /// Reads an account id.
    pub fn parse(text: &str) -> Result<AccountId, AccountIdError> {
        let refuse = |why| {
            Err(AccountIdError {
                text: text.chars().take(MAX_BYTES).collect(),
                why,
            })
        };
        if text.len() > MAX_BYTES {
            return refuse("it is longer than 256 bytes");
        }
        if text.split('/').count() > MAX_DEPTH {
            return refuse("it has more than 8 levels");
        }
        if text.split('/').any(str::is_empty) {
            return refuse("a level is empty");
        }
        if text.split('/').any(|level| level.len() > MAX_LEVEL_BYTES) {
            return refuse("a level is longer than 100 bytes");
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-:/".contains(&b);
        if !text.bytes().all(allowed) {
            return refuse("only letters, digits and . _ - : are allowed in a level");
        }
        Ok(AccountId(text.into()))
    }

    /// The account `name` below this one.
    pub fn child(&self, name: &str) -> Result<AccountId, AccountIdError> {
        AccountId::parse(&format!("{}/{name}", self.0))
    }

    /// The account this one belongs to.
    pub fn parent(&self) -> Option<AccountId> {
        self.0
            .rsplit_once('/')
            .map(|(parent, _)| AccountId(parent.into()))
    }

    /// Whether this is `ancestor` or lies below it.
    pub fn is_within(&self, ancestor: &AccountId) -> bool {
        self.0
            .strip_prefix(&*ancestor.0)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The tenant this account belongs to: its first level.
    pub fn tenant(&self) -> TenantId {
        let first = self.0.split('/').next().unwrap_or_default();
        TenantId::new(first).expect("a level is 1 to 100 bytes of visible ASCII")
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl serde::Serialize for AccountId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for AccountId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        AccountId::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The accounts one request draws on, each once. All or none of them pay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountPath(Arc<[AccountId]>);

impl AccountPath {
    /// A leaf and everything it belongs to, the tenant first.
    pub fn of(leaf: &AccountId) -> AccountPath {
        let mut path = vec![leaf.clone()];
        while let Some(parent) = path.last().and_then(AccountId::parent) {
            path.push(parent);
        }
        path.reverse();
        AccountPath(path.into())
    }

    /// This path plus one more account, such as a task; unchanged when it is already there.
    #[must_use]
    pub fn with(&self, extra: AccountId) -> AccountPath {
        if self.0.contains(&extra) {
            return self.clone();
        }
        AccountPath(self.0.iter().cloned().chain([extra]).collect())
    }

    /// The accounts, the tenant first.
    pub fn accounts(&self) -> &[AccountId] {
        &self.0
    }

    /// The account the request was made with.
    pub fn leaf(&self) -> &AccountId {
        self.0.last().expect("a path is built from a leaf")
    }
}
