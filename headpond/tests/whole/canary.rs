//! Canaries in every input: keys, prompts, header values, query strings, broken requests. None of them may be found in
//! anything that is written, shown or told, and neither may their hashes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use http::Method;
use serde_json::{Value, json};

use crate::process::Running;
use crate::site::{ADMIN, Site, at_rest, fault, metrics};
use crate::wire;

/// Secrets of inputs, each planted where its name says.
const KEY_SECRET: &str = "canarysecretofakeyq8w7e6r5t4y3";
const WRONG_SECRET: &str = "canarysecretofawrongkeyz9x8c7v6";
const PROMPT: &str = "CanaryInAPrompt5d1f";
const HEADER: &str = "CanaryInAHeader7c2e";
const QUERY: &str = "CanaryInAQuery9b3d";
const BROKEN: &str = "CanaryInBrokenBytes1a4c";
const PATH: &str = "CanaryInAPath3e5b";

/// Everything that was written, shown or told, with where.
struct Told(Vec<(String, Vec<u8>)>);

impl Told {
    fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    fn assert_silent_about(&self, canary: &str) {
        let digests = [
            blake3::hash(canary.as_bytes()).to_hex().to_string(),
            sha256(canary),
        ];
        for (place, bytes) in &self.0 {
            let text = String::from_utf8_lossy(bytes);
            for needle in digests.iter().map(String::as_str).chain([canary]) {
                let at = text.find(needle);
                let before: String = text[..at.unwrap_or(0)].chars().rev().take(200).collect();
                let before: String = before.chars().rev().collect();
                assert!(
                    at.is_none(),
                    "{canary} (as {needle}) stands in {place} after {before}"
                );
            }
            // A database holds digests as bytes.
            if place.contains("ledger.db") {
                for digest in &digests {
                    let raw: Vec<u8> = (0..32)
                        .map(|byte| {
                            u8::from_str_radix(&digest[2 * byte..2 * byte + 2], 16)
                                .expect("hexadecimal")
                        })
                        .collect();
                    assert!(
                        !bytes.windows(32).any(|window| window == raw),
                        "a digest of {canary} stands in {place}"
                    );
                }
            }
        }
    }
}

fn sha256(text: &str) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coreutils are there");
    child
        .stdin
        .take()
        .expect("it is piped")
        .write_all(text.as_bytes())
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout)
        .split(' ')
        .next()
        .expect("a digest")
        .to_owned()
}

/// Bodies with a canary: good, wrong and broken.
fn bodies() -> Vec<(&'static str, String)> {
    let chat = |more: &Value| {
        let mut body = json!({ "model": "demo", "max_tokens": 3, "messages": [{ "role": "user", "content": PROMPT }] });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body.to_string()
    };
    vec![
        ("/v1/chat/completions", chat(&json!({}))),
        ("/v1/chat/completions", chat(&json!({ "stream": true, "user": PROMPT, "metadata": { "note": PROMPT } }))),
        ("/v1/chat/completions", chat(&json!({ "api_key": PROMPT, "cache_salt": PROMPT, "unknown": PROMPT, "stop": [PROMPT] }))),
        ("/v1/chat/completions", chat(&json!({ "tools": [{ "type": "function", "function": { "name": "f", "description": PROMPT } }] }))),
        ("/v1/chat/completions", chat(&json!({ "model": PROMPT }))),
        ("/v1/chat/completions", chat(&json!({ "max_tokens": PROMPT }))),
        ("/v1/chat/completions", chat(&json!({ "n": -1, "user": PROMPT }))),
        ("/v1/chat/completions", chat(&json!({ "max_tokens": 131_073 }))),
        ("/v1/chat/completions", chat(&json!({ "messages": PROMPT }))),
        ("/v1/completions", json!({ "model": "demo", "prompt": PROMPT, "max_tokens": 3 }).to_string()),
        ("/v1/embeddings", json!({ "model": "demo", "input": [PROMPT] }).to_string()),
        ("/v1/responses", json!({ "model": "demo", "input": PROMPT, "max_output_tokens": 3 }).to_string()),
        ("/v1/messages", json!({ "model": "demo", "max_tokens": 3, "system": PROMPT, "messages": [{ "role": "user", "content": PROMPT }] }).to_string()),
        ("/v1/messages", json!({ "model": "demo", "max_tokens": "x", "messages": PROMPT }).to_string()),
        ("/v1/messages/count_tokens", json!({ "model": "demo", "messages": [{ "role": "user", "content": PROMPT }] }).to_string()),
        ("/tokenize", json!({ "model": "demo", "prompt": PROMPT }).to_string()),
        ("/v1/rerank", json!({ "model": "demo", "query": PROMPT, "documents": [PROMPT] }).to_string()),
        ("/v1/chat/completions", format!("{{\"model\":\"demo\",\"messages\":[{{\"role\":\"user\",\"content\":\"{BROKEN}")),
        ("/v1/chat/completions", format!("{{\"model\":\"demo\",\"a\":\"{BROKEN}\",\"a\":1}}")),
        ("/v1/chat/completions", BROKEN.to_owned()),
        ("/v1/messages", format!("[\"{BROKEN}\"")),
        ("/v1/chat/completions", format!("{{\"model\":\"demo\",\"messages\":[\"\u{1}{BROKEN}\"]}}")),
    ]
}

/// Requests that are broken below the level of a body.
fn broken(key: &str) -> Vec<String> {
    let head = format!(
        "host: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    );
    vec![
        format!("GET /{PATH} HTTP/9.9\r\n{head}\r\n"),
        format!("{BROKEN}\r\n\r\n"),
        format!("POST /v1/{PATH}?x={QUERY} HTTP/1.1\r\n{head}content-length: 2\r\n\r\n{{}}"),
        format!("GET /v1/models/{PATH} HTTP/1.1\r\n{head}\r\n"),
        format!("DELETE /v1/chat/completions HTTP/1.1\r\n{head}x-a: {HEADER}\r\n\r\n"),
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\n{head}content-length: 9\r\ntransfer-encoding: chunked\r\n\r\n{BROKEN}"
        ),
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\n{head}transfer-encoding: chunked\r\n\r\nzz{BROKEN}\r\n"
        ),
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\n{head}content-encoding: {HEADER}\r\ncontent-length: 2\r\n\r\n{{}}"
        ),
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Basic {HEADER}\r\ncontent-length: 0\r\n\r\n"
        ),
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: {}\r\n\r\n",
            HEADER.repeat(40_000)
        ),
        format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nbad header {HEADER}\r\n\r\n"),
    ]
}

async fn everything_is_asked(running: &Running, key: &str, told: &mut Told) {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
        ("cookie", HEADER),
        ("user-agent", HEADER),
        ("traceparent", HEADER),
        ("x-headpond-context", HEADER),
        ("x-forwarded-for", HEADER),
        ("openai-organization", HEADER),
        ("x-made-up", HEADER),
    ];
    for (number, (path, body)) in bodies().into_iter().enumerate() {
        let idempotency = format!("{HEADER}{number}");
        let mut headers = headers.to_vec();
        headers.push(("idempotency-key", &idempotency));
        let url = format!("{}{path}?session={QUERY}&api_key={QUERY}", running.url());
        for query in [true, false] {
            let url = if query {
                &url
            } else {
                url.split('?').next().expect("a path")
            };
            let answer = wire::send_with(Method::POST, url, &headers, body.clone()).await;
            let Some(answer) = answer else { continue };
            told.add(
                format!("the headers of {path}"),
                format!("{:?}", answer.headers),
            );
            if answer.status != 200 {
                told.add(
                    format!("the error {} of {path} for {body}", answer.status),
                    answer.body,
                );
            }
        }
    }
    for wrong in [
        format!("hp-tenantzzzzzz-{WRONG_SECRET}"),
        format!("hp-tenantaaaaaa-{WRONG_SECRET}"),
        WRONG_SECRET.to_owned(),
    ] {
        let url = format!("{}/v1/chat/completions", running.url());
        let answer = wire::send(Method::POST, &url, &wrong, PROMPT)
            .await
            .expect("an answer");
        assert_eq!(answer.status, 401);
        told.add("the answer to a wrong key", answer.body);
        let admin = format!("{}/admin/v1/keys?x={QUERY}", running.admin_url());
        told.add(
            "the admin answer to a wrong key",
            wire::send(Method::GET, &admin, &wrong, "")
                .await
                .expect("an answer")
                .body,
        );
    }
    for bytes in broken(key) {
        told.add(
            "the answer to broken bytes",
            wire::raw(running.url(), bytes.as_bytes()).await,
        );
    }
}

async fn everything_is_looked_at(running: &Running, told: &mut Told) {
    told.add("/metrics", metrics(running).await);
    let pages = [
        "/admin/v1/decisions?count=1000",
        "/admin/v1/keys",
        "/admin/v1/accounts",
    ];
    for page in pages {
        let url = format!("{}{page}", running.admin_url());
        let answer = wire::send(Method::GET, &url, ADMIN, "")
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200, "{page}: {}", answer.text());
        if page.contains("decisions") {
            for record in answer.json()["decisions"].as_array().expect("records") {
                let id = record["request"].as_str().expect("an id");
                let both =
                    wire::get(&format!("{}/admin/v1/decisions/{id}", running.admin_url())).await;
                told.add(format!("the record of {id}"), both.body);
            }
        }
        told.add(page, answer.body);
    }
}

fn files_of(data: &Path, told: &mut Told) {
    for entry in std::fs::read_dir(data).expect("the data directory is there") {
        let path = entry.expect("it can be read").path();
        told.add(
            path.display().to_string(),
            std::fs::read(&path).expect("a file"),
        );
    }
}

#[tokio::test]
async fn no_canary_is_found_anywhere() {
    // While every engine is broken, nobody waits for one.
    let hasty = "scheduling: { queue: { ttl_ms: 20, no_endpoint_ttl_ms: 20 } }\n";
    let site = Site::with(
        &[("mine", "[{ tier: D, wtu: 1000, per: 365d }]")],
        "",
        hasty,
    );
    let key = format!("hp-tenantaaaaaa-{KEY_SECRET}");
    site.write("mine.key", &key);
    let (config, data) = (site.config(), site.data());
    let arguments = [
        "up",
        "--config",
        &config,
        "--data-dir",
        data.to_str().expect("UTF-8"),
        "--speed",
        "50",
    ];
    let running = Running::start_logging(site.path(), "up", &arguments, "debug");
    let mut told = Told(Vec::new());
    everything_is_asked(&running, &key, &mut told).await;
    for broken in [
        json!({ "fault": "internal-error", "usage": "missing" }),
        json!({ "fault": "cut", "chunks": 1 }),
        json!({ "fault": "error-in-stream", "chunks": 1 }),
        json!({ "fault": "busy" }),
    ] {
        fault(&running, &broken).await;
        everything_is_asked(&running, &key, &mut told).await;
        fault(&running, &json!({ "fault": "clear" })).await;
    }
    at_rest(&running).await;
    everything_is_looked_at(&running, &mut told).await;
    files_of(&site.data(), &mut told);
    let log = running.log();
    assert!(
        log.contains("\"target\":\"access\"") && log.contains("\"DEBUG\""),
        "the log is on"
    );
    assert!(running.stop().success());
    files_of(&site.data(), &mut told);
    told.add(
        "the log",
        std::fs::read(site.path().join("up.log")).expect("a log"),
    );
    assert!(
        told.0
            .iter()
            .any(|(place, _)| place.ends_with("ledger.db-wal")),
        "the ledger was looked at while it ran"
    );
    for canary in [
        KEY_SECRET,
        WRONG_SECRET,
        PROMPT,
        HEADER,
        QUERY,
        BROKEN,
        PATH,
        &key,
        ADMIN,
    ] {
        told.assert_silent_about(canary);
    }
}
