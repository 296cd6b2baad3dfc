//! From the text of a configuration file to its fields, or one sentence: which field, what stands there, what is allowed.

use std::net::SocketAddr;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_saphyr::{Error, Location};

use super::File;

#[cfg(test)]
mod tests;

const ADDRESS: &str = "an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080";
/// Longer values are cut where they are quoted.
const LONGEST_VALUE: usize = 80;
/// Longer paths have a name in them that is no field of ours.
const LONGEST_PATH: usize = 500;

pub(super) fn parse(text: &str) -> anyhow::Result<File> {
    let mut path = String::new();
    let strict = serde_saphyr::options! { reject_unsupported_tags: true };
    // A document that says nothing, with or without `---`, leaves everything at its default.
    let file: Option<File> =
        serde_saphyr::with_deserializer_from_str_with_options(text, strict, |document| {
            serde_path_to_error::deserialize(document).map_err(|error| {
                path = match error.path().to_string().as_str() {
                    "." => "the file".to_owned(),
                    path => on_one_line(without_secret(path)),
                };
                error.into_inner()
            })
        })
        .map_err(|error| anyhow::Error::msg(Wrong { text, path: &path }.sentence(&error)))?;
    Ok(file.unwrap_or_default())
}

/// The address of a listener.
pub(super) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|_| D::Error::custom(ADDRESS))
}

/// The same as an option.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("use {ADDRESS}"))
}

/// A text that is no configuration, and the field at which that showed.
struct Wrong<'a> {
    text: &'a str,
    path: &'a str,
}

impl Wrong<'_> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "all other errors are about the text and not about a field"
    )]
    fn sentence(&self, error: &Error) -> String {
        let path = self.path;
        match error.without_snippet() {
            Error::AliasError { error, .. } => self.sentence(error),
            Error::InvalidScalar { ty, location } => {
                let range = self.range(ty, location);
                let allowed = range.as_deref().unwrap_or_else(|| scalar(ty));
                self.refused(location, allowed, "nothing")
            }
            Error::Unexpected { expected, location } => {
                let (allowed, nothing_quoted) = shape(expected);
                self.refused(location, allowed, nothing_quoted)
            }
            Error::NullIntoString { location } => {
                self.refused(location, shape("string scalar").0, "nothing")
            }
            // A type of our own says what it allows.
            Error::Message { msg, location } if *location != Location::UNKNOWN => {
                self.refused(location, msg, "nothing")
            }
            Error::SerdeUnknownField {
                expected, location, ..
            } => {
                let (fields, at) = (expected.join(", "), place(location));
                // Every key begins so, and none of the fields.
                let path = match path.rsplit_once('.') {
                    Some((whole, name)) if name.starts_with("hp-") => whole,
                    Some(_) | None => path,
                };
                format!("{path}: there is no such field; use one of {fields}{at}")
            }
            Error::SerdeMissingField { field, location } => {
                format!(
                    "{path}.{field}: missing, and it has no default; write it{}",
                    place(location)
                )
            }
            Error::DuplicateMappingKey {
                key: Some(key),
                location,
            } => {
                let at = place(location);
                let path = match path {
                    "?" | "the file" => key.to_owned(),
                    path if within_secret(path) => path.to_owned(),
                    path => format!("{}.{key}", path.trim_end_matches(".?")),
                };
                format!("{path}: stands here a second time; use each name once{at}")
            }
            // Its name is not repeated: whoever writes `!TEXT` may mean the text.
            Error::UnsupportedTag { location, .. } => {
                let at = place(location);
                format!("{path}: a tag (`!...`) is not allowed; write the value without it{at}")
            }
            // Without the lines around it: a secret may stand in them.
            error => error.to_string(),
        }
    }

    /// `unseen` is what stands there if the text has no value in that place.
    fn refused(&self, location: &Location, allowed: &str, unseen: &str) -> String {
        let (path, at) = (self.path, place(location));
        let (last, is_secret) = (last(path), within_secret(path));
        let is_place = is_secret || PLACES.contains(&last);
        let seen = match self.seen(location) {
            // Whoever writes a secret where its source belongs does not want to read it in a log.
            Some("a list") if is_place => "a list",
            Some(_) if allowed == FIELDS || is_place => "a single value",
            Some(value) => value,
            None => unseen,
        };
        let allowed = if allowed == FIELDS && is_secret {
            SECRET_FIELDS
        } else {
            allowed
        };
        format!("{path}: {seen} is not allowed; use {allowed}{at}")
    }

    /// What stands in the text, on one line.
    fn seen(&self, location: &Location) -> Option<&str> {
        let whole = self.text[span(self.text, location)?].trim();
        let value = whole.lines().next().unwrap_or_default();
        let end = value.char_indices().nth(LONGEST_VALUE);
        match value {
            "[" | "-" => Some("a list"),
            "{" => Some("a group of fields"),
            "" => None,
            _ => Some(end.map_or(value, |(end, _)| &value[..end])),
        }
    }

    /// What the checks allow in this place: they are asked about a number that they will not take.
    fn range(&self, ty: &str, location: &Location) -> Option<String> {
        let (large, whole) = match ty {
            "u32" => ("4294967295", true),
            "i64" => ("9223372036854775807", true),
            "u64" => ("18446744073709551615", true),
            "floating point" => ("1e300", false),
            _ => return None,
        };
        let allowed = self
            .allowed(location, large)
            .or_else(|| self.allowed(location, "0"))?;
        Some(match allowed.strip_prefix("a number") {
            Some(rest) if whole => format!("a whole number{rest}"),
            _ => allowed,
        })
    }

    /// What the checks say of this field with another value in its place.
    fn allowed(&self, location: &Location, value: &str) -> Option<String> {
        let mut text = self.text.to_owned();
        text.replace_range(span(&text, location)?, value);
        let file: File = serde_saphyr::from_str(&text).ok()?;
        let error = file.check().err()?;
        let (path, allowed) = match error.downcast::<scheduler_proxy::ConfigError>() {
            Ok(error) => (error.path, error.allowed),
            Err(error) => {
                let error = error
                    .downcast::<governance_proxy::config::ConfigError>()
                    .ok()?;
                (error.field, error.allowed)
            }
        };
        (path == self.path).then_some(allowed)
    }
}

/// Names are written by people as well: cut, and without characters that a terminal would obey.
fn on_one_line(path: &str) -> String {
    let mut shown = String::new();
    for letter in path.chars().take(LONGEST_PATH) {
        if letter.is_control() {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The path as far as its names are ours: below the place of a secret a name may be the secret.
fn without_secret(path: &str) -> &str {
    let mut end = 0;
    for name in path.split('.') {
        end += name.len();
        if SECRETS.contains(&name) {
            return match &path[end..] {
                ".file" | ".env" => path,
                _ => &path[..end],
            };
        }
        end += 1;
    }
    path
}

fn within_secret(path: &str) -> bool {
    path.split('.').any(|name| SECRETS.contains(&name))
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or_default()
}

/// Where a value stands in the text.
fn span(text: &str, location: &Location) -> Option<Range<usize>> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let length = usize::try_from(location.span().byte_len()?).ok()?;
    let range = start..start.checked_add(length)?;
    text.get(range.clone()).map(|_| range)
}

const FIELDS: &str = "fields (`name: value`)";
/// Fields that say where a secret is, and what they may say.
const SECRETS: [&str; 3] = ["secret", "admin_token", "installation_secret"];
/// Fields that name where secrets are: what is wrong there may be one.
const PLACES: [&str; 3] = ["keys", "context_keys", "key_file"];
const SECRET_FIELDS: &str = "{ file: PATH } or { env: NAME }: secrets are never in the file itself";

fn scalar(ty: &'static str) -> &'static str {
    match ty {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" => "a whole number of at least 0, below 2^64",
        "i64" => "a whole number",
        "floating point" => "a number",
        "boolean" => "true or false",
        other => other,
    }
}

/// What is allowed, and what stands there if it is a block that begins with its first entry.
fn shape(expected: &'static str) -> (&'static str, &'static str) {
    match expected {
        "mapping start" => (FIELDS, "a list"),
        "sequence start" => ("a list (`- value`)", "a group of fields"),
        "string scalar" => ("a single value", "a list or a group of fields"),
        other => (other, "what stands there"),
    }
}

fn place(location: &Location) -> String {
    format!(" (line {}, column {})", location.line(), location.column())
}
