//! The HTTP entry: who is let in, what is taken off, how large a body may be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use governance_context::{Context, Key, KeyId, KeyRing, Signer};
use http::{Request, header};
use scheduler_proxy::SchedulerProxy;
use serde_json::json;

use crate::front::Front;
use crate::rig::{LIMIT, assert_at_rest, completion_request, context, metric, post, proxy_with};
use crate::stub::{Place, Stub, completion, json as answer_json};

fn ring(secret: u8) -> KeyRing {
    let kid = KeyId::new("k1").expect("a name");
    KeyRing::single(kid, Key::shared(&[secret; 32]).expect("a long secret"))
}

fn signer() -> Signer {
    ring(1).signer().expect("a shared key signs")
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

fn signed(context: &Context, request: Request<Bytes>) -> Request<Bytes> {
    let token = signer().sign(context, now(), Some(request.body()));
    with(request, "x-headpond-context", &token)
}

fn with(mut request: Request<Bytes>, name: &'static str, value: &str) -> Request<Bytes> {
    let value = value.parse().expect("a header value");
    request.headers_mut().append(name, value);
    request
}

async fn front(engine: &Stub, settings: serde_json::Value) -> (Front, SchedulerProxy) {
    let proxy = proxy_with(&[engine], settings);
    proxy.set_verifier(ring(1).verifier("default".parse().expect("a name")));
    (Front::start(proxy.clone()).await, proxy)
}

#[tokio::test]
async fn a_signed_request_is_served_and_nothing_of_ours_reaches_the_engine() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, proxy) = front(&engine, json!({})).await;
    let mut request = signed(&context(1), completion_request());
    for (name, value) in [
        ("x-gateway-destination-endpoint", "10.0.0.1:9"),
        ("x-gateway-inference-fairness-id", "me"),
        ("x-data-parallel-rank", "3"),
        ("authorization", "Bearer secret"),
        ("cookie", "a=b"),
    ] {
        request = with(request, name, value);
    }
    let answer = front.ask(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let seen = engine.request(0);
    let mut names: Vec<&str> = seen
        .headers()
        .keys()
        .map(header::HeaderName::as_str)
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["content-length", "content-type", "host", "x-request-id"]
    );
    assert_eq!(
        seen.headers()["x-request-id"],
        context(1).attempt.to_string().as_str()
    );
    assert_eq!(seen.headers()["host"], engine.address.to_string().as_str());
    assert!(proxy.records(&context(1).request).is_some());
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn contexts_that_are_not_ours_are_refused_and_counted() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, proxy) = front(&engine, json!({})).await;
    let request = completion_request;
    let foreign = ring(2).signer().expect("it signs");
    let other_pool = Context {
        pool: "other".parse().expect("a name"),
        ..context(1)
    };
    let body: &[u8] = b"{\"model\":\"m\",\"prompt\":\"other\"}";
    let token = |token: String| with(request(), "x-headpond-context", &token);
    let first = signed(&context(5), request());
    assert_eq!(front.ask(first.clone()).await.status, 200);
    for (reason, request) in [
        ("no_context", request()),
        ("malformed", token("a.b".to_owned())),
        (
            "bad_signature",
            token(foreign.sign(&context(1), now(), None)),
        ),
        (
            "expired",
            token(signer().sign(&context(1), now() - 3600, None)),
        ),
        (
            "not_yet",
            token(signer().sign(&context(1), now() + 3600, None)),
        ),
        ("wrong_audience", signed(&other_pool, request())),
        (
            "body_digest",
            token(signer().sign(&context(1), now(), Some(body))),
        ),
        ("replayed", first),
        (
            "duplicate_header",
            with(signed(&context(1), request()), "x-headpond-context", "x"),
        ),
        (
            "duplicate_header",
            with(
                with(signed(&context(1), request()), "x-slo-a", "1"),
                "x-slo-a",
                "2",
            ),
        ),
        (
            "duplicate_header",
            with(
                with(signed(&context(1), request()), "x-slo-b", "1"),
                "x_slo_b",
                "2",
            ),
        ),
    ] {
        let before = metric(
            &proxy,
            &["context_refusals_total", &format!("\"{reason}\"")],
        );
        let answer = front.ask(request).await;
        let (status, code) = match reason {
            "duplicate_header" => (400, "invalid_request"),
            _ => (401, "context_invalid"),
        };
        assert_eq!(answer.status, status, "{reason}: {}", answer.text);
        assert_eq!(answer.headers["x-headpond-reason"], code, "{reason}");
        assert_eq!(answer.headers["x-headpond-work"], "none", "{reason}");
        let after = metric(
            &proxy,
            &["context_refusals_total", &format!("\"{reason}\"")],
        );
        assert_eq!(after, before + 1, "{reason}");
    }
    assert_eq!(engine.count(), 1, "only the good one passed");
}

#[tokio::test]
async fn without_a_context_the_lowest_place_is_given_where_that_is_configured() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, proxy) = front(&engine, json!({"untrusted": "lowest"})).await;
    assert_eq!(front.ask(completion_request()).await.status, 200);
    let forged = with(completion_request(), "x-headpond-context", "a.b.c");
    assert_eq!(
        front.ask(forged).await.status,
        401,
        "a bad token never falls back"
    );
    assert_eq!(metric(&proxy, &["requests_total", "completed"]), 1);
}

#[tokio::test]
async fn without_keys_no_token_is_valid() {
    let engine = Stub::start(|_, _| completion()).await;
    let front = Front::start(proxy_with(&[&engine], json!({}))).await;
    let answer = front.ask(signed(&context(1), completion_request())).await;
    assert_eq!(answer.status, 401);
}

/// Scheduling case 18.
#[tokio::test]
async fn case_18_bodies_of_5_and_32_mib_pass() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, proxy) = front(&engine, json!({})).await;
    for (n, mib) in [(0, 5), (1, 32)] {
        let text = "lorem ipsum ".repeat((mib << 20) / 12 + 1);
        let request = post(
            "/v1/completions",
            format!(r#"{{"model":"m","prompt":"{text}"}}"#),
        );
        let body = request.body().clone();
        let answer = front.ask(signed(&context(n), request)).await;
        assert_eq!(answer.status, 200, "{mib} MiB: {}", answer.text);
        assert!(
            engine.request(n as usize).body() == &body,
            "{mib} MiB unchanged"
        );
    }
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, _proxy) = front(&engine, json!({"body_limit_bytes": 2048})).await;
    for (n, size, status) in [(0, 2048, 200), (1, 2049, 413)] {
        let frame = r#"{"model":"m","prompt":""}"#.len();
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(size - frame));
        let answer = front
            .ask(signed(&context(n), post("/v1/completions", body)))
            .await;
        assert_eq!(answer.status, status, "{size}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let engine = Stub::start(|_, _| completion()).await;
    let settings = json!({"timeouts": {"body_read_ms": 20}});
    let (front, proxy) = front(&engine, settings).await;
    let token = signer().sign(&context(1), now(), Some(b"{}"));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\n";
    let (little, much) = ("content-length: 2\r\n", "content-length: 33554432\r\n");
    let (good, bad) = (
        format!("x-headpond-context: {token}\r\n"),
        "x-headpond-context: a.b.c\r\n".to_owned(),
    );
    let none = String::new();
    for (context, length, part, expected) in [
        (&good, little, "{", ["HTTP/1.1 408 ", "request_timeout"]),
        (&good, much, "{", ["HTTP/1.1 408 ", "request_timeout"]),
        // Those who will not be let in are told before they have sent anything.
        (&bad, much, "", ["HTTP/1.1 401 ", "context_invalid"]),
        (&none, much, "", ["HTTP/1.1 401 ", "context_invalid"]),
        (&none, little, "", ["HTTP/1.1 401 ", "context_invalid"]),
    ] {
        let request = format!("{head}{context}{length}\r\n{part}");
        let answer = front.send(request.as_bytes()).await;
        for text in expected {
            assert!(answer.contains(text), "{request:?}: {answer}");
        }
    }
    assert_eq!(engine.count(), 0);
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn what_is_not_served_is_refused_in_the_right_shape() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, _proxy) = front(&engine, json!({})).await;
    let get = |path| Request::get(path).body(Bytes::new()).expect("a request");
    for (n, request, status, code) in [
        (0, post("/v1/unknown", "{}"), 404, "not_found"),
        (1, get("/v1/completions"), 405, "method_not_allowed"),
        (
            2,
            post("/v1/completions", "{\"model\":"),
            400,
            "invalid_json",
        ),
        (
            3,
            post("/v1/completions", r#"{"a":1,"a":2}"#),
            400,
            "duplicate_key",
        ),
    ] {
        let answer = front.ask(signed(&context(n), request)).await;
        assert_eq!(answer.status, status, "{code}");
        let body: serde_json::Value = serde_json::from_str(&answer.text).expect("JSON");
        assert_eq!(body["error"]["code"], code);
    }
    assert_eq!(engine.count(), 0);
}

#[tokio::test]
async fn models_come_from_an_engine() {
    let list = r#"{"object":"list","data":[{"id":"a/b","n":1},{"id":"c"}]}"#;
    let engine = Stub::start(move |_, _| answer_json(200, list)).await;
    let (front, proxy) = front(&engine, json!({})).await;
    let get = |path| Request::get(path).body(Bytes::new()).expect("a request");
    for (n, path, status, text) in [
        (0, "/v1/models", 200, list),
        (1, "/v1/models/a%2Fb", 200, r#"{"id":"a/b","n":1}"#),
        (2, "/models/c", 200, r#"{"id":"c"}"#),
    ] {
        let answer = front.ask(signed(&context(n), get(path))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text.as_str()),
            (status, text),
            "{path}"
        );
    }
    let answer = front.ask(signed(&context(3), get("/v1/models/x"))).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.headers["x-headpond-reason"], "model_not_found");
    assert_at_rest(&proxy);
}

#[tokio::test]
async fn health_pages_need_no_context() {
    let engine = Stub::start(|_, _| completion()).await;
    let (front, proxy) = front(&engine, json!({})).await;
    let get = |path| Request::get(path).body(Bytes::new()).expect("a request");
    assert_eq!(front.ask(get("/livez")).await.status, 200);
    assert!(proxy.unheard(LIMIT).await.is_empty());
    assert_eq!(front.ask(get("/readyz")).await.status, 200);
    assert_eq!(proxy.drain(LIMIT).await, 0);
    assert_eq!(front.ask(get("/livez")).await.status, 200);
    assert_eq!(front.ask(get("/readyz")).await.status, 503);
    let none = Front::start(proxy_with(&[], json!({}))).await;
    assert_eq!(none.ask(get("/readyz")).await.status, 503);
}

#[tokio::test]
async fn an_endpoint_that_never_answered_is_not_told_as_ready() {
    let get = || {
        Request::get("/readyz")
            .body(Bytes::new())
            .expect("a request")
    };
    // Its metrics are elsewhere, and nobody is there: what is heard is the engine's own answer.
    let nobody = Place::new();
    for metrics_url in [None, Some(format!("http://{}", nobody.address))] {
        let place = Place::new();
        let url = format!("http://{}", place.address);
        let mut endpoint = json!({"url": url, "name": "late"});
        if let Some(url) = metrics_url {
            endpoint["metrics_url"] = url.into();
        }
        let proxy = proxy_with(&[], json!({ "endpoints": [endpoint] }));
        let front = Front::start(proxy.clone()).await;
        let told = |proxy: &SchedulerProxy| proxy.state()["state"]["endpoints"][0]["state"].clone();
        assert_eq!(proxy.unheard(Duration::ZERO).await, ["late"]);
        assert_eq!(front.ask(get()).await.status, 503);
        assert_eq!(told(&proxy), "unheard");
        assert_eq!(metric(&proxy, &["endpoint_unheard", "late"]), 1);
        // A refusal is an answer.
        let _engine =
            Stub::start_at(&place.address.to_string(), |_, _| answer_json(404, "{}")).await;
        assert!(proxy.unheard(LIMIT).await.is_empty());
        assert_eq!(front.ask(get()).await.status, 200);
        assert_eq!(told(&proxy), "ready");
        assert_eq!(metric(&proxy, &["endpoint_unheard", "late"]), 0);
    }
}

#[tokio::test]
async fn an_endpoint_without_metrics_is_ready_once_it_has_answered_and_stays_so() {
    let place = Place::new();
    let engine = Stub::start_at(&place.address.to_string(), |_, _| completion()).await;
    let proxy = proxy_with(&[&engine], json!({}));
    assert!(proxy.unheard(LIMIT).await.is_empty());
    assert!(proxy.is_ready());
    drop(engine);
    assert!(tokio::net::TcpStream::connect(place.address).await.is_err());
    assert!(proxy.is_ready(), "metrics that grow old are no outage");
}
