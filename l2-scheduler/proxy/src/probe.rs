//! Asks a quarantined engine for one token: health pages answer even when nothing is computed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use scheduler_core::Input;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::dispatcher::Dispatcher;
use crate::metrics::Metrics;
use crate::proxy::Endpoint;
use crate::upstream::Outbound;

/// One token takes no longer, unless the engine is not fit for more either.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// One token is not more.
const ANSWER_BYTES: usize = 1 << 20;

/// Runs the probes that the pool asks for, each on its own task. Ends when the pool is gone.
pub(crate) async fn run(
    dispatcher: Arc<Dispatcher>,
    endpoints: Arc<[Endpoint]>,
    metrics: Arc<Metrics>,
    mut wanted: mpsc::Receiver<scheduler_core::EndpointId>,
    hung_silence: Duration,
    tasks: TaskTracker,
) {
    while let Some(id) = wanted.recv().await {
        metrics.endpoint(id.0 as usize).probes.inc();
        let dispatcher = Arc::clone(&dispatcher);
        let endpoints = Arc::clone(&endpoints);
        tasks.spawn(async move {
            let endpoint = &endpoints[id.0 as usize];
            let sign = tokio::time::timeout(PROBE_TIMEOUT, sign_of(endpoint))
                .await
                .unwrap_or(Sign::None);
            dispatcher.feed(Input::Probed {
                endpoint: id,
                ok: sign == Sign::Computes,
            });
            if sign == Sign::None {
                dispatcher.cut_silent(id, hung_silence);
            }
        });
    }
}

/// What a probe shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// It computes. A refusal by its own judgement shows that as well.
    Computes,
    /// It answers, and fails.
    Fails,
    /// Nothing came back.
    None,
}

async fn sign_of(endpoint: &Endpoint) -> Sign {
    let mut body = serde_json::json!({ "prompt": "0", "max_tokens": 1 });
    if let Some(model) = &endpoint.probe_model {
        body["model"] = serde_json::Value::from(model.as_str());
    }
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let outbound = Outbound {
        method: Method::POST,
        path: "/v1/completions",
        headers,
        body: Bytes::from(body.to_string()),
    };
    let Ok(answer) = endpoint.upstream.exchange(&outbound).await else {
        return Sign::None;
    };
    let fails = answer.head.status.is_server_error();
    match answer.body.read_short(ANSWER_BYTES).await {
        Some(_) if !fails => Sign::Computes,
        Some(_) | None => Sign::Fails,
    }
}
