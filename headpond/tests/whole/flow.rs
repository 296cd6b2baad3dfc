//! Flow control through both layers: what a waiting caller hears, and what a refusal after that costs it.

use http::Method;

use crate::process::{Running, headpond, run};
use crate::site::{Site, at_rest, chat, metrics, plain, record};
use crate::wire::{self, Open};

/// One place, and whoever waits for it is told soon, long before a wait of four seconds is too long.
const TIGHT: &str = "scheduling: { room: 1, queue: { ttl_ms: 4000, comments_after_ms: 10, comments_every_ms: 50 } }\n";
const ROOMY: &str = "[{ tier: D, wtu: 1000000, per: 365d }]";
/// A token takes about a second.
const PACE: [&str; 6] = ["--engines", "1", "--slow", "1", "--speed", "0.02"];

async fn ask(running: &Running, path: &str, key: &str, wish: &[(&str, &str)]) -> Open {
    let bearer = format!("Bearer {key}");
    let mut headers = vec![
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
    ];
    headers.extend_from_slice(wish);
    let url = format!("{}{path}", running.url());
    let body = chat("hello", 200, true).to_string();
    wire::open_with(Method::POST, &url, &headers, body)
        .await
        .expect("an answer")
}

#[tokio::test]
async fn a_caller_that_asks_hears_of_its_wait_and_a_refusal_then_costs_nothing() {
    let site = Site::with(&[("acme", ROOMY)], "", TIGHT);
    let running = site.up(&PACE);
    let key = site.key("acme");
    let mut first = ask(&running, "/v1/chat/completions", &key, &[]).await;
    assert!(first.piece().await.is_some());
    let wish = ("x-headpond-queue-comments", "1");
    for (path, error) in [
        ("/v1/chat/completions", "data: {\"error\":{"),
        ("/v1/messages", "event: error\ndata: {"),
    ] {
        let told = ask(&running, path, &key, &[wish]).await;
        assert_eq!(told.response.status(), 200);
        let id = told.header("x-request-id").to_owned();
        let text = told.rest().await;
        assert!(text.contains(": headpond queue position=0"), "{text}");
        let (comments, refusal) = text.split_at(text.find(error).expect(&text));
        assert!(!comments.contains("data:"), "{text}");
        assert!(refusal.contains("within the 4"), "it says how long: {text}");
        let record = record(&running, &id).await;
        assert_eq!(record["outcome"]["code"], "queue_expired", "{record}");
        let told = why(&running, &id);
        for part in [
            "time to live 60000 ms;",
            "waits at most 4000 ms (the time to live of its band)",
            "no turn     the time to live of its band was over",
        ] {
            assert!(told.contains(part), "{part} is not in\n{told}");
        }
        assert_eq!(told.matches("queue_expired").count(), 1, "{told}");
        assert_eq!(record["settlement"]["reason"], "no-work", "{record}");
        assert_eq!(site.attempts()[&plain(&id)].charged, 0);
    }
    // A wish that is none, and none at all: the status says what happened.
    for wish in [&[][..], &[("x-headpond-queue-comments", "yes")][..]] {
        let refused = ask(&running, "/v1/chat/completions", &key, wish).await;
        assert_eq!(refused.response.status(), 429);
        assert_eq!(refused.header("x-headpond-reason"), "queue_expired");
        assert_ne!(refused.header("retry-after"), "");
    }
    drop(first);
    at_rest(&running).await;
    assert!(running.stop().success());
    site.verify();
}

#[tokio::test]
async fn a_wait_that_timeouts_queue_ended_is_not_told_as_that_of_an_objective() {
    let patient = "scheduling: { room: 1, other_bands: { refuse: never }, queue: { comments_after_ms: 50, comments_every_ms: 50 } }\n";
    let objective = "  timeouts: { queue: 300ms }\n  objectives: { plain: { weight: 2 } }\n  default_objective: plain\n";
    let site = Site::with(&[("acme", ROOMY)], objective, patient);
    let running = site.up(&PACE);
    let key = site.key("acme");
    let mut first = ask(&running, "/v1/chat/completions", &key, &[]).await;
    assert!(first.piece().await.is_some());
    for wish in [&[][..], &[("x-headpond-queue-comments", "1")][..]] {
        let refused = ask(&running, "/v1/chat/completions", &key, wish).await;
        let id = refused.header("x-request-id").to_owned();
        let text = refused.rest().await;
        assert!(
            text.contains("within the 300 ms that timeouts.queue lets a request wait"),
            "{text}"
        );
        assert_eq!(
            record(&running, &id).await["outcome"]["code"],
            "queue_expired"
        );
        let told = why(&running, &id);
        for part in [
            "waits at most 300 ms (governance.timeouts.queue)",
            "no turn     governance.timeouts.queue was over",
        ] {
            assert!(told.contains(part), "{part} is not in\n{told}");
        }
    }
    drop(first);
    at_rest(&running).await;
    assert!(running.stop().success());
}

fn why(running: &Running, id: &str) -> String {
    let output = run(headpond().args(["why", id, "--admin-url", running.admin_url()]));
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn top(running: &Running, arguments: &[&str]) -> String {
    let output = run(headpond()
        .args(["top", "--admin-url", running.admin_url()])
        .args(arguments));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}{error}");
    told
}

#[tokio::test]
async fn top_shows_one_frame_of_a_pool_at_work() {
    let site = Site::with(&[("acme", ROOMY)], "", TIGHT);
    let running = site.up(&PACE);
    let key = site.key("acme");
    let mut open = ask(&running, "/v1/chat/completions", &key, &[]).await;
    assert!(open.piece().await.is_some());
    let told = top(&running, &["--once"]);
    for part in [
        "pool default   policy planned",
        "(by load)",
        "per second",
        "ENDPOINT",
        " ready ",
        "\n0                   0        0 B            0        1",
        "\nacme ",
    ] {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    assert!(
        !told.contains('\x1b'),
        "no control codes outside a terminal"
    );
    // What cannot be drawn over is one frame as well.
    assert!(top(&running, &[]).starts_with("headpond top"));
    let told: serde_json::Value =
        serde_json::from_str(&top(&running, &["--once", "--json"])).expect("JSON");
    assert_eq!(told["pools"][0]["state"]["bookings"], 1, "{told}");
    assert!(told["rates"]["dispatched"].is_number(), "{told}");
    drop(open);
    let refused = run(headpond().args(["top", "--once", "--admin-url", running.url()]));
    assert_eq!(refused.status.code(), Some(1), "that is no admin listener");
}

/// What the log says next of the configuration file, after so many words of it.
async fn heard(running: &Running, before: usize) -> String {
    wire::until("a word about the file", async || {
        let log = running.log();
        let mut words = log
            .split_inclusive('\n')
            .filter(|line| line.contains("configuration file"));
        let word = words.nth(before)?.strip_suffix('\n')?;
        Some(word.to_owned())
    })
    .await
}

#[tokio::test]
async fn at_sighup_flow_control_follows_the_file_and_a_wrong_file_changes_nothing() {
    let site = Site::with(&[("acme", ROOMY)], "", TIGHT);
    let running = site.up(&PACE);
    let key = site.key("acme");
    let written = std::fs::read_to_string(site.config()).expect("the file");
    let mut open = ask(&running, "/v1/chat/completions", &key, &[]).await;
    assert!(open.piece().await.is_some());
    let refused = async || {
        let refused = ask(&running, "/v1/chat/completions", &key, &[]).await;
        refused.header("x-headpond-reason").to_owned()
    };
    assert_eq!(refused().await, "queue_expired");
    let full = written.replace("room: 1,", "room: 1, bands: [{ band: 0, requests: 0 }],");
    for (number, (text, told, reason)) in [
        (full.clone(), "flow control follows", "queue_full"),
        (full.clone(), "says what it said before", "queue_full"),
        (
            written.replace("room: 1,", "room: 1, fairness: none,"),
            "scheduling.fairness",
            "queue_full",
        ),
        (
            written.replace("room: 1,", "room: 2,"),
            "scheduling.room: has changed; restart",
            "queue_full",
        ),
        ("scheduling: [".to_owned(), "refused", "queue_full"),
        (written.clone(), "flow control follows", "queue_expired"),
    ]
    .into_iter()
    .enumerate()
    {
        site.write("headpond.yaml", &text);
        running.signal("HUP");
        let line = heard(&running, number).await;
        assert!(
            line.contains(told) && line.contains("\"hash\":\""),
            "{line}"
        );
        assert_eq!(refused().await, reason, "{line}");
    }
    let page = metrics(&running).await;
    let reloads = |result: &str| format!("config_reloads_total{{result=\"{result}\"}}");
    for (result, count) in [("applied", 2), ("unchanged", 1), ("refused", 3)] {
        let line = format!("{} {count}\n", reloads(result));
        assert!(page.contains(&line), "{line}");
    }
    drop(open);
    at_rest(&running).await;
    assert!(running.stop().success());
}
