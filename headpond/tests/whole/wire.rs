//! A plain HTTP client for tests: hyper, one connection per request, nothing hidden.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Longest anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// An address of this machine for listeners that come one after the other: between them nobody else is given it, and
/// nobody is there.
pub(crate) struct Address {
    _bound: TcpSocket,
    pub(crate) text: String,
}

impl Address {
    pub(crate) fn new() -> Self {
        let bound = TcpSocket::new_v4().expect("a socket");
        // A listener that says the same may bind to it as well.
        bound.set_reuseaddr(true).expect("a setting");
        let any = "127.0.0.1:0".parse().expect("an address");
        bound.bind(any).expect("a free port");
        let text = bound.local_addr().expect("bound").to_string();
        Self {
            _bound: bound,
            text,
        }
    }
}

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
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("visible ASCII"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn code(&self) -> String {
        self.json()
            .pointer("/error/code")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }
}

/// An answer whose body is still coming. Dropping it closes the connection.
pub(crate) struct Open {
    pub(crate) response: http::Response<Incoming>,
    _connection: JoinSet<()>,
}

impl Open {
    /// The next piece of the body; `None` at its end, and where the connection broke.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.response.body_mut().frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                return Some(data);
            }
        }
    }

    /// What is left of the body, as far as it comes.
    pub(crate) async fn rest(mut self) -> String {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await {
            all.extend_from_slice(&piece);
        }
        String::from_utf8(all).expect("UTF-8")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.response
            .headers()
            .get(name)
            .map_or("", |value| value.to_str().expect("visible ASCII"))
    }
}

pub(crate) async fn open(
    method: Method,
    url: &str,
    key: &str,
    body: impl Into<Bytes>,
) -> Option<Open> {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
    ];
    let headers = if key.is_empty() {
        &headers[..1]
    } else {
        &headers
    };
    open_with(method, url, headers, body).await
}

/// As [`open`], with exactly these headers besides `host` and the length.
pub(crate) async fn open_with(
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Option<Open> {
    let (authority, path) = split(url);
    let stream = TcpStream::connect(authority).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    let mut background = JoinSet::new();
    background.spawn(async move {
        let _ = connection.await;
    });
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", authority);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::new(body.into()))
        .expect("a valid request");
    let response = sender.send_request(request).await.ok()?;
    Some(Open {
        response,
        _connection: background,
    })
}

/// One exchange; `None` if the connection broke.
pub(crate) async fn send(
    method: Method,
    url: &str,
    key: &str,
    body: impl Into<Bytes>,
) -> Option<Answer> {
    whole(open(method, url, key, body).await?).await
}

/// As [`send`], with exactly these headers besides `host` and the length.
pub(crate) async fn send_with(
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Option<Answer> {
    whole(open_with(method, url, headers, body).await?).await
}

async fn whole(open: Open) -> Option<Answer> {
    let Open {
        response,
        _connection,
    } = open;
    let (head, body) = response.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    Some(Answer {
        status: head.status,
        headers: head.headers,
        body,
    })
}

/// Bytes as they are, and everything that comes back until the server closes.
pub(crate) async fn raw(url: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(split(url).0)
        .await
        .expect("the server listens");
    // A server may refuse, and close, before it has read everything.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream).await
}

/// Everything until the server closes; a reset after the answer is as good as an end.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads until the text has come.
pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let count = stream.read(&mut buffer).await.expect("the server answers");
        assert!(count > 0, "closed before {text:?}: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    seen
}

/// Looks again and again until there is something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{what} did not happen within {PATIENCE:?}"
        );
        tokio::task::yield_now().await;
    }
}

/// The sum of a metric over its labels; zero if the page does not have it.
pub(crate) fn metric(page: &str, name: &str) -> i64 {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let own = series.split('{').next() == Some(name);
        own.then(|| value.parse::<f64>().expect("a sample is a number") as i64)
    });
    values.sum()
}

pub(crate) async fn get(url: &str) -> Answer {
    send(Method::GET, url, "", Bytes::new())
        .await
        .expect("an answer")
}

/// A chat completion.
pub(crate) async fn chat(url: &str, key: &str, body: &Value) -> Answer {
    send(
        Method::POST,
        &format!("{url}/v1/chat/completions"),
        key,
        body.to_string(),
    )
    .await
    .expect("an answer")
}

pub(crate) fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").expect("an http URL");
    rest.find('/')
        .map_or((rest, "/"), |slash| rest.split_at(slash))
}
