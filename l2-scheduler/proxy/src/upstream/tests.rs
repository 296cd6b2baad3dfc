use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;

use super::*;

/// Longer than any test takes.
const IDLE: Duration = Duration::from_hours(1);
const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An engine that answers every request on every connection, and the number of its connections.
async fn engine(tasks: &TaskTracker) -> (Origin, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let accepted = Arc::new(AtomicUsize::new(0));
    let (count, inner) = (Arc::clone(&accepted), tasks.clone());
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            inner.spawn(async move {
                let mut request = vec![0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(ANSWER.as_bytes()).await;
                }
            });
        }
    });
    let origin = Origin::parse(&format!("http://{address}")).expect("an address");
    (origin, accepted)
}

fn limits(idle: Duration, max_idle: usize) -> ConnectionLimits {
    ConnectionLimits {
        connect: Duration::from_secs(5),
        idle,
        max_idle,
    }
}

fn idle(upstream: &Upstream) -> usize {
    upstream.idle.lock().expect("no panic").len()
}

fn get() -> Outbound {
    Outbound {
        method: Method::GET,
        path: "/v1/models",
        headers: HeaderMap::new(),
        body: Bytes::new(),
    }
}

async fn finish(answer: Answer) {
    let body = answer.body.read_short(100).await;
    assert_eq!(body.expect("a complete answer"), "ok");
}

/// Scheduling case 34: small chunks must not wait for the other side's delayed acknowledgement.
#[tokio::test]
async fn case_34_connections_send_at_once() {
    let tasks = TaskTracker::new();
    let (origin, _) = engine(&tasks).await;
    let upstream = Upstream::new(origin, limits(IDLE, 4));
    let stream = upstream.dial().await.expect("it listens");
    assert!(stream.nodelay().expect("a live socket"));
}

#[tokio::test]
async fn a_connection_serves_again_until_it_has_been_idle_too_long() {
    let tasks = TaskTracker::new();
    let (origin, accepted) = engine(&tasks).await;
    let upstream = Upstream::new(origin, limits(IDLE, 4));
    for _ in 0..3 {
        finish(upstream.exchange(&get()).await.expect("an answer")).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    tokio::time::pause();
    tokio::time::advance(IDLE).await;
    tokio::time::resume();
    finish(upstream.exchange(&get()).await.expect("an answer")).await;
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
    assert_eq!(idle(&upstream), 1, "the old one is gone");
    tokio::time::pause();
    tokio::time::advance(IDLE).await;
    upstream.expire_idle();
    assert_eq!(idle(&upstream), 0);
}

#[tokio::test]
async fn idle_connections_are_bounded() {
    let tasks = TaskTracker::new();
    let (origin, accepted) = engine(&tasks).await;
    let upstream = Upstream::new(origin, limits(IDLE, 2));
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(upstream.exchange(&get()).await.expect("an answer"));
    }
    for answer in answers {
        finish(answer).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 5);
    assert_eq!(idle(&upstream), 2);
}

#[tokio::test]
async fn an_answer_that_is_dropped_closes_its_connection() {
    let tasks = TaskTracker::new();
    let (origin, _) = engine(&tasks).await;
    let upstream = Upstream::new(origin, limits(IDLE, 2));
    drop(upstream.exchange(&get()).await.expect("an answer"));
    assert_eq!(idle(&upstream), 0);
}

#[tokio::test]
async fn nobody_there_is_a_failure_to_connect() {
    // Bound, so that nobody else is given it, and not listening.
    let nobody = TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    nobody.bind(any).expect("a free port");
    let address = nobody.local_addr().expect("bound");
    for host in [address.to_string(), "no-such-host.invalid:80".to_owned()] {
        let origin = Origin::parse(&format!("http://{host}")).expect("an address");
        let upstream = Upstream::new(origin, limits(IDLE, 2));
        let failed = upstream.exchange(&get()).await.err().expect("no engine");
        assert!(matches!(failed, SendError::Connect(_)), "{failed}");
    }
}

/// Whether the request was at work when the engine went cannot be known.
#[tokio::test]
async fn an_engine_that_takes_a_request_and_goes_is_no_failure_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let tasks = TaskTracker::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        drop(listener);
        let mut request = vec![0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(ANSWER.as_bytes()).await;
        let _ = stream.read(&mut request).await;
    });
    let origin = Origin::parse(&format!("http://{address}")).expect("an address");
    let upstream = Upstream::new(origin, limits(IDLE, 2));
    finish(upstream.exchange(&get()).await.expect("an answer")).await;
    let failed = upstream.exchange(&get()).await.err().expect("it has gone");
    assert!(matches!(failed, SendError::NoAnswer(_)), "{failed}");
}

#[test]
fn a_base_path_stands_before_the_requests_own() {
    for (url, uri, host) in [
        ("http://e:1", "/v1/models", "e:1"),
        ("http://[::1]:9/base/", "/base/v1/models", "[::1]:9"),
        ("http://e", "/v1/models", "e"),
    ] {
        let origin = Origin::parse(url).expect("an address");
        let request = get().to(&origin).expect("a request");
        assert_eq!(request.uri(), uri);
        assert_eq!(request.headers()["host"], host);
    }
}
