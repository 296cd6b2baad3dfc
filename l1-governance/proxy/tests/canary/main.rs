//! Case 48: canaries planted in every input appear in no log, metric, record, error or answer. Alone
//! in its process, because the log it reads is the process's.
#![allow(
    clippy::float_cmp,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::type_complexity,
    reason = "a test says what it means in one line, and fails by a panic"
)]

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../shell/support.rs"]
mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};

use http::Request;
use http_body_util::Full;
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use support::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

const CANARY: &str = "CANARY7f3a";

#[tokio::test]
async fn case_48_a_canary_in_every_input_is_found_nowhere() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only test of its process");
    let plays = [
        ok(answer(10, 0, 5)),
        Play::Stream(whole_stream(10, 3)),
        Play::Whole(
            400,
            Vec::new(),
            json!({"error": {"message": "bad", "code": "x"}}).to_string(),
        ),
        Play::Stream(vec![data(&chunk("x", 10, 1)), Piece::Cut]),
        Play::Panic,
    ];
    let mut seen = String::new();
    for play in plays {
        let rig = Rig::new(Stage::always(play)).await;
        for (path, body) in [
            (
                "/v1/chat/completions",
                json!({"model": "demo", "stream": true,
                "messages": [{"role": "user", "content": CANARY}],
                "metadata": {"note": CANARY}, "user": CANARY, "api_key": CANARY,
                "tools": [{"type": "function", "function": {"name": "f", "description": CANARY}}]}),
            ),
            (
                "/v1/completions",
                json!({"model": "demo", "prompt": CANARY}),
            ),
            (
                "/v1/messages",
                json!({"model": "demo", "max_tokens": 3, "system": CANARY,
                "messages": [{"role": "user", "content": CANARY}]}),
            ),
            (
                "/v1/chat/completions",
                json!({"model": "demo", "n": CANARY, "messages": []}),
            ),
            (
                "/v1/chat/completions",
                json!({"model": CANARY, "messages": []}),
            ),
        ] {
            let mut request = post(&format!("{path}?session={CANARY}"), &key(1), body);
            for name in ["cookie", "x-api-key2", "x-forwarded-for", "traceparent"] {
                request
                    .headers_mut()
                    .insert(name, CANARY.parse().expect("a value"));
            }
            let answer = rig.send(request).await;
            seen.push_str(&answer.text());
            let headers = format!("{:?}", answer.headers);
            seen.push_str(&headers);
        }
        let bad_key = Request::builder()
            .method("POST")
            .uri(format!("/v1/chat/completions?api_key={CANARY}"))
            .header("authorization", format!("Bearer {CANARY}"))
            .body(Full::from(CANARY))
            .expect("a request");
        seen.push_str(&rig.send(bad_key).await.text());
        seen.push_str(&rig.metrics());
        for record in rig.governance.records(100) {
            seen.push_str(&serde_json::to_string(&record).expect("a record serialises"));
        }
        seen.push_str(
            &rig.admin("GET", "/admin/v1/keys", ADMIN_TOKEN, json!(null))
                .await
                .text(),
        );
        seen.push_str(
            &rig.admin("GET", "/admin/v1/accounts", ADMIN_TOKEN, json!(null))
                .await
                .text(),
        );
    }
    let written = log.0.lock().expect("unpoisoned").clone();
    let log = String::from_utf8(written).expect("UTF-8");
    assert!(
        log.contains("\"target\":\"access\"") && log.contains("\"tenant\":\"acme\""),
        "the log is on"
    );
    seen.push_str(&log);
    let secret = key(1);
    let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
    let secret_part = secret.rsplit('-').next().expect("a secret").to_owned();
    for canary in [
        CANARY.to_owned(),
        hash(CANARY),
        secret.clone(),
        secret_part.clone(),
        hash(&secret),
        hash(&secret_part),
        ADMIN_TOKEN.to_owned(),
        hash(ADMIN_TOKEN),
    ] {
        let at = seen.find(&canary);
        assert!(
            at.is_none(),
            "{canary}: {:?}",
            at.map(|at| &seen[at.saturating_sub(300)..at + 60])
        );
    }
}
