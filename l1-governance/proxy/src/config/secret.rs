//! Secrets: where they are read from. What they say is in no message.

use std::env::VarError;
use std::path::PathBuf;

use super::KeyConfig;

/// Where a secret is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// The content of a file, without space around it.
    File(PathBuf),
    /// An environment variable.
    Env(String),
}

/// A secret is not where the configuration says. The place is not told: whoever wrote the secret itself there does not
/// want to read it in a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{at}: cannot read the secret from the {place} that is named here: {why}; put it there, or name another one"
)]
pub struct SecretError {
    /// The field that names the place.
    pub at: String,
    /// What kind of place it is.
    pub place: &'static str,
    /// What is wrong.
    pub why: String,
}

impl SecretSource {
    /// The secret, without space around it; `at` is the field, for the message.
    pub fn read(&self, at: &str) -> Result<String, SecretError> {
        let (field, place, found) = match self {
            Self::File(path) => (
                "file",
                "file",
                std::fs::read_to_string(path).map_err(|error| error.to_string()),
            ),
            Self::Env(name) => (
                "env",
                "environment variable",
                std::env::var(name).map_err(|error| match error {
                    VarError::NotPresent => "it is not set".to_owned(),
                    // The error itself would repeat it.
                    VarError::NotUnicode(_) => "it is not UTF-8".to_owned(),
                }),
            ),
        };
        let why = match found {
            Ok(text) if text.trim().is_empty() => "it is empty".to_owned(),
            Ok(text) => return Ok(text.trim().to_owned()),
            Err(why) => why,
        };
        Err(SecretError {
            at: format!("{at}.{field}"),
            place,
            why,
        })
    }
}

impl KeyConfig {
    /// The text of the key.
    pub fn read(&self) -> Result<String, SecretError> {
        self.secret.read(&format!("{}.secret", self.at))
    }
}
