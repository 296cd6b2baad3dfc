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

/// Why an address cannot be that of a scheduler.
#[derive(Debug, thiserror::Error)]
#[error("{url:?} is not the address of a scheduler: use http://host:port without a path")]
pub struct RemoteConfigError {
    url: String,
}

impl RemoteScheduler {
    /// A scheduler at `http://host:port`, trusting tokens of `signer`.
    pub fn new(url: &str, signer: Signer) -> Result<Self, RemoteConfigError> {
        let refuse = || RemoteConfigError {
            url: url.to_owned(),
        };
        let parts = url.parse::<Uri>().map_err(|_| refuse())?.into_parts();
        let bare = parts.path_and_query.is_none_or(|path| path == "/");
        match (parts.scheme, parts.authority) {
            (Some(scheme), Some(authority)) if scheme == Scheme::HTTP && bare => {
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
            _ => Err(refuse()),
        }
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

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
