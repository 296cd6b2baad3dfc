//! Headers of requests and answers, both by allow list, and the caller's credential.

use std::fmt;

use governance_context::{MAX_ID_BYTES, names};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Request headers that travel on. Everything else is dropped.
const REQUEST: &[&str] = &[
    "accept",
    "accept-language",
    "anthropic-beta",
    "anthropic-version",
    "content-type",
    "idempotency-key",
    "traceparent",
    "tracestate",
    "user-agent",
];

/// Answer headers that travel back. Everything else is dropped: names, versions and addresses of engines with it.
const ANSWER: &[&str] = &[
    "cache-control",
    "content-type",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
];

/// Headers whose copies make one list; of any other header only the first copy counts.
const LISTS: &[&str] = &["accept", "accept-language", "anthropic-beta", "tracestate"];

/// Names that carry a secret when they stand in a query string.
const QUERY_SECRETS: &[&str] = &[
    "key",
    "apikey",
    "accesstoken",
    "token",
    "authorization",
    "xapikey",
    "subscriptionkey",
];

/// The request headers that may go on, rebuilt from nothing.
///
/// Trailers are not taken at all: no API call here has any, and L1 passes on none.
pub fn request(headers: &HeaderMap) -> HeaderMap {
    allowed(headers, |name| {
        REQUEST.contains(&name) || name.starts_with("openai-")
    })
}

/// The headers of an engine's answer that a caller may see.
pub fn answer(headers: &HeaderMap) -> HeaderMap {
    allowed(headers, |name| ANSWER.contains(&name))
}

/// The caller's own request id, shown in logs and never used as a key; `None` unless there is exactly one and it is
/// short visible ASCII.
pub fn client_request_id(headers: &HeaderMap) -> Option<&str> {
    let mut ids = headers.get_all(names::REQUEST_ID).iter();
    let id = ids.next()?.to_str().ok()?;
    let visible = id.bytes().all(|byte| byte.is_ascii_graphic());
    (ids.next().is_none() && visible && (1..=MAX_ID_BYTES).contains(&id.len())).then_some(id)
}

fn allowed(headers: &HeaderMap, is_allowed: impl Fn(&str) -> bool) -> HeaderMap {
    let mut clean = HeaderMap::with_capacity(headers.len().min(REQUEST.len()));
    for (name, value) in headers {
        let text = name.as_str();
        let belongs_elsewhere = names::is_reserved_header(text)
            || names::is_credential_header(text)
            || names::is_hop_by_hop(text);
        if belongs_elsewhere || !is_allowed(text) || is_named_by_connection(headers, name) {
            continue;
        }
        if LISTS.contains(&text) || !clean.contains_key(name) {
            clean.append(name.clone(), value.clone());
        }
    }
    clean
}

/// RFC 9110 §7.6.1: what `Connection` names belongs to that connection only.
fn is_named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    let options = headers.get_all(header::CONNECTION);
    options
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|option| option.trim().eq_ignore_ascii_case(name.as_str()))
}

/// The one secret a caller presented. Never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential<'a>(&'a str);

impl<'a> Credential<'a> {
    /// The secret itself.
    pub fn reveal(self) -> &'a str {
        self.0
    }
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// Why there is no credential. The caller is told the same for all of them: `invalid_api_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CredentialRefusal {
    /// No header carries one.
    #[error("no key was sent")]
    Missing,
    /// Another scheme than `Bearer`, no text, or not visible ASCII.
    #[error("the key is malformed")]
    Malformed,
    /// Two headers carry different keys.
    #[error("two different keys were sent")]
    Conflict,
    /// A key stands in the URL, where it has been logged on its way.
    #[error("a key was sent in the query string")]
    InQuery,
}

/// The caller's key: `Authorization: Bearer`, `x-api-key` or `api-key`, in any number of copies that agree.
pub fn credential<'a>(
    headers: &'a HeaderMap,
    query: Option<&str>,
) -> Result<Credential<'a>, CredentialRefusal> {
    if query.is_some_and(query_has_secret) {
        return Err(CredentialRefusal::InQuery);
    }
    let bearer = headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .map(|value| bearer(text(value)?));
    let plain = ["x-api-key", "api-key"]
        .into_iter()
        .flat_map(|name| headers.get_all(name))
        .map(text);
    let mut found = None;
    for key in bearer.chain(plain) {
        let key = key?;
        match found {
            Some(known) if known != key => return Err(CredentialRefusal::Conflict),
            Some(_) | None => found = Some(key),
        }
    }
    found.map(Credential).ok_or(CredentialRefusal::Missing)
}

fn text(value: &HeaderValue) -> Result<&str, CredentialRefusal> {
    let text = value
        .to_str()
        .map_err(|_| CredentialRefusal::Malformed)?
        .trim();
    if text.is_empty() {
        Err(CredentialRefusal::Malformed)
    } else {
        Ok(text)
    }
}

fn bearer(value: &str) -> Result<&str, CredentialRefusal> {
    let (scheme, key) = value.split_once(' ').ok_or(CredentialRefusal::Malformed)?;
    let key = key.trim();
    let well_formed =
        scheme.eq_ignore_ascii_case("bearer") && key.bytes().all(|byte| byte.is_ascii_graphic());
    if well_formed && !key.is_empty() {
        Ok(key)
    } else {
        Err(CredentialRefusal::Malformed)
    }
}

/// Whether a query string carries something that looks like a secret.
fn query_has_secret(query: &str) -> bool {
    query.split(['&', ';']).any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        let name: String = decoded(name)
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        QUERY_SECRETS.contains(&name.as_str())
    })
}

/// Percent-decodes ASCII; anything else comes out as something that is no name of a secret.
fn decoded(text: &str) -> impl Iterator<Item = char> + '_ {
    let mut bytes = text.bytes();
    std::iter::from_fn(move || {
        let byte = bytes.next()?;
        if byte != b'%' {
            return Some(char::from(byte));
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => char::from_u32(high * 16 + low),
            (_, _) => Some('?'),
        }
    })
}

#[cfg(test)]
mod tests;
