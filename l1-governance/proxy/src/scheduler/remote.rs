//! L2 in another process: the context travels as a signed token, the body's digest inside it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use governance_context::{Context, Signer, names};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::combinators::MapErr;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::{Reached, Scheduler, Unreachable};
use crate::body::BoxError;

const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const IDLE_PER_HOST: usize = 256;

/// Calls a `headpond schedule` over HTTP.
pub struct RemoteScheduler {
    client: Client<HttpConnector, Full<Bytes>>,
    authority: Authority,
    signer: Signer,
}

/// An address cannot be that of a scheduler. What was written is not repeated: a password may stand in it.
#[derive(Debug, thiserror::Error)]
#[error("not the address of a scheduler; use http://host:port without user, password and path")]
pub struct RemoteConfigError;

impl RemoteScheduler {
    /// A scheduler at `http://host:port`, trusting tokens of `signer`.
    pub fn new(url: &str, signer: Signer) -> Result<Self, RemoteConfigError> {
        let authority = authority(url).ok_or(RemoteConfigError)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .pool_idle_timeout(Duration::from_mins(1))
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self {
            client,
            authority,
            signer,
        })
    }

    /// Whether [`RemoteScheduler::new`] would take the address.
    pub fn check(url: &str) -> Result<(), RemoteConfigError> {
        authority(url).map(drop).ok_or(RemoteConfigError)
    }

    fn address(&self, path: Option<&PathAndQuery>) -> Uri {
        let path = path
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .expect("scheme, authority and path are each valid")
    }
}

impl Scheduler for RemoteScheduler {
    type Body = MapErr<Incoming, fn(hyper::Error) -> BoxError>;

    async fn call(
        &self,
        context: &Context,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Self::Body>, Unreachable> {
        let token = self
            .signer
            .sign(context, unix_seconds(), Some(request.body()));
        let (mut parts, body) = request.into_parts();
        parts.uri = self.address(parts.uri.path_and_query());
        parts.version = http::Version::HTTP_11;
        let token = http::HeaderValue::from_str(&token).expect("a compact token is ASCII");
        parts.headers.insert(names::CONTEXT, token);
        let request = http::Request::from_parts(parts, Full::new(body));
        match self.client.request(request).await {
            Ok(response) => {
                Ok(response
                    .map(|body| body.map_err(BoxError::from as fn(hyper::Error) -> BoxError)))
            }
            Err(error) => {
                let reached = if error.is_connect() {
                    Reached::No
                } else {
                    Reached::Perhaps
                };
                Err(Unreachable {
                    reached,
                    source: error.into(),
                })
            }
        }
    }
}

fn authority(url: &str) -> Option<Authority> {
    let parts = url.parse::<Uri>().ok()?.into_parts();
    let authority = parts.authority?;
    let is_bare = parts.path_and_query.is_none_or(|path| path == "/");
    let is_port = authority.as_str() == authority.host()
        || authority.port_u16().is_some_and(|port| port != 0);
    let is_http = parts.scheme == Some(Scheme::HTTP);
    (is_http
        && is_bare
        && is_port
        && !authority.host().is_empty()
        && !authority.as_str().contains('@'))
    .then_some(authority)
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port_and_what_it_is_not_is_not_repeated() {
        for good in [
            "http://127.0.0.1:8081",
            "http://scheduler",
            "http://[::1]:8081/",
        ] {
            assert!(RemoteScheduler::check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "scheduler:8081",
            "https://scheduler:8081",
            "http://scheduler:8081/v1",
            "http://scheduler:0",
            "http://scheduler:99999",
            "http://user:hush@scheduler:8081",
            "hush",
        ] {
            let error = RemoteScheduler::check(bad).expect_err(bad);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
