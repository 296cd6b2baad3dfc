//! Both layers as processes of their own: what passes between them is signed, and nothing else counts.

use http::Method;
use serde_json::{Value, json};

use crate::process::Running;
use crate::site::{Site, at_rest_of, chat, record, standing};
use crate::stub::Stub;
use crate::wire::{self, Address, Answer};

const ROOMY: &str = "[{ tier: D, wtu: 1000, per: 365d }]";
const OLD: &str =
    "kid: old\nsecret: hex:0101010101010101010101010101010101010101010101010101010101010101\n";
const NEW: &str =
    "kid: new\nsecret: hex:0202020202020202020202020202020202020202020202020202020202020202\n";
const FALSE: &str =
    "kid: new\nsecret: hex:0303030303030303030303030303030303030303030303030303030303030303\n";

/// Files for three processes: one for each layer, and the keys of each.
struct Split {
    site: Site,
}

impl Split {
    fn new() -> Self {
        Self {
            site: Site::new(&[("guests", ROOMY)]),
        }
    }

    /// `headpond schedule` in front of these engines, at an address if it does not take any.
    fn schedule(
        &self,
        engines: &[&str],
        keys: &str,
        more: &str,
        listen: Option<&Address>,
    ) -> Running {
        self.site.write("schedule.keys", keys);
        let endpoints: Vec<String> = engines
            .iter()
            .map(|url| format!("{{ url: '{url}' }}"))
            .collect();
        let endpoints = endpoints.join(", ");
        let text = format!(
            "context_keys: DIR/schedule.keys\nscheduling:\n  endpoints: [{endpoints}]\n{more}"
        );
        let config = self.site.write("schedule.yaml", &text);
        let mut arguments = vec!["schedule", "--config", config.to_str().expect("UTF-8")];
        if let Some(address) = listen {
            arguments.extend(["--listen", &address.text]);
        }
        Running::start(self.site.path(), "schedule", &arguments)
    }

    /// `headpond govern` in front of a scheduler.
    fn govern(&self, scheduler: &Running, keys: &str) -> Running {
        self.site.write("govern.keys", keys);
        let common = std::fs::read_to_string(self.site.config()).expect("the site's configuration");
        let text = format!(
            "scheduler_url: {}\ncontext_keys: DIR/govern.keys\n{common}",
            scheduler.url()
        );
        let config = self.site.write("govern.yaml", &text);
        let data = self.site.data();
        let arguments = [
            "govern",
            "--config",
            config.to_str().expect("UTF-8"),
            "--data-dir",
            data.to_str().expect("UTF-8"),
        ];
        Running::start(self.site.path(), "govern", &arguments)
    }

    async fn ask(&self, govern: &Running) -> Answer {
        wire::chat(
            govern.url(),
            &self.site.key("guests"),
            &chat("hello", 4, false),
        )
        .await
    }
}

async fn straight(schedule: &Running, headers: &[(&str, &str)]) -> Answer {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    let url = format!("{}/v1/chat/completions", schedule.url());
    wire::send_with(
        Method::POST,
        &url,
        &all,
        chat("hello", 4, false).to_string(),
    )
    .await
    .expect("an answer")
}

fn assert_ok(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn three_processes_serve_whole_answers_and_streams() {
    let split = Split::new();
    let engine = Running::engine(split.site.path(), "engine", &["--speed", "50", "--faults"]);
    let schedule = split.schedule(&[engine.url()], OLD, "", None);
    let govern = split.govern(&schedule, OLD);
    let whole = split.ask(&govern).await;
    assert_ok(&whole);
    assert!(
        !whole.json()["choices"][0]["message"]["content"]
            .as_str()
            .expect("a text")
            .is_empty()
    );
    let url = format!("{}/v1/chat/completions", govern.url());
    let body = chat("hello", 20, true).to_string();
    let open = wire::open(Method::POST, &url, &split.site.key("guests"), body)
        .await
        .expect("an answer");
    assert!(
        open.header("content-type").starts_with("text/event-stream"),
        "{}",
        open.header("content-type")
    );
    let request = open.header("x-request-id").to_owned();
    let stream = open.rest().await;
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    let settled = record(&govern, &request).await;
    assert_eq!(
        settled.pointer("/settlement/output_tokens"),
        Some(&json!(20)),
        "{settled}"
    );
    // Both layers have a record under the one id that the client knows.
    let other = wire::get(&format!(
        "{}/admin/v1/decisions/{request}",
        schedule.admin_url()
    ))
    .await
    .json();
    assert_eq!(
        other.pointer("/scheduling/calls/0/attempts/0/end"),
        Some(&json!("completed")),
        "{other}"
    );

    // A client that leaves is followed through all three.
    let body = chat("hello", 100_000, true).to_string();
    let mut open = wire::open(Method::POST, &url, &split.site.key("guests"), body)
        .await
        .expect("an answer");
    open.piece().await.expect("the first data");
    drop(open);
    at_rest_of(&govern, "headpond_governance_holds_open").await;
    at_rest_of(&schedule, "headpond_scheduler_in_flight").await;
    wire::until("the engine to stop", async || {
        let page = wire::get(&format!("{}/metrics", engine.url())).await.text();
        (wire::metric(&page, "vllm:num_requests_running") == 0).then_some(())
    })
    .await;
    assert_eq!(standing(&govern, "guests").await.1, 0, "nothing is held");
    assert!(govern.stop().success() && schedule.stop().success() && engine.stop().success());
    split.site.verify();
}

#[tokio::test]
async fn a_request_without_a_valid_context_is_refused_or_served_last_as_configured() {
    let split = Split::new();
    let engine = Stub::start().await;
    let schedule = split.schedule(&[&engine.url], OLD, "", None);
    for headers in [
        &[][..],
        &[(
            "authorization",
            "Bearer hp-tenantaaaaaa-abcdefghijkmnpqrstuvwxyz23456789",
        )],
        &[("x-headpond-context", "a.b.c")],
        &[(
            "x-headpond-context",
            "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.e30.",
        )],
        &[
            ("x-gateway-inference-fairness-id", "guests"),
            ("x-gateway-inference-objective", "high"),
        ],
    ] {
        let answer = straight(&schedule, headers).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (401, "context_invalid"),
            "{headers:?}"
        );
        assert_eq!(answer.header("x-headpond-reason"), "context_invalid");
        assert_eq!(answer.header("x-headpond-work"), "none");
    }
    assert!(engine.seen().is_empty(), "nothing came through");
    drop(schedule);

    let schedule = split.schedule(&[&engine.url], OLD, "  untrusted: lowest\n", None);
    assert_ok(&straight(&schedule, &[]).await);
    let forged = straight(&schedule, &[("x-headpond-context", "a.b.c")]).await;
    assert_eq!(forged.status, 401, "a bad token is worse than none");
    assert_eq!(engine.seen().len(), 1);
}

/// Each of these would steer a scheduler or an engine that obeyed it.
const STEERING: &[(&str, &str)] = &[
    ("x-gateway-destination-endpoint", "10.0.0.1:80"),
    ("X-Gateway-Inference-Objective", "high"),
    ("x-gateway-inference-fairness-id", "somebody-else"),
    ("x-llm-d-inference-objective", "high"),
    ("x-headpond-context", "a.b.c"),
    ("x-headpond-band", "100"),
    ("x-envoy-original-dst-host", "10.0.0.1:80"),
    ("x-data-parallel-host-port", "10.0.0.1:80"),
    ("x-prefiller-host-port", "10.0.0.1:80"),
    ("x-session-token", "10.0.0.1"),
    ("target-pod", "10.0.0.1"),
    ("routing-strategy", "random"),
    ("test-epp-endpoint-selection", "10.0.0.1:80"),
    ("x-unknown", "dropped"),
    ("cookie", "session=1"),
    ("x-forwarded-for", "10.9.9.9"),
];

#[tokio::test]
async fn no_header_and_no_field_of_a_client_reaches_an_engine_as_a_command() {
    let split = Split::new();
    let engine = Stub::start().await;
    let schedule = split.schedule(&[&engine.url], OLD, "", None);
    let govern = split.govern(&schedule, OLD);
    let body = r#"{ "model": "demo", "messages": [{"role": "user", "content": "hi 9007199254740993"}], "prio\u0072ity": -9,
        "priority": -9, "cache_salt": "theirs", "kv_transfer_params": {"remote_host": "10.0.0.1"}, "nvext": {"a": 1},
        "rid": "x", "request_id": "x", "vllm_xargs": {}, "extra_body": {"priority": 1}, "seed": 9007199254740993 }"#;
    let bearer = format!("Bearer {}", split.site.key("guests"));
    let mut headers = vec![
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
    ];
    headers.extend_from_slice(STEERING);
    let url = format!("{}/v1/chat/completions", govern.url());
    let twice = wire::send_with(Method::POST, &url, &headers, body)
        .await
        .expect("an answer");
    assert_eq!(
        (twice.status.as_u16(), twice.code().as_str()),
        (400, "duplicate_key"),
        "{}",
        twice.text()
    );
    let once = body.replace("\"priority\": -9,", "");
    let answer = wire::send_with(Method::POST, &url, &headers, once)
        .await
        .expect("an answer");
    assert_ok(&answer);

    let seen = engine.seen();
    let [request] = seen.as_slice() else {
        panic!("one request came through: {}", seen.len())
    };
    let mut names: Vec<&str> = request
        .headers()
        .keys()
        .map(http::HeaderName::as_str)
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["content-length", "content-type", "host", "x-request-id"]
    );
    let text = std::str::from_utf8(request.body()).expect("UTF-8");
    assert!(
        text.contains("9007199254740993\"}]") && text.contains("\"seed\": 9007199254740993"),
        "bytes are kept: {text}"
    );
    let sent: Value = serde_json::from_slice(request.body()).expect("JSON");
    let mut fields: Vec<&str> = sent
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["cache_salt", "max_tokens", "messages", "model", "seed"],
        "{text}"
    );
    assert_ne!(sent["cache_salt"], "theirs", "the salt is ours");
    assert_ne!(
        request.headers()["x-request-id"],
        answer.header("x-request-id"),
        "engines know attempts"
    );
}

#[tokio::test]
async fn a_wrong_key_refuses_everything_and_says_where_to_look() {
    let split = Split::new();
    let engine = Stub::start().await;
    let schedule = split.schedule(&[&engine.url], NEW, "", None);
    let govern = split.govern(&schedule, FALSE);
    for _ in 0..3 {
        let answer = split.ask(&govern).await;
        // The caller's key is good: what is wrong is ours, and 401 would send the caller to the wrong place.
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (500, "internal_error"),
            "{}",
            answer.text()
        );
    }
    assert!(engine.seen().is_empty());
    let page = wire::get(&format!("{}/metrics", schedule.admin_url()))
        .await
        .text();
    assert_eq!(
        wire::metric(&page, "headpond_scheduler_context_refusals_total"),
        3,
        "{page}"
    );
    let log = govern.log();
    assert!(
        log.contains("context_invalid"),
        "the log of governance says what is wrong: {log}"
    );
    assert_eq!(
        standing(&govern, "guests").await,
        (0, 0),
        "nothing is held or charged"
    );
}

#[tokio::test]
async fn without_a_scheduler_requests_are_refused_and_nothing_stays_held() {
    let split = Split::new();
    let engine = Running::engine(split.site.path(), "engine", &["--speed", "50"]);
    let address = Address::new();
    let schedule = split.schedule(&[engine.url()], OLD, "", Some(&address));
    let govern = split.govern(&schedule, OLD);
    assert_ok(&split.ask(&govern).await);
    let used = standing(&govern, "guests").await.0;
    schedule.kill();
    for _ in 0..3 {
        let answer = split.ask(&govern).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code().as_str()),
            (503, "no_endpoint"),
            "{}",
            answer.text()
        );
        assert_eq!(answer.header("x-headpond-work"), "none");
        assert!(!answer.header("retry-after").is_empty());
    }
    at_rest_of(&govern, "headpond_governance_holds_open").await;
    assert_eq!(
        standing(&govern, "guests").await,
        (used, 0),
        "the holds are released"
    );
    let back = split.schedule(&[engine.url()], OLD, "", Some(&address));
    assert_ok(&split.ask(&govern).await);
    assert!(govern.stop().success() && back.stop().success());
    split.site.verify();
}

#[tokio::test]
async fn keys_are_rotated_without_a_refusal() {
    let split = Split::new();
    let engine = Stub::start().await;
    let address = Address::new();
    let schedule = split.schedule(&[&engine.url], OLD, "", Some(&address));
    let govern = split.govern(&schedule, OLD);
    assert_ok(&split.ask(&govern).await);
    // First the verifier learns the new key, then the signer uses it, then the old one goes.
    assert!(schedule.stop().success());
    let schedule = split.schedule(&[&engine.url], &format!("{NEW}{OLD}"), "", Some(&address));
    assert_ok(&split.ask(&govern).await);
    assert!(govern.stop().success());
    let govern = split.govern(&schedule, &format!("{NEW}{OLD}"));
    assert_ok(&split.ask(&govern).await);
    assert!(schedule.stop().success());
    let schedule = split.schedule(&[&engine.url], NEW, "", Some(&address));
    assert_ok(&split.ask(&govern).await);
    assert!(govern.stop().success());
    let late = split.govern(&schedule, OLD);
    assert_eq!(split.ask(&late).await.status, 500, "the old key has ended");
}

#[tokio::test]
async fn the_wish_to_hear_of_the_wait_travels_and_a_refusal_after_that_costs_nothing() {
    let split = Split::new();
    let engine = Running::engine(split.site.path(), "engine", &["--speed", "0.02"]);
    let tight =
        "  room: 1\n  queue: { ttl_ms: 4000, comments_after_ms: 10, comments_every_ms: 50 }\n";
    let schedule = split.schedule(&[engine.url()], OLD, tight, None);
    let govern = split.govern(&schedule, OLD);
    let bearer = format!("Bearer {}", split.site.key("guests"));
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
        ("x-headpond-queue-comments", "1"),
    ];
    let url = format!("{}/v1/chat/completions", govern.url());
    let body = chat("hello", 200, true).to_string();
    let ask = || wire::open_with(Method::POST, &url, &headers, body.clone());
    let mut first = ask().await.expect("an answer");
    assert!(first.piece().await.is_some());
    let told = ask().await.expect("an answer");
    let id = told.header("x-request-id").to_owned();
    let text = told.rest().await;
    assert!(text.starts_with(": headpond queue"), "{text}");
    assert!(text.contains("\"code\":\"queue_expired\""), "{text}");
    let record = record(&govern, &id).await;
    assert_eq!(record["settlement"]["reason"], "no-work", "{record}");
    drop(first);
    at_rest_of(&schedule, "headpond_scheduler_in_flight").await;
}
