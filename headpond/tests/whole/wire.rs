//! A plain HTTP client for tests: hyper, one connection per request, nothing hidden.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("visible ASCII"))
    }

    pub(crate) fn code(&self) -> String {
        self.json().pointer("/error/code").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

/// An answer whose body is still coming. Dropping it closes the connection.
pub(crate) struct Open {
    pub(crate) response: http::Response<Incoming>,
    _connection: JoinSet<()>,
}

pub(crate) async fn open(method: Method, url: &str, key: &str, body: impl Into<Bytes>) -> Option<Open> {
    let (authority, path) = split(url);
    let stream = TcpStream::connect(authority).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let mut background = JoinSet::new();
    background.spawn(async move {
        let _ = connection.await;
    });
    let mut request = Request::builder().method(method).uri(path).header("host", authority).header("content-type", "application/json");
    if !key.is_empty() {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(Full::new(body.into())).expect("a valid request");
    let response = sender.send_request(request).await.ok()?;
    Some(Open { response, _connection: background })
}

/// One exchange; `None` if the connection broke.
pub(crate) async fn send(method: Method, url: &str, key: &str, body: impl Into<Bytes>) -> Option<Answer> {
    let Open { response, _connection } = open(method, url, key, body).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    Some(Answer { status: head.status, headers: head.headers, body })
}

pub(crate) async fn get(url: &str) -> Answer {
    send(Method::GET, url, "", Bytes::new()).await.expect("an answer")
}

/// A chat completion.
pub(crate) async fn chat(url: &str, key: &str, body: &Value) -> Answer {
    send(Method::POST, &format!("{url}/v1/chat/completions"), key, body.to_string()).await.expect("an answer")
}

fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").expect("an http URL");
    rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash))
}
