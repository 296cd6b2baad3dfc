//! Every call that a client can make is answered as the engine itself answers it.

use serde_json::{Value, json};

use crate::ask::{GENERATING, body, prompt};
use crate::engines::Engines;
use crate::front::{Front, Tokens};

#[tokio::test]
async fn the_models_of_the_engines_are_found_and_listed() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    assert_eq!(front.ready()["models"], json!(["tiny"]));
    let list = front.get("/v1/models", "acme").await;
    assert_eq!(list.json()["data"][0]["id"], "tiny");
    let one = front.get("/v1/models/tiny", "acme").await.json();
    assert_eq!(
        (&one["id"], &one["max_model_len"]),
        (&json!("tiny"), &json!(2048)),
        "as the engine says"
    );
    front.stop();
}

#[tokio::test]
async fn generating_calls_answer_with_the_usage_of_the_engine() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    for path in GENERATING {
        let request = body(path, &prompt(60), 5);
        let through = front.post(path, "acme", &request).await;
        assert_eq!(
            through.status,
            200,
            "{path}: {}",
            String::from_utf8_lossy(&through.body)
        );
        let direct = engines.all()[0].ask(path, &request).await;
        let (through, direct) = (through.json(), direct.json());
        let tokens = |answer: &Value| Tokens {
            cached: 0,
            ..Tokens::of(&answer["usage"])
        };
        assert_eq!(tokens(&through), tokens(&direct), "{path}");
        let members = |answer: &Value| {
            answer
                .as_object()
                .expect("an object")
                .keys()
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(members(&through), members(&direct), "{path}");
    }
    front.stop();
}

#[tokio::test]
async fn calls_that_only_count_are_passed_on() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    let messages = json!([{ "role": "user", "content": prompt(60) }]);
    for (path, request) in [
        (
            "/tokenize",
            json!({ "model": "tiny", "prompt": prompt(60) }),
        ),
        (
            "/tokenize",
            json!({ "model": "tiny", "messages": messages }),
        ),
        (
            "/detokenize",
            json!({ "model": "tiny", "tokens": [100, 200, 300] }),
        ),
        (
            "/v1/messages/count_tokens",
            json!({ "model": "tiny", "messages": messages }),
        ),
    ] {
        let through = front.post(path, "acme", &request).await;
        let direct = engines.all()[0].ask(path, &request).await;
        assert_eq!(
            (through.status, through.json()),
            (direct.status, direct.json()),
            "{path}"
        );
    }
    front.stop();
}
