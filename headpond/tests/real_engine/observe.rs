//! What the scheduler learns from the metrics of the engines.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::ask::{CHAT, body, prompt};
use crate::engines::{Engines, until};
use crate::front::Front;
use crate::wire;

/// Far below the full page, which has 50 KB.
const SMALL_PAGE: usize = 4_096;

// The relay works while the test waits for headpond to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_metrics_that_are_needed_are_asked_for() {
    let engines = Engines::take().await;
    let tap = Tap::before(engines.all()[0].name()).await;
    let front = Front::before(&[&tap.url]);
    let asked = until("the engine is scraped", async || {
        let asked = tap.lines("GET /metrics");
        (asked.len() >= 5).then_some(asked)
    })
    .await;
    for line in &asked {
        assert!(
            line.starts_with("GET /metrics/?name%5B%5D="),
            "a full page is asked for: {line}"
        );
    }
    let path = asked[0]
        .split(' ')
        .nth(1)
        .expect("a request line has a path");
    let page = wire::get(&format!("{}{path}", engines.all()[0].url)).await;
    println!("{} bytes of metrics", page.body.len());
    assert!(
        page.body.len() < SMALL_PAGE,
        "the engine filters: {} bytes",
        page.body.len()
    );
    let page = String::from_utf8_lossy(&page.body);
    for name in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "num_gpu_blocks=\"256\"",
    ] {
        assert!(page.contains(name), "{name} is missing:\n{page}");
    }
    front.stop();
}

#[tokio::test]
async fn observations_are_fresh_and_no_scrape_fails() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    let page = until("every engine has been observed", async || {
        let page = front.metrics().await;
        page.0
            .contains("headpond_scheduler_saturation{cause=\"no_data\"} 0.0\n")
            .then_some(page)
    })
    .await;
    assert_eq!(
        page.count("headpond_scheduler_scrape_failures_total"),
        0,
        "{}",
        page.0
    );
    assert_eq!(
        page.count("headpond_scheduler_endpoint_quarantined"),
        0,
        "{}",
        page.0
    );
    front.stop();
}

#[tokio::test]
async fn load_that_others_put_on_an_engine_is_seen_and_avoided() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    let busy = &engines.all()[0];
    let _others = busy.occupy(1_500).await;
    until("the load is seen", async || {
        let load = r#"headpond_scheduler_saturation{cause="load"}"#;
        (front.metrics().await.sum(load) > 0.05).then_some(())
    })
    .await;
    let answer = front.post(CHAT, "acme", &body(CHAT, &prompt(40), 1)).await;
    let record = front.record(answer.header("x-request-id")).await;
    for (name, candidate) in record.candidates() {
        println!(
            "{name}: KV use {}, score {}",
            candidate["kv_use"], candidate["score"]
        );
    }
    let kv_use = record.candidates()[busy.name()]["kv_use"].as_f64();
    assert!(kv_use.is_some_and(|kv_use| kv_use > 0.1), "{kv_use:?}");
    assert_ne!(
        record.endpoint(),
        busy.name(),
        "the idle engines are nearer"
    );
    front.stop();
}

/// A relay in front of a server that notes what is asked of it.
struct Tap {
    url: String,
    /// Locked for one append or one look.
    asked: Arc<Mutex<Vec<u8>>>,
    _relay: JoinSet<()>,
}

impl Tap {
    async fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::<Mutex<Vec<u8>>>::default();
        let mut relay = JoinSet::new();
        relay.spawn(accept(listener, server.to_owned(), Arc::clone(&asked)));
        Self {
            url,
            asked,
            _relay: relay,
        }
    }

    /// The request lines that begin so.
    fn lines(&self, start: &str) -> Vec<String> {
        let asked = self.asked.lock().expect("no panic under this lock");
        let text = String::from_utf8_lossy(&asked);
        text.lines()
            .filter(|line| line.starts_with(start))
            .map(str::to_owned)
            .collect()
    }
}

async fn accept(listener: TcpListener, server: String, asked: Arc<Mutex<Vec<u8>>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(relay(client, server.clone(), Arc::clone(&asked)));
    }
}

async fn relay(client: TcpStream, server: String, asked: Arc<Mutex<Vec<u8>>>) {
    let Ok(server) = TcpStream::connect(&server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut buffer = [0; 4_096];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            asked
                .lock()
                .expect("no panic under this lock")
                .extend_from_slice(&buffer[..length]);
            if to_server.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = there => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}
