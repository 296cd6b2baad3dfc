//! The listener, over real sockets: framing, half-closing clients, time limits, draining.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use governance_context::{Key, KeyId, PoolName, Signer, Verifier, names};
use governance_proxy::{RemoteScheduler, Scheduler, serve};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::support::*;

/// How long open answers may go on where a test does not wait for the end of it.
const DRAIN: Duration = Duration::from_mins(1);

struct Server {
    rig: Arc<Rig>,
    address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinSet<()>,
}

impl Server {
    async fn start(stage: Stage, change: impl FnOnce(&mut Value)) -> Self {
        Self::with(1000, DRAIN, stage, change).await
    }

    async fn with(
        places: usize,
        drain: Duration,
        stage: Stage,
        change: impl FnOnce(&mut Value),
    ) -> Self {
        let rig = Arc::new(Rig::with(stage, change).await);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let mut serving = JoinSet::new();
        let governance = rig.governance.clone();
        serving.spawn(serve(listener, governance, places, shutdown, drain));
        Self {
            rig,
            address,
            stop: Some(stop),
            serving,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("the server listens")
    }

    /// Sends bytes and reads until the server closes.
    async fn exchange(&self, bytes: &str) -> String {
        let mut stream = self.connect().await;
        stream
            .write_all(bytes.as_bytes())
            .await
            .expect("the server reads");
        read_to_end(&mut stream).await
    }

    fn stop(&mut self) {
        self.stop
            .take()
            .expect("stopped once")
            .send(())
            .expect("the server runs");
    }

    async fn stopped(mut self) -> Arc<Rig> {
        self.serving
            .join_next()
            .await
            .expect("it served")
            .expect("without a panic");
        self.rig
    }
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the answer is as good as an end.
    drop(stream.read_to_end(&mut bytes).await);
    String::from_utf8(bytes).expect("UTF-8")
}

/// Reads until the text has arrived.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let count = stream.read(&mut buffer).await.expect("the server answers");
        assert!(count > 0, "closed before {text:?}: {seen}");
        seen.push_str(std::str::from_utf8(&buffer[..count]).expect("UTF-8"));
    }
    seen
}

fn raw(version: &str, headers: &str, body: &str) -> String {
    let (key, length) = (key(1), body.len());
    format!(
        "POST /v1/chat/completions {version}\r\nhost: l1\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

fn stream_body() -> String {
    chat(json!({"stream": true})).to_string()
}

fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .expect("a status line")
        .parse()
        .expect("a number")
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_a_stream_it_can_read() {
    let server = Server::start(Stage::always(Play::Stream(whole_stream(14, 2))), |_| {}).await;
    let answer = server.exchange(&raw("HTTP/1.0", "", &stream_body())).await;
    assert_eq!(status(&answer), 200);
    assert!(
        !answer.to_lowercase().contains("transfer-encoding"),
        "{answer}"
    );
    assert!(answer.ends_with(DONE), "{answer}");
}

#[tokio::test]
async fn a_client_that_half_closes_gets_its_answer() {
    for (play, body) in [
        (ok(answer(14, 0, 1)), chat(json!({})).to_string()),
        (Play::Stream(whole_stream(14, 2)), stream_body()),
    ] {
        let later = Play::After(Duration::from_millis(50), Box::new(play));
        let server = Server::start(Stage::always(later), |_| {}).await;
        let mut stream = server.connect().await;
        stream
            .write_all(raw("HTTP/1.1", "", &body).as_bytes())
            .await
            .expect("the server reads");
        stream.shutdown().await.expect("half closed");
        let answer = read_to_end(&mut stream).await;
        // Before it the server may have asked whether anybody is there.
        let answer = answer.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(status(answer), 200, "{answer}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_any_answer_is_noticed_at_once() {
    for body in [chat(json!({})).to_string(), stream_body()] {
        let server = Server::start(Stage::always(Play::Hang), |_| {}).await;
        for _ in 0..3 {
            let before = server.rig.stage.cancelled.load(Ordering::SeqCst);
            let called = server.rig.stage.call_count();
            let mut stream = server.connect().await;
            stream
                .write_all(raw("HTTP/1.1", "", &body).as_bytes())
                .await
                .expect("the server reads");
            while server.rig.stage.call_count() == called {
                tokio::task::yield_now().await;
            }
            drop(stream);
            while server.rig.stage.cancelled.load(Ordering::SeqCst) == before {
                tokio::task::yield_now().await;
            }
        }
        server.rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn a_length_stated_twice_is_refused_in_either_order_and_on_every_request() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |_| {}).await;
    let body = chat(json!({})).to_string();
    let (key, length) = (key(1), body.len());
    for lengths in [
        format!("content-length: {length}\r\ntransfer-encoding: chunked"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}"),
    ] {
        let ambiguous = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: l1\r\nauthorization: Bearer {key}\r\n{lengths}\r\n\r\n{body}"
        );
        let answer = server.exchange(&ambiguous).await;
        assert_eq!(status(&answer), 400, "{answer}");
        assert!(
            answer.contains("invalid_request") && answer.contains("connection: close"),
            "{answer}"
        );

        let mut stream = server.connect().await;
        stream
            .write_all(raw("HTTP/1.1", "", &body).as_bytes())
            .await
            .expect("the server reads");
        read_until(&mut stream, "\"usage\"").await;
        stream
            .write_all(ambiguous.as_bytes())
            .await
            .expect("the server reads");
        let second = read_to_end(&mut stream).await;
        assert!(second.contains("HTTP/1.1 400"), "{second}");
    }
    assert_eq!(server.rig.stage.call_count(), 2);
}

#[tokio::test]
async fn expect_continue_is_answered_after_the_key_was_judged() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |_| {}).await;
    let body = chat(json!({})).to_string();
    let request = raw(
        "HTTP/1.1",
        "expect: 100-continue\r\nconnection: close\r\n",
        &body,
    );
    let (head, body) = request.split_at(request.len() - body.len());
    let mut stream = server.connect().await;
    stream
        .write_all(head.as_bytes())
        .await
        .expect("the server reads");
    read_until(&mut stream, "100 Continue\r\n\r\n").await;
    stream
        .write_all(body.as_bytes())
        .await
        .expect("the server reads");
    assert_eq!(status(&read_to_end(&mut stream).await), 200);

    let mut stream = server.connect().await;
    let head = head.replace(&key(1), &key(9));
    stream
        .write_all(head.as_bytes())
        .await
        .expect("the server reads");
    let answer = read_to_end(&mut stream).await;
    assert_eq!(status(&answer), 401, "{answer}");
}

#[tokio::test]
async fn a_body_is_limited_while_it_is_read() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |config| {
        config["max_body_bytes"] = json!(2048);
    })
    .await;
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: l1\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n",
        key(1)
    );
    let mut stream = server.connect().await;
    stream
        .write_all(chunked.as_bytes())
        .await
        .expect("the server reads");
    for _ in 0..3 {
        let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
        drop(stream.write_all(chunk.as_bytes()).await);
    }
    let answer = read_to_end(&mut stream).await;
    assert_eq!(status(&answer), 413, "{answer}");
    assert!(answer.contains("request_too_large"), "{answer}");
}

#[tokio::test]
async fn all_bodies_together_are_limited_while_they_are_read() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |config| {
        config["max_body_bytes"] = json!(2048);
    })
    .await;
    let whole = raw("HTTP/1.1", "connection: close\r\n", &" ".repeat(2048));
    let livez = "GET /livez HTTP/1.1\r\nhost: l1\r\nconnection: close\r\n\r\n";
    let mut open = Vec::new();
    let mut refused = loop {
        assert!(open.len() < 18, "no end");
        let mut stream = server.connect().await;
        let part = &whole.as_bytes()[..whole.len() - 1];
        stream.write_all(part).await.expect("the server reads");
        open.push(stream);
        // Connections are read in turn: when one that came later has its answer, a refusal of this one is there.
        assert_eq!(status(&server.exchange(livez).await), 200);
        let answered = |stream: &TcpStream| stream.try_read(&mut []).is_ok();
        if let Some(at) = open.iter().position(answered) {
            break open.remove(at);
        }
    };
    let answer = read_to_end(&mut refused).await;
    assert_eq!(status(&answer), 429, "{answer}");
    assert!(answer.contains("\"code\":\"queue_full\""), "{answer}");
    assert_eq!(open.len(), 16);
    // Others are served beside them, and large ones again once they are gone.
    assert_eq!(status(&server.exchange(livez).await), 200);
    drop(open);
    until("they are gone", || {
        server.rig.metric("headpond_governance_requests_in_flight") == 0.0
    })
    .await;
    assert_eq!(status(&server.exchange(&whole).await), 400);
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |config| {
        config["max_body_bytes"] = json!(2048);
    })
    .await;
    let request = raw("HTTP/1.1", "", &" ".repeat(8 * 1024 * 1024));
    let mut stream = server.connect().await;
    let sent = stream.write_all(request.as_bytes()).await;
    sent.expect("the connection is not reset while the client sends");
    stream.shutdown().await.expect("it can be closed in order");
    let answer = read_to_end(&mut stream).await;
    assert_eq!(status(&answer), 413, "{answer}");
}

#[tokio::test]
async fn a_head_and_a_body_that_do_not_come_are_not_waited_for() {
    // One limit each: what the others are is not what ends it, however long the machine takes.
    let impatient = async |limit: &str| {
        let limit = json!({ limit: "100ms" });
        let stage = Stage::always(ok(answer(14, 0, 1)));
        Server::start(stage, |config| config["timeouts"] = limit).await
    };
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: l1\r\n";
    let slow_head = impatient("header_read").await.exchange(head).await;
    assert!(
        slow_head.is_empty() || status(&slow_head) == 408,
        "{slow_head}"
    );
    let request = raw("HTTP/1.1", "", &chat(json!({})).to_string());
    let part = &request[..request.len() - 5];
    let slow_body = impatient("body_read").await.exchange(part).await;
    assert_eq!(status(&slow_body), 408, "{slow_body}");
    let idle = impatient("idle").await.exchange("").await;
    assert_eq!(idle, "");
}

#[tokio::test]
async fn head_is_answered_where_get_is() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |_| {}).await;
    let request = |method: &str, path: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: l1\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
            key(1)
        )
    };
    for path in ["/v1/models", "/v1/models/demo", "/livez", "/readyz"] {
        let get = server.exchange(&request("GET", path)).await;
        let head = server.exchange(&request("HEAD", path)).await;
        let length = |answer: &str| {
            let (head, _) = answer.split_once("\r\n\r\n").expect("a head");
            let line = head
                .lines()
                .find(|line| line.starts_with("content-length: "));
            line.expect("a length").to_owned()
        };
        assert_eq!((status(&get), status(&head)), (200, 200), "{path}");
        assert_eq!(length(&get), length(&head));
        assert!(head.ends_with("\r\n\r\n"), "no body: {head}");
    }
    let post_only = server
        .exchange(&request("HEAD", "/v1/chat/completions"))
        .await;
    assert_eq!(status(&post_only), 405);
}

#[tokio::test]
async fn browsers_are_let_in_when_their_origin_is_listed() {
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: l1\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\nconnection: close\r\n\r\n"
        )
    };
    let off = Server::start(Stage::always(ok(answer(14, 0, 1))), |_| {}).await;
    let refused = off.exchange(&preflight("https://app.example")).await;
    assert_eq!(status(&refused), 403);
    assert!(refused.contains("allowed_origins"), "{refused}");
    assert!(
        !refused.contains("access-control-allow-origin"),
        "{refused}"
    );

    let on = Server::start(Stage::always(ok(answer(14, 0, 1))), |config| {
        config["cors"] = json!({"allowed_origins": ["https://app.example"]});
    })
    .await;
    let allowed = on.exchange(&preflight("https://app.example")).await;
    assert_eq!(status(&allowed), 204);
    assert!(
        allowed.contains("access-control-allow-origin: https://app.example"),
        "{allowed}"
    );
    assert_eq!(
        status(&on.exchange(&preflight("https://evil.example")).await),
        403
    );
    let call = raw(
        "HTTP/1.1",
        "origin: https://app.example\r\nconnection: close\r\n",
        "{",
    );
    let error = on.exchange(&call).await;
    assert_eq!(status(&error), 400, "errors are readable too");
    assert!(
        error.contains("access-control-allow-origin: https://app.example"),
        "{error}"
    );
}

#[tokio::test]
async fn a_client_that_closes_its_socket_cancels_the_engine() {
    let mut pieces = vec![data(&chunk("x", 14, 1))];
    for n in 2..500 {
        pieces.push(Piece::Wait(Duration::from_millis(2)));
        pieces.push(data(&chunk("x", 14, n)));
    }
    let server = Server::start(Stage::always(Play::Stream(pieces)), |_| {}).await;
    let mut stream = server.connect().await;
    stream
        .write_all(raw("HTTP/1.1", "", &stream_body()).as_bytes())
        .await
        .expect("the server reads");
    read_until(&mut stream, "data: ").await;
    drop(stream);
    let stage = server.rig.stage.clone();
    until("cancelled", || stage.cancelled.load(Ordering::SeqCst) == 1).await;
    let rig = server.rig.clone();
    until("recorded", || rig.records_settled()).await;
    let settlement = rig.newest().settlement.clone().expect("a settlement");
    let truth: u64 = stage.truth.lock().expect("unpoisoned").values().sum();
    assert!(
        truth < 499 && truth.abs_diff(settlement.output_tokens) <= 1,
        "{truth} {settlement:?}"
    );
}

#[tokio::test]
async fn draining_lets_open_streams_finish_and_takes_nothing_new() {
    let pieces = vec![
        data(&chunk("x", 14, 1)),
        Piece::Wait(Duration::from_millis(100)),
        data(&usage_chunk(14, 0, 1)),
        data(DONE),
    ];
    let mut server = Server::start(Stage::always(Play::Stream(pieces)), |_| {}).await;
    let mut open = server.connect().await;
    let mut kept = server.connect().await;
    let list = format!(
        "GET /v1/models HTTP/1.1\r\nhost: l1\r\nauthorization: Bearer {}\r\n\r\n",
        key(1)
    );
    kept.write_all(list.as_bytes())
        .await
        .expect("the server reads");
    read_until(&mut kept, "\"object\":\"list\"").await;
    open.write_all(raw("HTTP/1.1", "", &stream_body()).as_bytes())
        .await
        .expect("the server reads");
    read_until(&mut open, "data: ").await;
    server.stop();
    let rest = read_to_end(&mut open).await;
    assert!(rest.contains(DONE), "the open stream finishes: {rest}");
    drop(kept.write_all(list.as_bytes()).await);
    let refused = read_to_end(&mut kept).await;
    assert!(refused.is_empty() || status(&refused) == 503, "{refused}");
    let address = server.address;
    let rig = server.stopped().await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nothing listens any more"
    );
    rig.assert_quiet().await;
    assert_eq!(rig.wtu("acme").await, (16_000, 0));
}

#[tokio::test]
async fn draining_cuts_what_does_not_end_and_settles_it() {
    let stage = Stage::always(Play::Stream(vec![data(&chunk("x", 14, 1)), Piece::Hang]));
    let mut server = Server::with(1000, Duration::from_millis(100), stage, |_| {}).await;
    let mut open = server.connect().await;
    open.write_all(raw("HTTP/1.1", "", &stream_body()).as_bytes())
        .await
        .expect("the server reads");
    read_until(&mut open, "data: ").await;
    server.stop();
    let rest = read_to_end(&mut open).await;
    assert!(rest.contains("\"code\":\"shutting_down\""), "{rest}");
    let rig = server.stopped().await;
    assert_eq!(rig.stage.cancelled.load(Ordering::SeqCst), 1);
    rig.assert_quiet().await;
    assert_eq!(rig.wtu("acme").await, (16_000, 0));
}

#[tokio::test]
async fn http_2_streams_share_a_connection() {
    let server = Server::start(Stage::always(Play::Stream(whole_stream(14, 3))), |_| {}).await;
    let client: hyper_util::client::legacy::Client<_, Full<Bytes>> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http();
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let (client, address) = (client.clone(), server.address);
        requests.spawn(async move {
            let mut request = post(
                "/v1/chat/completions",
                &key(1),
                chat(json!({"stream": true})),
            );
            let uri = format!("http://{address}{}", request.uri());
            *request.uri_mut() = uri.parse().expect("a URL");
            let response = client.request(request).await.expect("an answer");
            assert_eq!(response.status(), 200);
            response
                .into_body()
                .collect()
                .await
                .expect("a body")
                .to_bytes()
        });
    }
    for body in requests.join_all().await {
        assert!(body.ends_with(DONE.as_bytes()));
    }
    server.rig.assert_quiet().await;
}

#[tokio::test]
async fn a_client_for_whom_there_is_no_place_waits_for_one() {
    let stage = Stage::always(ok(answer(14, 0, 1)));
    let server = Server::with(1, DRAIN, stage, |_| {}).await;
    let request = b"GET /livez HTTP/1.1\r\nhost: l1\r\n\r\n";
    let mut first = server.connect().await;
    first.write_all(request).await.expect("the server reads");
    read_until(&mut first, "ok\n").await;
    let mut second = server.connect().await;
    second
        .write_all(request)
        .await
        .expect("the system takes it");
    let early = tokio::time::timeout(Duration::from_millis(100), second.readable()).await;
    assert!(early.is_err(), "answered beside the first");
    drop(first);
    read_until(&mut second, "ok\n").await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_let_go() {
    let piece = data(&chunk(&"x".repeat(512 * 1024), 14, 1));
    let play = Play::Stream(vec![piece; 64]);
    let server = Server::start(Stage::always(play), |config| {
        config["timeouts"] = json!({"idle": "200ms"});
    })
    .await;
    let mut stream = server.connect().await;
    let request = raw("HTTP/1.1", "", &stream_body());
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the server reads");
    while server.rig.stage.cancelled.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.rig.assert_quiet().await;
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a short frame");
    let [high, low] = length.to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

#[tokio::test]
async fn a_stream_of_http_2_that_is_not_read_is_let_go_and_its_connection_is_not() {
    let pieces = vec![data(&chunk("x", 14, 1)), Piece::Hang];
    let server = Server::start(Stage::always(Play::Stream(pieces)), |config| {
        config["timeouts"] = json!({"idle": "200ms"});
    })
    .await;
    // No window: nothing of an answer may be sent.
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let text = |bytes: &str| {
        let length = u8::try_from(bytes.len()).expect("short");
        [&[length], bytes.as_bytes()].concat()
    };
    let head = [
        &[0x83, 0x86, 0x04][..],
        &text("/v1/chat/completions"),
        &[0],
        &text("authorization"),
        &text(&format!("Bearer {}", key(1))),
    ]
    .concat();
    let opening = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &settings,
        &frame(1, 0b100, 1, &head),
        &frame(0, 1, 1, stream_body().as_bytes()),
    ]
    .concat();
    let mut stream = server.connect().await;
    stream.write_all(&opening).await.expect("the server reads");
    while server.rig.stage.cancelled.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.rig.assert_quiet().await;
    let ping = frame(6, 0, 0, b"8 bytes.");
    stream.write_all(&ping).await.expect("the server reads");
    let mut seen = Vec::new();
    while !seen.windows(8).any(|bytes| bytes == b"8 bytes.") {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.expect("it answers");
        assert!(count > 0, "the connection was closed");
        seen.extend_from_slice(&buffer[..count]);
    }
}

#[tokio::test]
async fn frames_after_a_request_of_http_2_are_not_waited_for_as_a_head() {
    let server = Server::start(Stage::always(ok(answer(14, 0, 1))), |config| {
        config["timeouts"] = json!({"header_read": "100ms"});
    })
    .await;
    let mut stream = server.connect().await;
    let settings = frame(4, 0, 0, b"");
    // `GET /livez` over `http`: indexed fields but for the path.
    let headers = frame(1, 0b101, 1, b"\x82\x86\x04\x06/livez");
    let opening = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &settings,
        &headers,
    ]
    .concat();
    stream.write_all(&opening).await.expect("the server reads");
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !seen.windows(3).any(|bytes| bytes == b"ok\n") {
        let count = stream.read(&mut buffer).await.expect("the server answers");
        assert!(count > 0, "closed before the answer");
        seen.extend_from_slice(&buffer[..count]);
    }
    let ping = frame(6, 0, 0, b"8 bytes.");
    stream.write_all(&ping).await.expect("the server reads");
    // Longer than a head may take: everything that is sent meanwhile is one answer to the ping.
    let rest = async { while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {} };
    let closed = tokio::time::timeout(Duration::from_millis(400), rest).await;
    assert!(closed.is_err(), "the connection was closed");
}

#[tokio::test]
async fn the_remote_scheduler_signs_what_it_sends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let key_of_both = || Key::shared(&[9; 32]).expect("a key");
    let kid = KeyId::new("k1").expect("a name");
    let pool = PoolName::new("default").expect("a name");
    let verifier = Arc::new(Verifier::new([(kid.clone(), key_of_both())], pool));
    let mut l2 = JoinSet::new();
    l2.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let verifier = Arc::clone(&verifier);
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let verifier = Arc::clone(&verifier);
                async move {
                    let token = request.headers()[names::CONTEXT]
                        .to_str()
                        .expect("ASCII")
                        .to_owned();
                    let path = request.uri().path().to_owned();
                    let body = request
                        .into_body()
                        .collect()
                        .await
                        .expect("a body")
                        .to_bytes();
                    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                    let now = now.expect("after 1970").as_secs();
                    let context = verifier
                        .verify(&token, now, Some(&body))
                        .expect("a trusted context");
                    let text = format!("{} {path} {}", context.tenant, body.len());
                    Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::from(
                        text,
                    )))
                }
            });
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        }
    });
    let local = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    local.chat(json!({})).await;
    let (context, request) = local.stage.last_call();
    let length = request.body().len();
    let signer = || Signer::new(kid.clone(), &key_of_both()).expect("a signer");
    let remote = RemoteScheduler::new(&format!("http://{address}"), signer()).expect("an address");
    let response = remote
        .call(&context, request.clone())
        .await
        .expect("it answers");
    let text = response
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(text, format!("acme /v1/chat/completions {length}"));

    // Bound, so that nobody else is given it, and not listening.
    let nobody = TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    nobody.bind(any).expect("a free port");
    let address = nobody.local_addr().expect("an address");
    let remote = RemoteScheduler::new(&format!("http://{address}"), signer()).expect("an address");
    let unreachable = remote
        .call(&context, request)
        .await
        .expect_err("nothing listens");
    assert_eq!(unreachable.reached, governance_proxy::Reached::No);
    for bad in ["https://a:1", "a:1", "http://a:1/path", ""] {
        assert!(RemoteScheduler::new(bad, signer()).is_err(), "{bad}");
    }
}
