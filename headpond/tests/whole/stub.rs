//! An engine that answers with little and remembers everything it received.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const METRICS: &str = "# TYPE vllm:num_requests_running gauge\n\
    vllm:num_requests_running{engine=\"0\",model_name=\"demo\"} 0\n\
    vllm:num_requests_waiting{engine=\"0\",model_name=\"demo\"} 0\n\
    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"demo\"} 0\n";
const MODELS: &str =
    r#"{"object":"list","data":[{"id":"demo","object":"model","max_model_len":131072}]}"#;
const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
const WHOLE: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;

/// Locked for a push by a connection and for a look by the test.
type Seen = Arc<Mutex<Vec<Request<Bytes>>>>;

/// A running engine. Dropped, it is gone.
pub(crate) struct Stub {
    pub(crate) url: String,
    seen: Seen,
    _serving: JoinSet<()>,
}

impl Stub {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Seen::default();
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&seen)));
        Self {
            url,
            seen,
            _serving: serving,
        }
    }

    /// The requests for answers so far.
    pub(crate) fn seen(&self) -> Vec<Request<Bytes>> {
        self.seen.lock().expect("no panic").clone()
    }
}

async fn serve(listener: TcpListener, seen: Seen) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let seen = Arc::clone(&seen);
        let service = service_fn(move |request| answer(Arc::clone(&seen), request));
        connections.spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(seen: Seen, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let (kind, text) = match head.uri.path() {
        "/metrics" => ("text/plain", METRICS),
        "/v1/models" => ("application/json", MODELS),
        "/health" => ("text/plain", ""),
        // Probes and the like.
        _ if head.method != Method::POST => ("text/plain", ""),
        _ => {
            let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
            seen.lock()
                .expect("no panic")
                .push(Request::from_parts(head, body));
            match asked["stream"].as_bool() {
                Some(true) => ("text/event-stream; charset=utf-8", STREAM),
                _ => ("application/json", WHOLE),
            }
        }
    };
    let response = Response::builder()
        .header("content-type", kind)
        .body(Full::from(text));
    Ok(response.expect("a valid response"))
}
