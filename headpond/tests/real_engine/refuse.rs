//! What an engine refuses reaches the client in the words of its API, and costs nothing.

use serde_json::{Value, json};

use crate::ask::{GENERATING, body, prompt};
use crate::engines::Engines;
use crate::front::Front;

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_refused_in_every_api() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    for path in GENERATING {
        for stream in [false, true] {
            let mut request = body(path, &prompt(2_300), 4);
            request["stream"] = stream.into();
            let refusal = Refusal::of(&front, path, &request).await;
            assert_eq!(
                (refusal.status, &*refusal.reason),
                (400, "context_length_exceeded"),
                "{path}"
            );
            assert!(
                refusal.message().contains("maximum context length"),
                "{path}: {}",
                refusal.body
            );
            assert_eq!(refusal.settled, "released", "{path}");
        }
    }
    front.stop();
}

#[tokio::test]
async fn bad_values_and_unknown_models_are_refused_by_name() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    for path in GENERATING {
        for (member, value, status, reason, named) in [
            (
                "temperature",
                json!(-1),
                400,
                "invalid_request",
                "temperature",
            ),
            ("model", json!("nope"), 404, "model_not_found", "model"),
        ] {
            let mut request = body(path, &prompt(40), 4);
            request[member] = value;
            let refusal = Refusal::of(&front, path, &request).await;
            assert_eq!(
                (refusal.status, &*refusal.reason),
                (status, reason),
                "{path}: {}",
                refusal.body
            );
            assert!(
                refusal.message().contains(named),
                "{path}: {}",
                refusal.body
            );
            assert_ne!(refusal.settled, "committed", "{path}");
        }
    }
    let embeddings = Refusal::of(
        &front,
        "/v1/embeddings",
        &json!({ "model": "tiny", "input": "a" }),
    )
    .await;
    assert_eq!(
        (embeddings.status, &*embeddings.settled),
        (404, "released"),
        "a model that only generates"
    );
    front.stop();
}

struct Refusal {
    status: u16,
    reason: String,
    body: Value,
    settled: String,
}

impl Refusal {
    async fn of(front: &Front, path: &str, request: &Value) -> Self {
        let answer = front.post(path, "acme", request).await;
        let record = front.record(answer.header("x-request-id")).await;
        let refusal = Self {
            status: answer.status.as_u16(),
            reason: answer.header("x-headpond-reason").to_owned(),
            body: answer.json(),
            settled: record.state().to_owned(),
        };
        refusal.check_shape(path);
        refusal
    }

    fn message(&self) -> &str {
        self.body["error"]["message"]
            .as_str()
            .expect("an error has a message")
    }

    /// The shape that the SDKs of each API parse.
    fn check_shape(&self, path: &str) {
        let error = &self.body["error"];
        assert!(error["type"].is_string(), "{path}: {}", self.body);
        if path == "/v1/messages" {
            assert_eq!(self.body["type"], "error", "{path}: {}", self.body);
        } else {
            assert_eq!(error["code"], *self.reason, "{path}: {}", self.body);
        }
    }
}
