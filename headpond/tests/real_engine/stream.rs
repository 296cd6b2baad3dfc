//! A stream reaches the client as the engine would have sent it, although usage is asked for in every event.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::ask::{prompt, streamed};
use crate::engines::Engines;
use crate::front::{Front, Tokens, data, events};

/// What a client can ask for.
const OPTIONS: [Option<&str>; 4] = [
    None,
    Some(r#"{"include_usage":false}"#),
    Some(r#"{"include_usage":true}"#),
    Some(r#"{"include_usage":true,"continuous_usage_stats":true}"#),
];

#[tokio::test]
async fn events_have_the_members_that_the_client_asked_for() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for options in OPTIONS {
            let mut request = streamed(path, &prompt(60), 6);
            if let Some(options) = options {
                request["stream_options"] = serde_json::from_str(options).expect("JSON");
            }
            let mut through = front.open(path, "acme", &request).await;
            let through = through.finish().await.to_owned();
            let direct = engines.all()[0].ask(path, &request).await;
            let direct = String::from_utf8(direct.body.to_vec()).expect("UTF-8");
            assert_eq!(
                shapes(&through),
                shapes(&direct),
                "{path} {options:?}\n{through}\n{direct}"
            );
            assert_eq!(data(&through).last(), Some("[DONE]"), "{path}");
        }
    }
    front.stop();
}

#[tokio::test]
async fn protocols_with_usage_of_their_own_keep_it() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    for (path, usage) in [
        ("/v1/messages", "/usage"),
        ("/v1/responses", "/response/usage"),
    ] {
        let request = streamed(path, &prompt(60), 6);
        let mut stream = front.open(path, "acme", &request).await;
        let text = stream.finish().await.to_owned();
        let reported = events(&text).filter_map(|event| {
            event
                .pointer(usage)
                .filter(|usage| usage.is_object())
                .cloned()
        });
        let reported = reported.last().expect("the engine reports usage");
        let record = front.record(&stream.id()).await;
        assert_eq!(record.charged(), Tokens::of(&reported), "{path}");
        assert_eq!(record.charged().output, 6, "{path}");
    }
    front.stop();
}

/// The kinds of events in a stream: how many choices, which members, whether the usage is one. An event may carry
/// several tokens, so their number says nothing. vLLM puts `system_fingerprint` into the last event of all, which is
/// the one with the usage: who does not ask for that gets neither.
fn shapes(text: &str) -> BTreeSet<String> {
    let shape = |event: Value| {
        let members: Vec<&String> = event
            .as_object()
            .expect("an object")
            .keys()
            .filter(|name| *name != "system_fingerprint")
            .collect();
        let choices = event["choices"].as_array().map(Vec::len);
        let usage = event.get("usage").map(Value::is_object);
        json!([choices, members, usage]).to_string()
    };
    events(text).map(shape).collect()
}
