//! Every recorded request again, this time at the simulated engine: same status, same headers, same
//! structure, same framing.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use loadgen::engine::{EngineConfig, RequestIdHeaders, Vocabulary};

use super::{client, start, structure, tiny};

/// Members about KV events, which the recorded server published and the simulated one does not.
const UNPUBLISHED: &[&str] = &["kv_events", "kv_events_config"];

struct Recording {
    method: String,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    request: String,
    status: u16,
    header_names: BTreeSet<String>,
    body: String,
}

fn directory(vocabulary: Vocabulary) -> PathBuf {
    let name = if vocabulary == Vocabulary::Sglang {
        "sglang-0.5.23"
    } else {
        "vllm-0.32.0"
    };
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Requests that were recorded without their request, or with one that cannot be taken literally.
fn special(name: &str) -> Option<(&'static str, &'static str, String)> {
    let long = "parser option ".repeat(2_000);
    let too_long = |stream: bool| {
        serde_json::json!({
            "model": "tiny", "max_tokens": 8, "stream": stream,
            "messages": [{"role": "user", "content": long}],
        })
        .to_string()
    };
    let get = |path| Some(("GET", path, String::new()));
    match name {
        "err-context-too-long" => Some(("POST", "/v1/chat/completions", too_long(false))),
        "err-context-too-long-stream" => Some(("POST", "/v1/chat/completions", too_long(true))),
        // Our vocabulary is larger than that of the recorded model.
        "err-token-out-of-range" => Some((
            "POST",
            "/v1/completions",
            r#"{"model":"tiny","prompt":[4294967295]}"#.to_owned(),
        )),
        "err-404-path" => get("/v1/nothing"),
        "err-get-chat" => get("/v1/chat/completions"),
        "lora-models" | "models" => get("/v1/models"),
        "loads-idle" => get("/v1/loads"),
        "nodev-reset-prefix" => Some(("POST", "/reset_prefix_cache", String::new())),
        "health" => get("/health"),
        "health_generate" => get("/health_generate"),
        "load" => get("/load"),
        "ping" => get("/ping"),
        "ready" => get("/ready"),
        "version" => get("/version"),
        "server_info" => get("/server_info"),
        _ => None,
    }
}

fn read(directory: &Path, name: &str) -> Recording {
    let file = |kind: &str| std::fs::read_to_string(directory.join(format!("{name}.{kind}")));
    let (method, path, request) = if let Some((method, path, body)) = special(name) {
        (method.to_owned(), path.to_owned(), body)
    } else {
        let text = file("request").unwrap_or_else(|e| panic!("{name}: {e}"));
        let (line, body) = text.split_once('\n').unwrap_or((&text, ""));
        let (method, path) = line.split_once(' ').expect("method and path");
        (
            method.to_owned(),
            path.to_owned(),
            body.trim_end_matches('\n').to_owned(),
        )
    };
    let headers = match name {
        "request-id-header" | "reqid-echo" => vec![("x-request-id", "my-req-123")],
        _ => Vec::new(),
    };
    let head = file("headers").expect("headers were recorded");
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|l| l.split(' ').nth(1))
        .and_then(|s| s.parse().ok());
    let names = lines
        .filter_map(|l| l.split_once(':'))
        .map(|(n, _)| n.to_lowercase());
    Recording {
        method,
        path,
        headers,
        request,
        status: status.expect("a status line"),
        header_names: names.collect(),
        body: file("body").expect("a body was recorded"),
    }
}

/// Whether a stream is the recorded one. On a busy machine a chunk carries several tokens, so the kind of
/// chunk that is neither the first nor the last of its choice may be missing.
fn is_stream_of(recorded: &[String], ours: &[String]) -> bool {
    let mut rest = recorded.iter();
    ours.last() == recorded.last()
        && ours.len() + 1 >= recorded.len()
        && ours.iter().all(|line| rest.any(|r| r == line))
}

async fn replay(addr: SocketAddr, recording: &Recording) -> Vec<String> {
    let Recording {
        method,
        path,
        headers,
        request,
        ..
    } = recording;
    let answer = client::request(addr, method, path, headers, request).await;
    let mut differences = Vec::new();
    let mut compare = |what: &str, recorded: String, ours: String| {
        if recorded != ours {
            differences.push(format!("{what}\n  recorded {recorded}\n  ours     {ours}"));
        }
    };
    compare(
        "status",
        recording.status.to_string(),
        answer.status.to_string(),
    );
    let names: BTreeSet<String> = answer
        .headers
        .iter()
        .map(|(n, _)| n.to_lowercase())
        .collect();
    compare(
        "headers",
        format!("{:?}", recording.header_names),
        format!("{names:?}"),
    );
    if answer
        .header("content-type")
        .is_some_and(|t| t.starts_with("text/event-stream"))
    {
        let recorded = structure::of_stream(&recording.body);
        let ours = structure::of_stream(&answer.body);
        if !is_stream_of(&recorded, &ours) {
            compare("events", recorded.concat(), ours.concat());
        }
        for chunk in &answer.chunks {
            compare(
                "events per chunk",
                "1".to_owned(),
                chunk.matches("\n\n").count().to_string(),
            );
            assert!(chunk.ends_with("\n\n"), "an event is a chunk: {chunk:?}");
        }
        assert!(answer.complete);
    } else {
        let shape = |body: &str| match serde_json::from_str::<serde_json::Value>(body) {
            Ok(mut json) => {
                if let Some(members) = json.as_object_mut() {
                    members.retain(|name, _| !UNPUBLISHED.contains(&name.as_str()));
                }
                structure::of(&json)
            }
            Err(_) => body.to_owned(),
        };
        compare("body", shape(&recording.body), shape(&answer.body));
    }
    differences
}

/// Replays the recordings `names`; an engine with request-id headers for those recorded with them.
async fn check(vocabulary: Vocabulary, names: &[&str]) {
    let adapters = vec!["la".to_owned(), "lb".to_owned()];
    let tiny = || EngineConfig {
        speed: 4.0,
        ..tiny(vocabulary)
    };
    let plain = start(tiny()).await;
    let mut config = tiny();
    config.request_id_headers = RequestIdHeaders::Echo;
    config.adapters = adapters;
    let echoing = start(config).await;
    let mut config = tiny();
    config.control_path = loadgen::engine::ControlPath::Off;
    let closed = start(config).await;
    let directory = directory(vocabulary);
    let mut report = Vec::new();
    for name in names {
        let recording = read(&directory, name);
        let addr = match *name {
            "nodev-reset-prefix" => closed.addr(),
            _ if recording.header_names.contains("x-request-id") => echoing.addr(),
            _ => plain.addr(),
        };
        for difference in replay(addr, &recording).await {
            report.push(format!("{name}: {difference}"));
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}

/// Names of all recordings of a directory.
fn all(vocabulary: Vocabulary) -> Vec<String> {
    let entries = std::fs::read_dir(directory(vocabulary)).expect("fixtures are part of the crate");
    let mut names: Vec<String> = entries
        .filter_map(|e| {
            e.ok()?
                .file_name()
                .into_string()
                .ok()?
                .strip_suffix(".body")
                .map(str::to_owned)
        })
        .filter(|name| !name.starts_with("metrics"))
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn answers_look_like_those_of_vllm() {
    let names = all(Vocabulary::Vllm);
    assert!(names.len() > 50);
    check(
        Vocabulary::Vllm,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
}

#[tokio::test]
async fn answers_look_like_those_of_sglang() {
    let names = all(Vocabulary::Sglang);
    assert!(names.len() > 20);
    check(
        Vocabulary::Sglang,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
}

/// Messages that clients match on are the recorded ones, not only their structure.
#[tokio::test]
async fn errors_say_what_the_real_servers_say() {
    for (vocabulary, names) in [
        (
            Vocabulary::Vllm,
            &[
                "err-unknown-model",
                "err-context-too-long",
                "err-context-too-long-stream",
                "err-bad-temperature",
                "err-bad-type",
                "err-cache-salt-empty",
                "err-empty-body",
                "err-empty-messages",
                "err-malformed-json",
                "err-max-tokens-too-big",
                "err-max-tokens-zero",
                "err-missing-messages",
                "err-n-zero",
            ][..],
        ),
        (
            Vocabulary::Sglang,
            &["err-bad-temperature", "embeddings"][..],
        ),
    ] {
        let engine = start(tiny(vocabulary)).await;
        for name in names {
            let recording = read(&directory(vocabulary), name);
            let Recording {
                method,
                path,
                request,
                ..
            } = &recording;
            let answer = client::request(engine.addr(), method, path, &[], request).await;
            let recorded: serde_json::Value =
                serde_json::from_str(&recording.body).expect("errors are JSON");
            assert_eq!(answer.json(), recorded, "{name}");
        }
    }
}
