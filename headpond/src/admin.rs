//! The admin listener: metrics, decision records, and what governance offers operators. Never on the request path.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use governance_context::{RequestId, names};
use governance_proxy::{Governance, Scheduler};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use scheduler_proxy::SchedulerProxy;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::listener;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of an admin answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;
type Answer<'a> = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Operators' answers are short.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Most records that one request lists.
const MOST_RECORDS: usize = 1_000;

/// What the admin listener needs of governance, whatever it calls.
pub(crate) trait Governs: Send + Sync {
    fn record(&self, id: &RequestId) -> Option<Value>;
    fn latest(&self, count: usize) -> Vec<Value>;
    fn metrics(&self, page: &mut String);
    fn administer(&self, request: Request<Incoming>) -> Answer<'_>;
}

impl<S: Scheduler> Governs for Governance<S> {
    fn record(&self, id: &RequestId) -> Option<Value> {
        Self::record(self, id).map(|record| plain(&*record))
    }

    fn latest(&self, count: usize) -> Vec<Value> {
        self.records(count)
            .iter()
            .map(|record| plain(&**record))
            .collect()
    }

    fn metrics(&self, page: &mut String) {
        self.encode_metrics(page);
    }

    fn administer(&self, request: Request<Incoming>) -> Answer<'_> {
        Box::pin(async move {
            self.admin(request)
                .await
                .map(|body| body.map_err(BoxError::from).boxed_unsync())
        })
    }
}

fn plain(record: &impl serde::Serialize) -> Value {
    serde_json::to_value(record).expect("a record is plain data")
}

/// The layers of this process, as the admin listener sees them.
#[derive(Clone)]
pub(crate) struct Surface {
    pub(crate) governance: Option<Arc<dyn Governs>>,
    pub(crate) scheduler: Option<SchedulerProxy>,
}

impl Surface {
    /// Answers operators until `stop`.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let handle = move |request| self.clone().handle(request);
        listener::serve(listener, handle, stop, LAST_ANSWERS).await;
    }

    async fn handle(self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == scheduler_proxy::peers::PATH
            && let Some(scheduler) = &self.scheduler
        {
            return scheduler.hear_peer(request).await.map(boxed);
        }
        let is_ours = path.starts_with("/admin/v1/decisions") || path == "/admin/v1/pools";
        if path.starts_with("/admin/v1/") && !is_ours {
            return match &self.governance {
                Some(governance) => governance.administer(request).await,
                None => error(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    "governance does not run in this process; ask the admin listener of `headpond govern`",
                ),
            };
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return error(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "use GET",
            );
        }
        match path {
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" => self.ready(),
            "/metrics" => self.metrics(),
            "/admin/v1/pools" => self.pools(),
            "/admin/v1/decisions" => self.latest(request.uri().query()),
            _ => match path.strip_prefix("/admin/v1/decisions/") {
                Some(id) => self.decision(id),
                None => error(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    "try /metrics, /readyz, /admin/v1/decisions/<request id>, /admin/v1/pools, /admin/v1/keys or /admin/v1/accounts",
                ),
            },
        }
    }

    fn ready(&self) -> Response<Body> {
        match &self.scheduler {
            Some(scheduler) if !scheduler.is_ready() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "no endpoint is ready\n")
            }
            _ => text(StatusCode::OK, "ready\n"),
        }
    }

    fn metrics(&self) -> Response<Body> {
        let mut page = String::with_capacity(16 << 10);
        if let Some(governance) = &self.governance {
            governance.metrics(&mut page);
        }
        if let Some(scheduler) = &self.scheduler {
            scheduler.encode_metrics(&mut page);
        }
        // Each layer's page may end with its own end marker; the whole has one.
        page = page.replace("# EOF\n", "");
        page.push_str("# EOF\n");
        let mut response = Response::new(full(page));
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
        response
    }

    fn pools(&self) -> Response<Body> {
        let pools: Vec<Value> = self.scheduler.iter().map(SchedulerProxy::state).collect();
        json_answer(StatusCode::OK, &json!({ "pools": pools }))
    }

    fn latest(&self, query: Option<&str>) -> Response<Body> {
        let count = query
            .and_then(|query| {
                query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("count="))
            })
            .map_or(Ok(20), str::parse::<usize>);
        let Ok(count) = count else {
            return error(
                StatusCode::BAD_REQUEST,
                "invalid_value",
                "count must be a number from 1 to 1000",
            );
        };
        let records = self
            .governance
            .as_ref()
            .map(|governance| governance.latest(count.clamp(1, MOST_RECORDS)));
        json_answer(
            StatusCode::OK,
            &json!({ "decisions": records.unwrap_or_default() }),
        )
    }

    fn decision(&self, id: &str) -> Response<Body> {
        let Ok(id) = id.parse::<RequestId>() else {
            return error(
                StatusCode::BAD_REQUEST,
                "invalid_value",
                "a request id is the UUID that an answer has in x-request-id",
            );
        };
        let governance = self
            .governance
            .as_ref()
            .and_then(|governance| governance.record(&id));
        let scheduling = self
            .scheduler
            .as_ref()
            .and_then(|scheduler| scheduler.records(&id));
        if governance.is_none() && scheduling.is_none() {
            return error(
                StatusCode::NOT_FOUND,
                "not_found",
                "no record of this request here: it never came, it is still open, or it has left the ring of the latest requests",
            );
        }
        json_answer(
            StatusCode::OK,
            &json!({ "request": id, "governance": governance, "scheduling": scheduling }),
        )
    }
}

fn boxed(body: scheduler_proxy::Body) -> Body {
    body.boxed_unsync()
}

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn error(status: StatusCode, code: &'static str, message: &str) -> Response<Body> {
    let mut response = json_answer(
        status,
        &json!({ "error": { "message": message, "code": code } }),
    );
    let reason = HeaderValue::from_static(code);
    response.headers_mut().insert(names::REASON, reason);
    response
}
