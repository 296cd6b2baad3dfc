//! SIGTERM: what runs may finish, what comes is refused, what does not end in time is cut and settled.

use std::process::ExitStatus;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::process::{Running, headpond};
use crate::site::{PATIENT, Site, chat, fault, plain};
use crate::wire::{self, Open};

const ROOMY: &str = "[{ tier: D, wtu: 1000000, per: 365d }]";
const STREAMS: usize = 8;

async fn ended(running: &mut Running) -> ExitStatus {
    wire::until("the end of the process", async || running.ended()).await
}

/// Streams of so many tokens, each read until so many events of it are here.
async fn begun(running: &Running, key: &str, max_tokens: u64, events: usize) -> Vec<Open> {
    let url = format!("{}/v1/chat/completions", running.url());
    let body = chat("take your time", max_tokens, true).to_string();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let (url, key, body) = (url.clone(), key.to_owned(), body.clone());
        streams.spawn(async move {
            let mut open = wire::open(Method::POST, &url, &key, body)
                .await
                .expect("an answer");
            assert_eq!(open.response.status(), 200);
            let mut seen = Vec::new();
            while seen.windows(6).filter(|bytes| bytes == b"data: ").count() < events {
                seen.extend_from_slice(&open.piece().await.expect("more data"));
            }
            open
        });
    }
    streams.join_all().await
}

async fn listens(running: &Running) -> bool {
    TcpStream::connect(wire::split(running.url()).0)
        .await
        .is_ok()
}

#[tokio::test]
async fn who_is_still_asking_its_engines_ends_at_once() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let engine = format!("http://{}", silent.local_addr().expect("an address"));
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = headpond();
    command.args(["up", "--endpoint", &engine, "--listen", "127.0.0.1:0"]);
    command.args(["--admin-listen", "127.0.0.1:0"]);
    let mut running = Running::spawn(directory.path(), "up", &mut command);
    let asked = silent.accept().await.expect("it asks");
    running.signal("TERM");
    let status = ended(&mut running).await;
    drop(asked);
    assert!(status.success(), "{status}: {}", running.log());
    assert_eq!(running.log(), "");
}

#[tokio::test]
async fn open_streams_finish_and_new_requests_are_refused() {
    let site = Site::with(&[("guests", ROOMY)], "", PATIENT);
    let key = site.key("guests");
    let mut running = site.up(&["--slow", "1", "--speed", "1", "--drain-timeout", "300"]);
    let address = wire::split(running.url()).0.to_owned();
    let mut kept = TcpStream::connect(&address).await.expect("it listens");
    let list =
        format!("GET /v1/models HTTP/1.1\r\nhost: l1\r\nauthorization: Bearer {key}\r\n\r\n");
    kept.write_all(list.as_bytes()).await.expect("it reads");
    wire::read_until(&mut kept, "\"object\":\"list\"").await;
    // A token takes about a second: the streams end when the test says so.
    fault(&running, &json!({ "fault": "slow", "factor": 100.0 })).await;
    let streams = begun(&running, &key, 60, 1).await;
    running.signal("TERM");
    // A second one, from somebody in a hurry or from a script, changes nothing.
    running.signal("TERM");
    wire::until("the listener to close", async || {
        (!listens(&running).await).then_some(())
    })
    .await;
    let _ = kept.write_all(list.as_bytes()).await;
    let refused = wire::read_to_end(&mut kept).await;
    assert!(
        refused.is_empty() || refused.starts_with("HTTP/1.1 503"),
        "{refused}"
    );
    assert!(running.ended().is_none(), "streams are still open");
    running.signal("TERM");
    fault(&running, &json!({ "fault": "clear" })).await;
    for stream in streams {
        let request = plain(stream.header("x-request-id"));
        let rest = stream.rest().await;
        assert!(rest.ends_with("data: [DONE]\n\n"), "{request}: {rest}");
    }
    assert!(ended(&mut running).await.success(), "{}", running.log());
    site.verify();
    let attempts = site.attempts();
    assert_eq!(attempts.len(), STREAMS);
    assert!(
        attempts
            .values()
            .all(|attempt| attempt.state == "committed" && attempt.output == 60),
        "{attempts:?}"
    );
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cut_with_an_error_and_settled() {
    let site = Site::with(&[("guests", ROOMY)], "", PATIENT);
    let mut running = site.up(&["--slow", "1", "--speed", "1", "--drain-timeout", "1"]);
    let streams = begun(&running, &site.key("guests"), 100_000, 15).await;
    running.signal("TERM");
    for stream in streams {
        let rest = stream.rest().await;
        let last = rest.trim_end().rsplit("\n\n").next().unwrap_or_default();
        let error: serde_json::Value =
            serde_json::from_str(last.strip_prefix("data: ").unwrap_or_default())
                .unwrap_or_default();
        assert_eq!(
            error["error"]["code"], "shutting_down",
            "the client is told why its stream ends: {last}"
        );
    }
    assert!(ended(&mut running).await.success(), "{}", running.log());
    site.verify();
    let attempts = site.attempts();
    assert_eq!(attempts.len(), STREAMS);
    for attempt in attempts.values() {
        assert!(
            attempt.state == "committed" && attempt.output > 10,
            "{attempt:?}"
        );
        assert!(attempt.charged < attempt.largest, "{attempt:?}");
    }
}

#[tokio::test]
async fn requests_that_hang_do_not_outlive_the_drain_limit() {
    let site = Site::new(&[("guests", ROOMY)]);
    let mut running = site.up(&["--speed", "1", "--drain-timeout", "1"]);
    fault(&running, &json!({ "fault": "hang-before-first-token" })).await;
    let (url, key) = (
        format!("{}/v1/chat/completions", running.url()),
        site.key("guests"),
    );
    let mut clients = JoinSet::new();
    for stream in [true, false] {
        let (url, key, body) = (
            url.clone(),
            key.clone(),
            chat("anybody there?", 8, stream).to_string(),
        );
        clients.spawn(async move { wire::send(Method::POST, &url, &key, body).await });
    }
    wire::until("both at an engine", async || {
        (site.attempts().len() == 2).then_some(())
    })
    .await;
    running.signal("TERM");
    let begun = std::time::Instant::now();
    assert!(ended(&mut running).await.success(), "{}", running.log());
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "the default limit is not the one that was given"
    );
    clients.join_all().await;
    site.verify();
    assert!(
        site.attempts()
            .values()
            .all(|attempt| attempt.state != "sent"),
        "{:?}",
        site.attempts()
    );
}

#[tokio::test]
async fn a_process_without_work_ends_at_once() {
    let site = Site::new(&[("guests", ROOMY)]);
    let running = site.up(&["--drain-timeout", "3600"]);
    assert!(running.stop().success());
    site.verify();
}
