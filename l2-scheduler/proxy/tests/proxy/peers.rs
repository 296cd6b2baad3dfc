//! Two schedulers of one pool: each knows what the other has put on the engines, and believes nobody else.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, StatusCode};
use scheduler_proxy::{PeerKey, SchedulerProxy};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::front::Front;
use crate::rig::{chat_request, context, frame, metric, proxy_with, read, until};
use crate::stub::{Reply, Step, Stub, finish, token};

const SECRET: &str = "a secret that both schedulers share, and nobody else";
const PATH: &str = "/headpond/v1/peer-load";

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_millis() as u64
}

/// A vector as its form is documented, written by somebody else.
fn post(secret: &str, replica: &str, unix_ms: u64, body: &[u8]) -> Request<Bytes> {
    let purpose = "headpond 2026 load vectors between schedulers v1";
    let key = blake3::derive_key(purpose, secret.as_bytes());
    let mut signed = unix_ms.to_be_bytes().to_vec();
    signed.extend((replica.len() as u64).to_be_bytes());
    signed.extend(replica.as_bytes());
    signed.extend(body);
    Request::post(PATH)
        .header("x-headpond-peer", replica)
        .header("x-headpond-peer-time", unix_ms)
        .header(
            "x-headpond-peer-mac",
            blake3::keyed_hash(&key, &signed).to_hex().as_str(),
        )
        .body(Bytes::copy_from_slice(body))
        .expect("a valid request")
}

fn vector(tokens: u64) -> Vec<u8> {
    json!({"endpoints": [{
        "endpoint": "e0", "prefilling": 5, "pending_tokens": tokens, "pending_double_area": 0, "pending_context": tokens,
        "decoding": 2, "decoding_context": 900, "slack": [0, 0, 0, 0, 0, 0, 0, 2],
    }]})
    .to_string()
    .into_bytes()
}

fn load(proxy: &SchedulerProxy) -> u32 {
    proxy.snapshot().endpoints[0].effective_load
}

#[tokio::test]
async fn each_of_two_schedulers_sees_the_load_of_the_other() {
    let gate = Arc::new(Notify::new());
    let engine = {
        let gate = Arc::clone(&gate);
        Stub::start(move |_, _| {
            Reply::Stream(vec![token("a"), Step::Gate(Arc::clone(&gate)), finish()])
        })
        .await
    };
    let mut listeners = Vec::new();
    for _ in 0..2 {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
    }
    let urls: Vec<String> = listeners
        .iter()
        .map(|listener| format!("http://{}", listener.local_addr().expect("a bound socket")))
        .collect();
    // Everybody may have the same list: nobody hears itself.
    let settings: Value =
        json!({"peers": {"urls": urls, "key_file": "peers.key", "interval_ms": 10}});
    let proxies: Vec<SchedulerProxy> = listeners
        .iter()
        .map(|_| proxy_with(&[&engine], settings.clone()))
        .collect();
    let _fronts: Vec<Front> = listeners
        .into_iter()
        .zip(&proxies)
        .map(|(listener, proxy)| Front::start_on(listener, proxy.clone()))
        .collect();
    for proxy in &proxies {
        proxy.meet_peers(PeerKey::parse(SECRET).expect("long enough"));
    }
    for (busy, other) in [(&proxies[0], &proxies[1]), (&proxies[1], &proxies[0])] {
        let mut open = Vec::new();
        for n in 0..3 {
            let mut response = busy.call(context(n), chat_request()).await;
            assert!(frame(&mut response).await.is_some());
            open.push(response);
        }
        // What was heard is forgotten after half a second, also by a machine that stopped for so long.
        until("the other knows of it", || {
            let peers = (other.snapshot().peers, metric(other, &["scheduler_peers "]));
            load(other) == 3 && peers == (1, 1)
        })
        .await;
        assert_eq!(load(busy), 3, "its own only: nobody hears itself");
        for response in open {
            gate.notify_one();
            drop(read(response).await);
        }
        until("the other knows that it is over", || load(other) == 0).await;
        assert!(metric(busy, &["vectors_heard_total", "\"own\""]) > 0);
        assert!(metric(busy, &["vectors_told_total", "\"taken\""]) > 0);
    }
}

#[tokio::test]
async fn what_is_forged_stale_repeated_or_oversized_is_counted_and_not_believed() {
    let engine = Stub::start(|_, _| Reply::Never).await;
    let proxy = proxy_with(&[&engine], json!({"peers": {"key_file": "peers.key"}}));
    let front = Front::start(proxy.clone()).await;
    let body = vector(100);
    let before = front.ask(post(SECRET, "r", now_ms(), &body)).await;
    assert_eq!(before.status, StatusCode::NOT_FOUND, "it was told no key");
    proxy.meet_peers(PeerKey::parse(SECRET).expect("long enough"));
    let now = now_ms();
    let mut unsigned = post(SECRET, "r", now, &body);
    unsigned.headers_mut().remove("x-headpond-peer-mac");
    let mut changed = post(SECRET, "r", now, &body);
    *changed.body_mut() = vector(1).into();
    let large = vec![b' '; 2 << 20];
    for (request, status, result) in [
        (
            post("another secret of the same length", "r", now, &body),
            401,
            "forged",
        ),
        (changed, 401, "forged"),
        (unsigned, 401, "no_signature"),
        (post(SECRET, "r", now - 10_000, &body), 400, "stale"),
        (post(SECRET, "r", now + 10_000, &body), 400, "stale"),
        (post(SECRET, "r", now, &large), 413, "too_large"),
        (
            post(SECRET, "r", now, b"{\"endpoints\": 7}"),
            400,
            "malformed",
        ),
    ] {
        let heard = || metric(&proxy, &["vectors_heard_total", &format!("\"{result}\"")]);
        let counted = heard();
        let answer = front.ask(request).await;
        assert_eq!(answer.status, status, "{result}: {}", answer.text);
        assert_eq!(heard(), counted + 1, "{result}");
        assert_eq!(load(&proxy), 0, "{result}");
        assert_eq!(proxy.snapshot().peers, 0, "{result}");
    }
    // A machine that stops for half a second has forgotten the vector: it is told another.
    let mut believed = false;
    for later in 0..100 {
        let now = now_ms() + later;
        let good = || post(SECRET, "r", now, &body);
        assert_eq!(front.ask(good()).await.status, StatusCode::NO_CONTENT);
        believed = load(&proxy) == 7;
        let again = front.ask(good()).await;
        assert_eq!(again.status, StatusCode::BAD_REQUEST, "once only");
        if believed {
            break;
        }
    }
    assert!(believed, "{}", load(&proxy));
    let got = Request::get(PATH)
        .body(Bytes::new())
        .expect("a valid request");
    assert_eq!(front.ask(got).await.status, StatusCode::METHOD_NOT_ALLOWED);
    until("a silent scheduler is forgotten", || load(&proxy) == 0).await;
}

#[tokio::test]
async fn a_scheduler_that_is_gone_delays_nobody() {
    let engine = Stub::start(|_, _| crate::stub::chat()).await;
    let settings = json!({"peers": {"urls": ["http://127.0.0.1:9"], "key_file": "peers.key", "interval_ms": 10}});
    let proxy = proxy_with(&[&engine], settings);
    proxy.meet_peers(PeerKey::parse(SECRET).expect("long enough"));
    let failed = || metric(&proxy, &["vectors_told_total", "\"failed\""]);
    until("it was tried", || failed() > 2).await;
    let answer = crate::rig::ask(&proxy, 1, chat_request()).await;
    assert_eq!(answer.status, StatusCode::OK);
    crate::rig::assert_at_rest(&proxy);
}

#[tokio::test]
async fn a_long_prompt_is_told_before_the_period_is_over_and_what_was_lost_is_told_again() {
    // Takes every vector, and loses each that tells only what changed.
    let other = Stub::start(|_, request| {
        let vector: Value = serde_json::from_slice(request.body()).expect("a vector");
        let status = if vector["extent"] == "changed" {
            500
        } else {
            204
        };
        Reply::Whole(status, "text/plain", Bytes::new())
    })
    .await;
    let engine = Stub::start(|_, _| Reply::Never).await;
    let url = format!("http://{}", other.address);
    let settings = json!({"peers": {"urls": [url], "key_file": "peers.key", "interval_ms": 400}});
    let proxy = proxy_with(&[&engine], settings);
    let front = Front::start(proxy.clone()).await;
    proxy.meet_peers(PeerKey::parse(SECRET).expect("long enough"));
    // Tokens that prefill, by every vector of a kind that tells of any.
    let told = |extent: &str| {
        let vectors = (0..other.count()).filter_map(|index| {
            let request = other.request(index);
            let vector: Value = serde_json::from_slice(request.body()).expect("a vector");
            let tokens = vector["endpoints"][0]["pending_tokens"].as_u64()?;
            (vector["extent"] == extent).then_some(tokens)
        });
        vectors.max().unwrap_or(0)
    };
    let mut calls = JoinSet::new();
    // What comes right before the whole is told with it.
    while told("changed") == 0 {
        let before = told("whole");
        let n = calls.len() as u64 + 1;
        assert!(n < 20, "never before its time");
        // It speaks before its time only if somebody is there, and whoever says nothing for half a second is not.
        let greeting = json!({"endpoints": []}).to_string();
        let heard = front
            .ask(post(SECRET, "r", now_ms() + n, greeting.as_bytes()))
            .await;
        assert_eq!(heard.status, StatusCode::NO_CONTENT);
        let content = format!("{n} ").repeat(20_000);
        let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": content}]});
        let request = crate::rig::post("/v1/chat/completions", body.to_string());
        let proxy = proxy.clone();
        calls.spawn(async move { proxy.call(context(n), request).await });
        until("it is told", || told("changed").max(told("whole")) > before).await;
    }
    until("it is told with the rest", || {
        told("whole") == told("changed")
    })
    .await;
    // What became of a vector is counted when its answer is there.
    let counted = |what: &str| metric(&proxy, &["vectors_told_total", what]) >= 1;
    until("both ends are counted", || {
        counted("\"failed\"") && counted("\"taken\"")
    })
    .await;
}
