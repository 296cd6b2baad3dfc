//! Where an engine is: an `http://` address, parsed once.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderValue, Uri};

/// Host, port and base path of an `http://` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Name or address; IPv6 without brackets. A name is resolved at every connect.
    pub host: String,
    pub port: u16,
    /// What the `host` header says.
    pub authority: HeaderValue,
    /// Path put before every request's own, without a slash at its end; usually empty.
    pub base: String,
}

impl Origin {
    /// Reads `http://host[:port][/base]`; says what is allowed otherwise.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url
            .parse()
            .map_err(|_| "http://host:port, with an IPv6 address in brackets")?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(
                    "http://host:port; TLS to engines is not supported, put a TLS-terminating proxy beside the engine",
                );
            }
            Some(_) | None => return Err("http://host:port, including the http://"),
        }
        let authority = uri.authority().ok_or("http://host:port")?;
        if authority.as_str().contains('@') {
            return Err("http://host:port without user or password");
        }
        if uri.query().is_some() {
            return Err("http://host:port without a query");
        }
        let base = uri.path().trim_end_matches('/');
        // What an SDK calls its base URL: requests would go to `/v1/v1/...`.
        if base.ends_with("/v1") {
            return Err(
                "http://host:port without the /v1, with which the path of a request begins",
            );
        }
        let host = authority.host();
        if host.is_empty() {
            return Err("http://host:port with a host");
        }
        let port = match authority.port() {
            Some(port) => port.as_str().parse().ok().filter(|port| *port != 0),
            None if authority.as_str() == host => Some(80),
            None => None,
        };
        Ok(Self {
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: port.ok_or("http://host:port with a port from 1 to 65535")?,
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| "http://host:port in visible ASCII")?,
            base: base.to_owned(),
        })
    }

    /// Whether requests to both arrive at the same place, however it is written.
    pub(super) fn is_same_place(&self, other: &Self) -> bool {
        (Host::of(&self.host), self.port, &self.base)
            == (Host::of(&other.host), other.port, &other.base)
    }
}

/// A host, however it is written. What a name resolves to is not asked: it may change.
#[derive(PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Host {
    fn of(text: &str) -> Self {
        match text.parse::<IpAddr>().ok().or_else(|| old_form(text)) {
            // An IPv4 address has a second form, as an IPv6 address.
            Some(address) => Self::Address(address.to_canonical()),
            // With a dot at its end it is the same name, only that nothing is appended to it.
            None => Self::Name(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()),
        }
    }
}

/// An IPv4 address in one of the forms that resolvers still take: `127.1`, `0x7f.1`, `2130706433`.
fn old_form(text: &str) -> Option<IpAddr> {
    let number = |text: &str| {
        let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
            (Some(hexadecimal), _) => (hexadecimal, 16),
            (None, Some(octal)) if !octal.is_empty() => (octal, 8),
            (None, _) => (text, 10),
        };
        u32::from_str_radix(digits, radix).ok()
    };
    let parts: Vec<u32> = text.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    let mut address = *last;
    for (part, shift) in first.iter().zip([24, 16, 8]) {
        address |= u8::try_from(*part).map(u32::from).ok()? << shift;
    }
    // The last part is all that the others leave.
    let room = 32_u32
        .checked_sub(8 * first.len() as u32)
        .filter(|room| *room > 0)?;
    (u64::from(*last) < 1 << room).then(|| IpAddr::V4(address.into()))
}

/// An address as messages show it: without user and password, and without a query, in which a token may stand.
pub(super) fn shown(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        Some((url, _)) => (url, "?..."),
        None => (url, ""),
    };
    let start = url.find("//").map_or(0, |at| at + 2);
    match url.rfind('@').filter(|at| *at >= start) {
        Some(at) => format!("{}...{}{query}", &url[..start], &url[at..]),
        None => format!("{url}{query}"),
    }
}

/// The URL again, with the port written out.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "http://[{}]:{}{}", self.host, self.port, self.base)
        } else {
            write!(f, "http://{}:{}{}", self.host, self.port, self.base)
        }
    }
}
