//! The HTTP entry of `headpond schedule`: reads the request, asks [`trust`](crate::trust) who it is from, and calls.

use bytes::Bytes;
use governance_context::Context;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use inference_wire::gather::{Gather, TooLarge};

use crate::answer::{Code, Problem};
use crate::body::Body;
use crate::config::Config;
use crate::peers;
use crate::proxy::SchedulerProxy;
use crate::trust::Expected;

/// A body up to this size may be read before its sender is known.
const LITTLE_BYTES: u64 = 1 << 20;

impl SchedulerProxy {
    /// Answers a request that came over HTTP.
    pub async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/livez" => return health(&request, true, "alive"),
            "/readyz" => {
                let ready = self.is_ready();
                let text = if ready {
                    "ready"
                } else {
                    "no endpoint is ready"
                };
                return health(&request, ready, text);
            }
            peers::PATH => return self.hear_peer(request).await,
            _ => {}
        }
        let (head, body) = request.into_parts();
        match self.admitted(&head.headers, body).await {
            Ok((context, body)) => self.call(context, Request::from_parts(head, body)).await,
            Err(problem) => self.refuse(problem),
        }
    }

    async fn admitted(
        &self,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<(Context, Bytes), Problem> {
        self.judge_head(headers, expected(&body))?;
        let config = self.config();
        let body = tokio::time::timeout(config.timeouts.body_read, read(body, config.body_limit))
            .await
            .unwrap_or(Err(Unread::Late))
            .map_err(|unread| unread.problem(config))?;
        Ok((self.context(headers, &body)?, body))
    }
}

/// Why there is no body.
enum Unread {
    TooLarge,
    Broken,
    Late,
}

impl Unread {
    fn problem(&self, config: &Config) -> Problem {
        let (code, message) = match self {
            Self::TooLarge => (
                Code::RequestTooLarge,
                format!("the body is larger than {} bytes", config.body_limit),
            ),
            Self::Broken => (Code::InvalidRequest, "the body ended early".to_owned()),
            Self::Late => (
                Code::RequestTimeout,
                format!(
                    "the body was not complete within {} ms",
                    config.timeouts.body_read.as_millis()
                ),
            ),
        };
        Problem::new(code, message)
    }
}

fn expected(body: &Incoming) -> Expected {
    match body.size_hint().upper() {
        Some(bytes) if bytes <= LITTLE_BYTES => Expected::Little,
        Some(_) | None => Expected::Much,
    }
}

async fn read(mut body: Incoming, limit: usize) -> Result<Bytes, Unread> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut gather = Gather::new(limit, announced)?;
    while let Some(frame) = body.frame().await {
        // Trailers carry nothing that is read here.
        if let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() {
            gather.push(data)?;
        }
    }
    Ok(gather.finish())
}

impl From<TooLarge> for Unread {
    fn from(_: TooLarge) -> Self {
        Self::TooLarge
    }
}

fn health(request: &Request<Incoming>, good: bool, text: &'static str) -> Response<Body> {
    if *request.method() != Method::GET && *request.method() != Method::HEAD {
        return Problem::new(Code::MethodNotAllowed, "use GET").into_response();
    }
    let mut response = Response::new(Body::whole(Bytes::from_static(text.as_bytes())));
    if !good {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("text/plain"),
    );
    response
}
