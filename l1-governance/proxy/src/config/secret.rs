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

/// A secret is not where the configuration says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: cannot read the secret from {place}: {why}; put it there, or name another place")]
pub struct SecretError {
    /// The field that names the place.
    pub at: String,
    /// Where it should be.
    pub place: String,
    /// What is wrong.
    pub why: String,
}

impl SecretSource {
    /// The secret, without space around it; `at` is the field, for the message.
    pub fn read(&self, at: &str) -> Result<String, SecretError> {
        let (place, found) = match self {
            Self::File(path) => (
                path.display().to_string(),
                std::fs::read_to_string(path).map_err(|error| error.to_string()),
            ),
            Self::Env(name) => (
                format!("the environment variable {name}"),
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
            at: at.to_owned(),
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
