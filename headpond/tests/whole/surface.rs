//! What HTTP clients of every kind get, over real sockets: paths, methods, sizes, framing, browsers, both families.

use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::process::Running;
use crate::site::{PATIENT, Site, at_rest, chat};
use crate::wire::{self, Answer};

const FREE: &[(&str, &str)] = &[("guests", "[]")];
const FAST: [&str; 4] = ["--engines", "1", "--speed", "50"];

fn start(governance: &str) -> (Site, Running) {
    let site = Site::with(FREE, governance, PATIENT);
    let running = site.up(&FAST);
    (site, running)
}

/// One of each call, as small as it can be.
fn calls() -> Vec<(&'static str, Value)> {
    let message = json!([{ "role": "user", "content": "hello" }]);
    vec![
        (
            "/chat/completions",
            json!({ "model": "demo", "messages": message, "max_tokens": 2 }),
        ),
        (
            "/completions",
            json!({ "model": "demo", "prompt": "hello", "max_tokens": 2 }),
        ),
        ("/embeddings", json!({ "model": "demo", "input": "hello" })),
        (
            "/responses",
            json!({ "model": "demo", "input": "hello", "max_output_tokens": 2 }),
        ),
        (
            "/messages",
            json!({ "model": "demo", "messages": message, "max_tokens": 2 }),
        ),
        (
            "/messages/count_tokens",
            json!({ "model": "demo", "messages": message }),
        ),
        ("/tokenize", json!({ "model": "demo", "prompt": "hello" })),
        ("/detokenize", json!({ "model": "demo", "tokens": [1, 2] })),
    ]
}

fn assert_shape(answer: &Answer, path: &str, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{path}: {}", answer.text());
    assert_eq!(answer.header("content-type"), "application/json", "{path}");
    assert_eq!(
        answer.header("x-headpond-reason"),
        code,
        "{path}: {}",
        answer.text()
    );
    assert!(!answer.header("x-request-id").is_empty(), "{path}");
    let error = answer.json();
    if path.contains("messages") {
        assert_eq!(error["type"], "error", "{path}: {error}");
        assert_eq!(
            error["request_id"],
            answer.header("request-id"),
            "{path}: {error}"
        );
        assert!(
            error["error"]["type"].is_string() && error["error"]["message"].is_string(),
            "{path}: {error}"
        );
    } else {
        assert_eq!(error["error"]["code"], code, "{path}: {error}");
        for member in ["message", "type"] {
            assert!(error["error"][member].is_string(), "{path}: {error}");
        }
        assert!(error["error"].get("param").is_some(), "{path}: {error}");
    }
}

#[tokio::test]
async fn every_call_is_served_with_and_without_its_version() {
    let (site, running) = start("");
    let key = site.key("guests");
    for (path, body) in calls() {
        for prefix in ["", "/v1"] {
            let url = format!("{}{prefix}{path}", running.url());
            let answer = wire::send(Method::POST, &url, &key, body.to_string())
                .await
                .expect("an answer");
            assert_eq!(answer.status, 200, "{prefix}{path}: {}", answer.text());
            assert!(!answer.header("x-request-id").is_empty(), "{path}");
        }
    }
    // The call is known and admitted; that engine has no such model, and says so in its own words.
    let rerank = json!({ "model": "demo", "query": "a", "documents": ["b"] });
    let answer = wire::send(
        Method::POST,
        &format!("{}/v1/rerank", running.url()),
        &key,
        rerank.to_string(),
    )
    .await;
    assert_eq!(answer.expect("an answer").status, 404);
    for path in [
        "/v1/models",
        "/models",
        "/v1/models/demo",
        "/models/demo",
        "/v1/models/alias",
    ] {
        let answer = wire::send(Method::GET, &format!("{}{path}", running.url()), &key, "")
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(
            wire::get(&format!("{}{path}", running.url())).await.status,
            200,
            "{path}"
        );
    }
    at_rest(&running).await;
}

/// A request, and the refusal it gets: method, path, headers, body; status, code.
type Refusal<'a> = (
    Method,
    &'a str,
    &'a [(&'a str, &'a str)],
    &'a str,
    u16,
    &'a str,
);

#[tokio::test]
async fn refusals_have_the_shape_of_their_family() {
    let (site, running) = start("  max_body_bytes: 4096\n");
    let bearer = format!("Bearer {}", site.key("guests"));
    let json = ("content-type", "application/json");
    let key = ("authorization", bearer.as_str());
    let big = "x".repeat(5_000);
    let duplicate = r#"{"model":"demo","messages":[],"max_tokens":1,"max_tok\u0065ns":2}"#;
    let body = r#"{"model":"demo","messages":[{"role":"user","content":"a"}],"max_tokens":1}"#;
    let cases: &[Refusal<'_>] = &[
        (
            Method::POST,
            "/v1/nothing",
            &[json, key],
            "{}",
            404,
            "not_found",
        ),
        (
            Method::POST,
            "/v1/messages/nothing",
            &[json, key],
            "{}",
            404,
            "not_found",
        ),
        (
            Method::POST,
            "/v1//chat/completions",
            &[json, key],
            "{}",
            404,
            "not_found",
        ),
        (
            Method::GET,
            "/v1/models/nothing",
            &[key],
            "",
            404,
            "model_not_found",
        ),
        (
            Method::DELETE,
            "/v1/chat/completions",
            &[key],
            "",
            405,
            "method_not_allowed",
        ),
        (
            Method::GET,
            "/v1/messages",
            &[key],
            "",
            405,
            "method_not_allowed",
        ),
        (
            Method::POST,
            "/v1/models",
            &[json, key],
            "{}",
            405,
            "method_not_allowed",
        ),
        (
            Method::POST,
            "/v1/chat/completions",
            &[json, key],
            &big,
            413,
            "request_too_large",
        ),
        (
            Method::POST,
            "/v1/messages",
            &[json, key],
            &big,
            413,
            "request_too_large",
        ),
        (
            Method::POST,
            "/v1/chat/completions",
            &[("content-type", "text/plain"), key],
            body,
            415,
            "unsupported_media_type",
        ),
        (
            Method::POST,
            "/v1/messages",
            &[json, ("content-encoding", "gzip"), key],
            body,
            415,
            "unsupported_media_type",
        ),
        (
            Method::POST,
            "/v1/chat/completions",
            &[json, key],
            duplicate,
            400,
            "duplicate_key",
        ),
        (
            Method::POST,
            "/v1/messages",
            &[json, key],
            duplicate,
            400,
            "duplicate_key",
        ),
        (
            Method::POST,
            "/v1/chat/completions",
            &[json, key],
            "{",
            400,
            "invalid_json",
        ),
        (
            Method::POST,
            "/v1/chat/completions",
            &[json],
            body,
            401,
            "invalid_api_key",
        ),
        (
            Method::POST,
            "/v1/messages",
            &[json],
            body,
            401,
            "invalid_api_key",
        ),
        (
            Method::POST,
            "/v1/messages",
            &[json, key, ("x-api-key", "another")],
            body,
            401,
            "invalid_api_key",
        ),
    ];
    for (method, path, headers, body, status, code) in cases {
        let url = format!("{}{path}", running.url());
        let answer = wire::send_with(method.clone(), &url, headers, (*body).to_owned())
            .await
            .expect("an answer");
        assert_shape(&answer, path, *status, code);
        if *status == 405 {
            assert!(!answer.header("allow").is_empty(), "{path}");
        }
    }
    // The key in a query string opens nothing.
    let url = format!("{}/v1/models?api_key={}", running.url(), site.key("guests"));
    assert_shape(&wire::get(&url).await, "/v1/models", 401, "invalid_api_key");
    at_rest(&running).await;
}

#[tokio::test]
async fn anthropic_clients_use_their_own_headers() {
    let (site, running) = start("");
    let key = site.key("guests");
    let headers = [
        ("content-type", "application/json"),
        ("x-api-key", key.as_str()),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "something-new"),
    ];
    let url = format!("{}/v1/messages", running.url());
    let ask = json!({ "model": "demo", "max_tokens": 3, "messages": [{ "role": "user", "content": "hello" }] });
    let answer = wire::send_with(Method::POST, &url, &headers, ask.to_string())
        .await
        .expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["type"], "message");
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    let mut stream = ask.clone();
    stream["stream"] = Value::Bool(true);
    let open = wire::open_with(Method::POST, &url, &headers, stream.to_string())
        .await
        .expect("an answer");
    assert_eq!(
        open.header("content-type"),
        "text/event-stream; charset=utf-8"
    );
    let events = open.rest().await;
    assert!(
        events.starts_with("event: message_start\n") && events.contains("event: message_stop\n"),
        "{events}"
    );
}

#[tokio::test]
async fn large_bodies_arrive_whole() {
    let (site, running) = start("");
    let key = site.key("guests");
    // What no tokenizer could fit into the model's context is refused; other bytes of a body are only carried.
    for size in [5 << 20, 32 << 20] {
        let padding = " ".repeat(size);
        let body = format!(
            "{{\"model\":\"demo\",{padding}\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}],\"max_tokens\":2}}"
        );
        let url = format!("{}/v1/chat/completions", running.url());
        let answer = wire::send(Method::POST, &url, &key, body)
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200, "{size}: {}", answer.text());
    }
    let long = chat(&"word ".repeat(4 << 20), 2, false);
    let answer = wire::chat(running.url(), &key, &long).await;
    assert_shape(
        &answer,
        "/v1/chat/completions",
        400,
        "context_length_exceeded",
    );
    at_rest(&running).await;
}

fn raw(key: &str, version: &str, more: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST /v1/chat/completions {version}\r\nhost: l1\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{more}\r\n{body}"
    )
}

/// What comes before the answer proper: the server may ask whether anybody is there.
fn answer(text: &str) -> &str {
    text.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n")
}

#[tokio::test]
async fn old_and_unusual_clients_are_answered() {
    let (site, running) = start("");
    let key = site.key("guests");
    let (whole, stream) = (chat("hello", 2, false), chat("hello", 4, true));
    for body in [&whole, &stream] {
        // HTTP/1.0 knows no chunks: the end of the connection is the end of the answer.
        let old = wire::raw(running.url(), raw(&key, "HTTP/1.0", "", body).as_bytes()).await;
        assert!(
            old.contains(" 200 OK\r\n") && !old.to_lowercase().contains("transfer-encoding"),
            "{old}"
        );
        assert!(
            old.ends_with("data: [DONE]\n\n") || old.ends_with('}'),
            "{old}"
        );

        let mut half = TcpStream::connect(wire::split(running.url()).0)
            .await
            .expect("it listens");
        half.write_all(raw(&key, "HTTP/1.1", "", body).as_bytes())
            .await
            .expect("it reads");
        half.shutdown().await.expect("half closed");
        let text = wire::read_to_end(&mut half).await;
        assert!(answer(&text).starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("[DONE]") || text.ends_with('}'), "{text}");
    }
    let (head, body) = {
        let all = raw(
            &key,
            "HTTP/1.1",
            "expect: 100-continue\r\nconnection: close\r\n",
            &whole,
        );
        let at = all.find("\r\n\r\n").expect("a head") + 4;
        (all[..at].to_owned(), all[at..].to_owned())
    };
    let mut patient = TcpStream::connect(wire::split(running.url()).0)
        .await
        .expect("it listens");
    patient.write_all(head.as_bytes()).await.expect("it reads");
    wire::read_until(&mut patient, "HTTP/1.1 100 Continue\r\n\r\n").await;
    patient.write_all(body.as_bytes()).await.expect("it reads");
    let text = wire::read_to_end(&mut patient).await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    // With a bad key nobody asks for the body.
    let mut early = TcpStream::connect(wire::split(running.url()).0)
        .await
        .expect("it listens");
    early
        .write_all(head.replace(&key, "wrong").as_bytes())
        .await
        .expect("it reads");
    let text = wire::read_until(&mut early, "invalid_api_key").await;
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    at_rest(&running).await;
}

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_order() {
    let (site, running) = start("");
    let key = site.key("guests");
    let last = raw(
        &key,
        "HTTP/1.1",
        "connection: close\r\n",
        &chat("third", 2, false),
    );
    let all = [
        raw(&key, "HTTP/1.1", "", &chat("first", 2, false)),
        format!("GET /v1/models HTTP/1.1\r\nhost: l1\r\nauthorization: Bearer {key}\r\n\r\n"),
        last.clone(),
    ];
    let mut kept = TcpStream::connect(wire::split(running.url()).0)
        .await
        .expect("it listens");
    for request in &all[..2] {
        kept.write_all(request.as_bytes()).await.expect("it reads");
        let text = wire::read_until(&mut kept, "\"object\"").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    }
    // Nobody should send the next request before the answer; who does is answered all the same.
    let together = wire::raw(running.url(), all.concat().as_bytes()).await;
    assert_eq!(
        together.matches("HTTP/1.1 200 OK\r\n").count(),
        3,
        "{together}"
    );
    let order = ["chat.completion", "\"object\":\"list\"", "chat.completion"];
    let mut rest = together.as_str();
    for part in order {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part} in its place: {together}"));
        rest = &rest[at + part.len()..];
    }
    // A length that is said twice splits what one proxy and another see: refused, and the connection with it.
    let smuggled = raw(
        &key,
        "HTTP/1.1",
        "transfer-encoding: chunked\r\n",
        &chat("x", 2, false),
    ) + &last;
    let text = wire::raw(running.url(), smuggled.as_bytes()).await;
    assert!(
        text.starts_with("HTTP/1.1 400 ") && text.matches("HTTP/1.1 ").count() == 1,
        "{text}"
    );
    at_rest(&running).await;
}

#[tokio::test]
async fn head_is_answered_where_get_is() {
    let (site, running) = start("");
    let key = site.key("guests");
    for path in ["/v1/models", "/v1/models/demo"] {
        let url = format!("{}{path}", running.url());
        let get = wire::send(Method::GET, &url, &key, "")
            .await
            .expect("an answer");
        let head = wire::send(Method::HEAD, &url, &key, "")
            .await
            .expect("an answer");
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        assert_eq!(
            head.header("content-length"),
            get.body.len().to_string(),
            "{path}"
        );
    }
}

async fn preflight(running: &Running, path: &str, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    wire::send_with(
        Method::OPTIONS,
        &format!("{}{path}", running.url()),
        &headers,
        "",
    )
    .await
    .expect("an answer")
}

#[tokio::test]
async fn browsers_are_let_in_only_where_it_is_configured() {
    let (site, running) = start("");
    let refused = preflight(&running, "/v1/chat/completions", "https://app.example").await;
    assert_shape(&refused, "/v1/chat/completions", 403, "forbidden");
    assert!(
        refused.text().contains("cors.allowed_origins"),
        "{}",
        refused.text()
    );
    assert_eq!(refused.header("access-control-allow-origin"), "");
    drop((site, running));

    let (site, running) = start("  cors: { allowed_origins: ['https://app.example'] }\n");
    let allowed = preflight(&running, "/v1/messages", "https://app.example").await;
    assert_eq!(
        (
            allowed.status.as_u16(),
            allowed.header("access-control-allow-origin")
        ),
        (204, "https://app.example")
    );
    assert!(
        allowed
            .header("access-control-allow-headers")
            .contains("x-api-key")
    );
    let other = preflight(&running, "/v1/messages", "https://other.example").await;
    assert_shape(&other, "/v1/messages", 403, "forbidden");
    let bearer = format!("Bearer {}", site.key("guests"));
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
        ("origin", "https://app.example"),
    ];
    let url = format!("{}/v1/chat/completions", running.url());
    let answer = wire::send_with(
        Method::POST,
        &url,
        &headers,
        chat("hello", 2, false).to_string(),
    )
    .await
    .expect("an answer");
    assert_eq!(
        (
            answer.status.as_u16(),
            answer.header("access-control-allow-origin")
        ),
        (200, "https://app.example")
    );
}
