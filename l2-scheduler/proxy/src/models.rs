//! The engines' list of models, from the endpoint with the least to do.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use inference_wire::json::{Document, Value};
use inference_wire::route::Route;
use scheduler_core::{EndpointSnapshot, EndpointState};

use crate::answer::{Code, Problem};
use crate::body::Body;
use crate::proxy::Shared;
use crate::upstream::Outbound;

/// A longer list is refused.
const LIST_BYTES: usize = 4 << 20;
/// Nothing has to be computed for it; an engine that takes longer is passed over.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers `GET /v1/models`, and with an id `GET /v1/models/{id}`.
pub(crate) async fn answer(shared: &Arc<Shared>, id: Option<&str>) -> Response<Body> {
    match list(shared).await {
        Ok(list) => match id {
            Some(id) => one(&list, id),
            None => json(list),
        },
        Err(problem) => problem.into_response(),
    }
}

async fn list(shared: &Arc<Shared>) -> Result<Bytes, Problem> {
    let mut endpoints = shared.dispatcher.snapshot().endpoints;
    endpoints.retain(|endpoint| endpoint.state == EndpointState::Ready);
    endpoints.sort_by_key(|endpoint| (endpoint.effective_load, endpoint.id));
    if endpoints.is_empty() {
        return Err(Problem::new(Code::NoEndpoint, "no endpoint is ready"));
    }
    for endpoint in endpoints.iter().take(shared.config.attempts as usize) {
        let fetched = tokio::time::timeout(LIST_TIMEOUT, fetch(shared, endpoint));
        if let Ok(Some(list)) = fetched.await {
            return Ok(list);
        }
    }
    Err(Problem::new(
        Code::UpstreamError,
        "no engine gave its list of models",
    ))
}

async fn fetch(shared: &Shared, endpoint: &EndpointSnapshot) -> Option<Bytes> {
    let outbound = Outbound {
        method: Method::GET,
        path: Route::Models.upstream_path(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    let upstream = &shared.endpoints[endpoint.id.0 as usize].upstream;
    let answer = upstream.exchange(&outbound).await.ok()?;
    if answer.head.status != StatusCode::OK {
        return None;
    }
    answer.body.read_short(LIST_BYTES).await
}

fn one(list: &Bytes, id: &str) -> Response<Body> {
    let found = Document::parse(list).ok().and_then(|document| {
        let models = document.root().get("data")?;
        let named =
            |model: &Value<'_>| model.get("id").and_then(Value::as_str).as_deref() == Some(id);
        models.elements().find(named).map(Value::span)
    });
    match found {
        Some(span) => json(list.slice(span)),
        None => Problem::new(Code::ModelNotFound, "the model does not exist").into_response(),
    }
}

fn json(body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
