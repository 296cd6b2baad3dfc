//! The scraper against engines on port 0: keep-alive, filter and fallback, separate addresses, every failure reported.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use engine_telemetry::config::{Config, File};
use engine_telemetry::{ScrapeError, Scraper, Target};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use scheduler_core::{EndpointId, Observation};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

const VLLM: &str = include_str!("fixtures/vllm-under-load.txt");
const SGLANG: &str = include_str!("fixtures/sglang-under-load.txt");

/// How a stub engine answers a path.
#[derive(Clone, Copy)]
enum Answers {
    /// Filtered and full pages, as vLLM.
    Vllm,
    /// An empty filtered page, a full one without the slash, as `SGLang`.
    Sglang,
    /// 404 for the path with a slash.
    NoSlash,
    Status(u16),
    Endless,
    Nothing,
    Unknown,
    Idle,
}

struct Engine {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Path and query of every request. A test's own log, locked for a push only.
    requests: Arc<Mutex<Vec<String>>>,
    tracker: TaskTracker,
}

impl Engine {
    async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let engine = Self {
            address: listener.local_addr().expect("bound"),
            connections: Arc::default(),
            requests: Arc::default(),
            tracker: TaskTracker::new(),
        };
        let (connections, requests) = (
            Arc::clone(&engine.connections),
            Arc::clone(&engine.requests),
        );
        let tracker = engine.tracker.clone();
        engine.tracker.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let requests = Arc::clone(&requests);
                let service = service_fn(move |request: Request<_>| {
                    let target = request
                        .uri()
                        .path_and_query()
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    requests
                        .lock()
                        .expect("no test panics while it holds the lock")
                        .push(target);
                    answer(answers, request)
                });
                tracker
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        engine
    }

    fn requests(&self) -> Vec<String> {
        self.requests
            .lock()
            .expect("no test panics while it holds the lock")
            .clone()
    }

    fn full_requests(&self) -> usize {
        self.requests()
            .iter()
            .filter(|target| !target.contains('?'))
            .count()
    }
}

async fn answer<B>(
    answers: Answers,
    request: Request<B>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let filtered = request.uri().path() == "/metrics/" && request.uri().query().is_some();
    let (status, body) = match (answers, filtered) {
        (Answers::Vllm, true) => (
            200,
            "vllm:num_requests_running{engine=\"0\"} 4.0\n".to_owned(),
        ),
        (Answers::Vllm | Answers::NoSlash, false) => (200, VLLM.to_owned()),
        (Answers::Sglang, true) => (200, String::new()),
        (Answers::Sglang, false) => (200, SGLANG.to_owned()),
        (Answers::NoSlash, true) => (404, "{\"detail\":\"Not Found\"}".to_owned()),
        (Answers::Status(status), _) => (status, String::new()),
        (Answers::Endless, _) => (200, VLLM.repeat(100)),
        (Answers::Unknown, _) => (200, "other_metric 1\n".to_owned()),
        (Answers::Idle, _) => (
            200,
            "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n".to_owned(),
        ),
        (Answers::Nothing, _) => std::future::pending().await,
    };
    let status = StatusCode::from_u16(status).expect("a status of the table");
    Ok(Response::builder()
        .status(status)
        .body(Full::from(body))
        .expect("a valid response"))
}

type Outcome = (EndpointId, Result<Observation, ScrapeError>);

struct Scrapes {
    scraper: Scraper,
    outcomes: mpsc::Receiver<Outcome>,
    tracker: TaskTracker,
}

impl Scrapes {
    fn of(addresses: &[String], settings: &str) -> Self {
        let tracker = TaskTracker::new();
        let (sender, outcomes) = mpsc::channel(1_000);
        let targets = addresses
            .iter()
            .zip(0..)
            .map(|(address, id)| Target::new(EndpointId(id), address).expect("valid"));
        let scraper = Scraper::spawn(
            &tracker,
            config(settings),
            targets.collect(),
            move |endpoint, outcome| {
                let _ = sender.try_send((endpoint, outcome));
            },
        );
        Self {
            scraper,
            outcomes,
            tracker,
        }
    }

    fn engine(engine: &Engine, settings: &str) -> Self {
        Self::of(&[format!("http://{}", engine.address)], settings)
    }

    async fn next(&mut self) -> Outcome {
        self.outcomes.recv().await.expect("the scraper runs")
    }

    async fn next_error(&mut self) -> ScrapeError {
        self.next().await.1.expect_err("this engine tells nothing")
    }
}

fn config(settings: &str) -> Config {
    // Only the test of it is about a page that comes late.
    let mut file = serde_json::json!({ "timeout_ms": 60_000 });
    if !settings.is_empty() {
        let more: serde_json::Map<_, _> = serde_json::from_str(settings).expect("an object");
        file.as_object_mut().expect("an object").extend(more);
    }
    let file: File = serde_json::from_value(file).expect("valid settings");
    Config::check(&file).expect("settings in range")
}

#[tokio::test]
async fn one_kept_connection_asks_for_the_filtered_page() {
    let engine = Engine::start(Answers::Vllm).await;
    let mut scrapes = Scrapes::engine(&engine, r#"{"interval_ms": 50}"#);
    for _ in 0..4 {
        let (endpoint, outcome) = scrapes.next().await;
        assert_eq!(
            (endpoint, outcome.expect("a page").running),
            (EndpointId(0), Some(4))
        );
    }
    assert_eq!(engine.connections.load(Ordering::Relaxed), 1);
    assert_eq!(engine.full_requests(), 0);
}

#[tokio::test]
async fn an_engine_that_cannot_filter_is_asked_for_the_full_page_and_that_is_remembered() {
    for (answers, waiting) in [(Answers::Sglang, 7), (Answers::NoSlash, 8)] {
        let engine = Engine::start(answers).await;
        let mut scrapes = Scrapes::engine(&engine, r#"{"interval_ms": 50}"#);
        for _ in 0..3 {
            assert_eq!(
                scrapes.next().await.1.expect("a page").waiting,
                Some(waiting)
            );
        }
        let filtered = engine.requests().len() - engine.full_requests();
        assert_eq!(
            (filtered, engine.connections.load(Ordering::Relaxed)),
            (1, 1)
        );
    }
}

#[tokio::test]
async fn metrics_may_have_an_address_of_their_own() {
    let engine = Engine::start(Answers::Vllm).await;
    let address = format!("http://localhost:{}/exporter/page", engine.address.port());
    let mut scrapes = Scrapes::of(&[address], "");
    assert_eq!(scrapes.next().await.1.expect("a page").running, Some(4));
    let requests = engine.requests();
    assert!(
        requests[0].starts_with("/exporter/page/?name%5B%5D="),
        "{requests:?}"
    );
}

#[tokio::test]
async fn every_failure_is_reported_and_the_next_scrape_follows() {
    let fast = r#"{"interval_ms": 50, "idle_interval_ms": 50, "max_page_bytes": 100000}"#;
    let impatient = r#"{"interval_ms": 50, "idle_interval_ms": 50, "timeout_ms": 50}"#;
    for (answers, expected) in [
        (
            Answers::Status(503),
            "the metrics address answered 503 Service Unavailable",
        ),
        (
            Answers::Endless,
            "the metrics page is longer than 100000 bytes",
        ),
        (Answers::Nothing, "no metrics page within 50ms"),
        (
            Answers::Unknown,
            "the metrics page tells neither running nor waiting requests under a known name",
        ),
    ] {
        let engine = Engine::start(answers).await;
        let settings = if matches!(answers, Answers::Nothing) {
            impatient
        } else {
            fast
        };
        let mut scrapes = Scrapes::engine(&engine, settings);
        for _ in 0..2 {
            assert_eq!(scrapes.next_error().await.to_string(), expected);
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_hides_no_other() {
    // Bound, so that nobody else is given it, and not listening.
    let gone = TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    gone.bind(any).expect("a free port");
    let refused = format!("http://{}", gone.local_addr().expect("bound"));
    let engine = Engine::start(Answers::Vllm).await;
    let mut scrapes = Scrapes::of(&[refused, format!("http://{}", engine.address)], "");
    let mut seen = [false; 2];
    while seen != [true; 2] {
        match scrapes.next().await {
            (EndpointId(0), outcome) => {
                assert!(
                    matches!(outcome, Err(ScrapeError::Unreachable(_))),
                    "{outcome:?}"
                );
                seen[0] = true;
            }
            (_, outcome) => seen[1] = outcome.is_ok(),
        }
    }
}

#[tokio::test]
async fn an_idle_endpoint_that_is_picked_is_looked_at_soon() {
    let engine = Engine::start(Answers::Idle).await;
    let mut scrapes = Scrapes::engine(&engine, r#"{"interval_ms": 50, "idle_interval_ms": 60000}"#);
    assert_eq!(scrapes.next().await.1.expect("a page").running, Some(0));
    scrapes.scraper.picked(EndpointId(0));
    scrapes.scraper.picked(EndpointId(9));
    // Without the pick the next scrape is a minute away and the test harness would give up long before.
    assert_eq!(scrapes.next().await.1.expect("a page").running, Some(0));
}

#[tokio::test]
async fn dropping_the_scraper_ends_its_tasks() {
    let engine = Engine::start(Answers::Nothing).await;
    let Scrapes {
        scraper,
        tracker,
        outcomes: _outcomes,
    } = Scrapes::engine(&engine, "");
    drop(scraper);
    tracker.close();
    tracker.wait().await;
}
