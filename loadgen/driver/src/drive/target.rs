//! Where a load goes: the base address of a server. Pure.

use std::str::FromStr;

use http::Uri;
use http::uri::Scheme;

/// `http://host:port`, with a path if the API is mounted below one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name or literal address, IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// `Host` header.
    pub(super) authority: String,
    /// Path before `/v1/…`, without a slash at its end.
    pub(super) base: String,
}

/// Not an address a load can go to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("{0:?} is not a URL; write http://host:port")]
    NotAUrl(String),
    #[error("{0:?} is not http; the generator speaks plain HTTP only, send to the inner listener")]
    NotHttp(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let uri: Uri = text
            .parse()
            .map_err(|_| TargetError::NotAUrl(text.to_owned()))?;
        let authority = uri
            .authority()
            .ok_or_else(|| TargetError::NotAUrl(text.to_owned()))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(TargetError::NotHttp(text.to_owned()));
        }
        let port = authority.port_u16().unwrap_or(80);
        let host = authority.host();
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1");
        Ok(Self {
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port,
            authority: format!("{host}:{port}"),
            base: base.to_owned(),
        })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "http://{}{}", self.authority, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://pool", "http://pool:80"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
            ("http://pool:1/v1/", "http://pool:1"),
            ("http://pool:1/gateway/v1", "http://pool:1/gateway"),
            (
                "https://pool",
                "\"https://pool\" is not http; the generator speaks plain HTTP only, send to the inner listener",
            ),
            (
                "pool:8080",
                "\"pool:8080\" is not http; the generator speaks plain HTTP only, send to the inner listener",
            ),
            ("/v1", "\"/v1\" is not a URL; write http://host:port"),
        ] {
            let found = text
                .parse::<Target>()
                .map_or_else(|error| error.to_string(), |target| target.to_string());
            assert_eq!(found, expected);
        }
        assert_eq!(
            "http://[::1]:8080".parse::<Target>().expect("valid").host,
            "::1"
        );
    }
}
