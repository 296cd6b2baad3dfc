//! Where the metrics of an endpoint are: its own address or a separate one. Pure.

use http::Uri;
use http::uri::Scheme;
use scheduler_core::EndpointId;

/// One endpoint to scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) endpoint: EndpointId,
    /// Name or literal address, IPv6 without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `Host` header.
    pub(crate) authority: String,
    pub(crate) path: String,
}

/// An address no metrics page can be fetched from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("metrics address {0:?} is not a URL; write http://host:port or http://host:port/path")]
    NotAUrl(String),
    #[error("metrics address {0:?} is not http; engines serve their metrics without TLS")]
    NotHttp(String),
    #[error("metrics address {0:?} has a query; give host, port and path only")]
    Query(String),
}

impl Target {
    /// `address` is `http://host:port` (then the page is at `/metrics`) or names the page by its path.
    pub fn new(endpoint: EndpointId, address: &str) -> Result<Self, TargetError> {
        let uri: Uri = address
            .parse()
            .map_err(|_| TargetError::NotAUrl(address.to_owned()))?;
        let authority = uri
            .authority()
            .ok_or_else(|| TargetError::NotAUrl(address.to_owned()))?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(TargetError::NotHttp(address.to_owned()));
        }
        if uri.query().is_some() {
            return Err(TargetError::Query(address.to_owned()));
        }
        let host = authority.host();
        Ok(Self {
            endpoint,
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: host_and_port(authority),
            path: if uri.path() == "/" {
                "/metrics".to_owned()
            } else {
                uri.path().to_owned()
            },
        })
    }
}

/// The authority without user information, which is no part of a `Host` header.
fn host_and_port(authority: &http::uri::Authority) -> String {
    match authority.port() {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use scheduler_core::EndpointId;

    use super::Target;

    fn check(address: &str, expected: &str) {
        let found = match Target::new(EndpointId(0), address) {
            Ok(target) => format!(
                "{} {} {} {}",
                target.host, target.port, target.authority, target.path
            ),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected, "{address}");
    }

    #[test]
    fn addresses_name_host_port_and_path() {
        check("http://engine:8000", "engine 8000 engine:8000 /metrics");
        check("http://engine:8000/", "engine 8000 engine:8000 /metrics");
        check(
            "http://10.0.0.1:9400/custom/metrics",
            "10.0.0.1 9400 10.0.0.1:9400 /custom/metrics",
        );
        check(
            "http://[fd00::7]:8000",
            "fd00::7 8000 [fd00::7]:8000 /metrics",
        );
        check("http://user:secret@engine", "engine 80 engine /metrics");
    }

    #[test]
    fn what_cannot_be_scraped_is_refused_with_the_way_out() {
        check(
            "engine",
            "metrics address \"engine\" is not http; engines serve their metrics without TLS",
        );
        check(
            "https://engine:8000",
            "metrics address \"https://engine:8000\" is not http; engines serve their metrics without TLS",
        );
        check(
            "http://engine/metrics?x=1",
            "metrics address \"http://engine/metrics?x=1\" has a query; give host, port and path only",
        );
        check(
            "::",
            "metrics address \"::\" is not a URL; write http://host:port or http://host:port/path",
        );
    }
}
