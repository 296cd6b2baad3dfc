//! What callers get: shapes of errors, headers, and nothing of the inside. Cases 47 and 51.

use serde_json::{Value, json};

use crate::support::*;

#[tokio::test]
async fn errors_have_the_shape_of_the_family() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": "nothing"})),
        ("/v1/chat/completions", json!({"model": "demo", "n": "x"})),
        ("/v1/nothing", json!({})),
    ] {
        let answer = rig.post(path, body).await;
        let error = answer.json()["error"].clone();
        assert!(
            error["message"].is_string() && error["type"].is_string() && error["code"].is_string()
        );
        assert!(error.get("param").is_some(), "{error}");
        assert_eq!(answer.header("content-type"), "application/json");
    }
    for (path, body, kind) in [
        (
            "/v1/messages",
            json!({"model": "nothing", "max_tokens": 1, "messages": []}),
            "not_found_error",
        ),
        (
            "/v1/messages",
            json!({"model": "demo", "max_tokens": -1, "messages": []}),
            "invalid_request_error",
        ),
        ("/v1/messages/nothing", json!({}), "not_found_error"),
    ] {
        let answer = rig.post(path, body).await;
        let value = answer.json();
        assert_eq!(
            (&value["type"], &value["error"]["type"]),
            (&json!("error"), &json!(kind)),
            "{value}"
        );
        assert!(value["error"]["message"].is_string());
        assert_eq!(value["request_id"], answer.header("request-id"));
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    }
    let anonymous = rig
        .send(post("/v1/messages", "hp-nothing", json!({})))
        .await;
    assert_eq!(anonymous.json()["error"]["type"], "authentication_error");
}

#[tokio::test]
async fn bad_values_name_their_field() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    for (body, param) in [
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1e30}), "max_tokens"),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"n": 0}), "n"),
        (json!({"stream": "yes"}), "stream"),
    ] {
        let answer = rig.chat(body.clone()).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid_value"),
            "{body}"
        );
        assert_eq!(answer.json()["error"]["param"], param);
    }
    let twice = r#"{"model":"demo","messages":[],"model":"free"}"#;
    let mut request = post("/v1/chat/completions", &key(1), json!({}));
    *request.body_mut() = http_body_util::Full::from(twice);
    let answer = rig.send(request).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "duplicate_key")
    );
}

#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_and_one_that_may_fit_is_not() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    // The context is 4096 tokens; no token is longer than 128 bytes.
    let message =
        |bytes: usize| json!({"messages": [{"role": "user", "content": "x".repeat(bytes)}]});
    assert_eq!(rig.chat(message(4096 * 100)).await.status, 200);
    let refused = rig.chat(message(4098 * 128)).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "context_length_exceeded")
    );
    assert_eq!(refused.json()["error"]["param"], "messages");
    let tokens: Vec<u32> = vec![1; 4097];
    let exact = rig
        .post(
            "/v1/completions",
            json!({"model": "demo", "prompt": tokens}),
        )
        .await;
    assert_eq!(exact.code(), "context_length_exceeded");
    assert_eq!(rig.stage.call_count(), 1);
}

#[tokio::test]
async fn case_47_what_a_caller_says_about_itself_does_not_count() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    let body = chat(json!({
        "user": "admin", "priority": -100, "cache_salt": "acme-salt", "customer": "umbrella",
        "extra_body": {"priority": 1}, "litellm_params": {"api_base": "http://evil"},
        "tags": ["vip"], "nvext": {"agent_hints": {}}, "kv_transfer_params": {},
        "tools": [{"type": "function", "api_base": "http://evil",
                   "function": {"name": "f", "parameters": {"type": "object"}}}],
        "temperature": 0.5, "seed": 12_345_678_901_234_567_890_u64,
    }));
    let mut request = post("/v1/chat/completions", &key(1), body);
    for (name, value) in [
        ("x-headpond-context", "forged"),
        ("X-Gateway-Inference-Fairness-Id", "umbrella"),
        ("x-llm-d-inference-objective", "vip"),
        ("x-gateway-destination-endpoint", "10.0.0.1:8000"),
        ("cookie", "a=b"),
        ("x-unknown", "1"),
        ("x-request-id", "mine"),
        ("user-agent", "tests"),
    ] {
        request.headers_mut().append(
            http::HeaderName::from_bytes(name.as_bytes()).expect("a name"),
            value.parse().expect("a value"),
        );
    }
    let answer = rig.send(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (context, forwarded) = rig.stage.last_call();
    let text = String::from_utf8(forwarded.body().to_vec()).expect("UTF-8");
    for gone in [
        "admin",
        "acme-salt",
        "umbrella",
        "extra_body",
        "evil",
        "vip",
        "nvext",
        "kv_transfer",
        "-100",
    ] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    for kept in ["0.5", "12345678901234567890", "\"name\":\"f\""] {
        assert!(text.contains(kept), "{kept} in {text}");
    }
    let headers = forwarded.headers();
    for gone in [
        "x-headpond-context",
        "x-gateway-destination-endpoint",
        "cookie",
        "x-unknown",
        "authorization",
        "x-llm-d-inference-objective",
    ] {
        assert!(!headers.contains_key(gone), "{gone}");
    }
    assert_eq!(headers["x-gateway-inference-fairness-id"], "acme");
    assert_eq!(headers["user-agent"], "tests");
    assert_ne!(headers["x-request-id"], "mine");
    assert_eq!(
        (
            context.fairness.as_str(),
            context.band.0,
            context.cache_domain.as_str()
        ),
        ("acme", 0, "tenant:acme")
    );
    let record = rig.record(&answer);
    assert_eq!(record.client_request_id.as_deref(), Some("mine"));
    assert!(
        record
            .removed
            .iter()
            .any(|path| path.contains("extra_body")),
        "{:?}",
        record.removed
    );
    let other = rig
        .send(post("/v1/chat/completions", &key(6), chat(json!({}))))
        .await;
    assert_eq!(other.status, 200);
    let (context, _) = rig.stage.last_call();
    assert_eq!(
        (context.fairness.as_str(), context.band.0, context.weight),
        ("umbrella", 5, 3)
    );
    let salts: std::collections::BTreeSet<String> = rig
        .stage
        .calls
        .lock()
        .expect("unpoisoned")
        .iter()
        .map(|(_, request)| {
            let body: Value = serde_json::from_slice(request.body()).expect("JSON");
            body["cache_salt"].as_str().expect("a salt").to_owned()
        })
        .collect();
    assert_eq!(salts.len(), 2, "two tenants never share a cache");
}

#[tokio::test]
async fn case_51_nothing_of_the_inside_leaves_with_an_answer() {
    let headers = || {
        vec![
            ("server", "uvicorn".to_owned()),
            ("set-cookie", "session=secret".to_owned()),
            ("x-internal-url", "http://10.0.0.7:8000".to_owned()),
            ("location", "http://10.0.0.7:8000/x".to_owned()),
            ("x-headpond-endpoint", "engine-3".to_owned()),
            ("x-headpond-queue-ms", "12".to_owned()),
            ("retry-after", "7".to_owned()),
        ]
    };
    let error = json!({"error": {"message": "overloaded: http://10.0.0.7:8000 said no",
        "type": "rate_limit_error", "param": "messages", "code": "engine_busy"}});
    for (status, body) in [(200, answer(1, 0, 1)), (429, error)] {
        let rig = Rig::new(Stage::always(Play::Whole(
            status,
            headers(),
            body.to_string(),
        )))
        .await;
        let answer = rig.chat(json!({})).await;
        assert_eq!(answer.status, status);
        for gone in [
            "server",
            "set-cookie",
            "x-internal-url",
            "location",
            "x-headpond-endpoint",
            "x-headpond-queue-ms",
        ] {
            assert_eq!(answer.header(gone), "", "{gone}");
        }
        assert!(!answer.text().contains("10.0.0.7"), "{}", answer.text());
        assert_eq!(answer.header("retry-after"), "7");
        if status == 429 {
            let error = &answer.json()["error"];
            assert_eq!(
                (&error["code"], &error["param"]),
                (&json!("engine_busy"), &json!("messages"))
            );
        }
        let record = rig.record(&answer);
        assert_eq!(record.scheduling.endpoint.as_deref(), Some("engine-3"));
        assert_eq!(record.scheduling.queue_ms, Some(12));
    }
}

#[tokio::test]
async fn a_lead_sees_where_a_request_ran_and_what_it_cost() {
    let headers = vec![("x-headpond-endpoint", "engine-3".to_owned())];
    let rig = Rig::new(Stage::always(Play::Whole(
        200,
        headers,
        answer(10, 0, 5).to_string(),
    )))
    .await;
    let answer = rig
        .send(post("/v1/chat/completions", &key(3), chat(json!({}))))
        .await;
    assert_eq!(answer.header("x-headpond-endpoint"), "engine-3");
    assert_eq!(answer.header("x-headpond-charged-wtu"), "0.02");
}

#[tokio::test]
async fn a_refusal_of_the_scheduler_says_when_to_come_back() {
    let headers = vec![
        ("x-headpond-reason", "queue_wait".to_owned()),
        ("x-headpond-work", "none".to_owned()),
        ("retry-after-ms", "1200".to_owned()),
    ];
    let body = json!({"error": {"message": "The predicted wait is 9 s. Please come back.", "code": "queue_wait"}});
    let rig = Rig::new(Stage::always(Play::Whole(429, headers, body.to_string()))).await;
    let answer = rig.chat(json!({})).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "queue_wait"));
    assert_eq!(
        (
            answer.header("retry-after"),
            answer.header("retry-after-ms")
        ),
        ("2", "1200")
    );
    assert_eq!(answer.header("x-should-retry"), "true");
    assert_eq!(answer.header("x-headpond-work"), "none");
    let message = answer.json()["error"]["message"]
        .as_str()
        .expect("text")
        .to_owned();
    assert!(
        message.contains("The predicted wait is 9 s") && message.contains("try again in 1.2s"),
        "{message}"
    );
}

#[tokio::test]
async fn whole_answers_state_their_length() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    let response = rig.open("/v1/chat/completions", chat(json!({}))).await;
    assert_eq!(
        exact_size(&response),
        Some(answer(1, 0, 1).to_string().len() as u64)
    );
    let answer = Answer::read(response).await;
    assert!(answer.header("openai-processing-ms").parse::<u64>().is_ok());
}

#[tokio::test]
async fn scheduling_case_21_an_answer_to_an_alias_keeps_its_text_to_the_byte() {
    let text = "ask org/demo-7b, demo or demo-alias: {\"model\":\"org/demo-7b\"}";
    let mut said = answer(3, 0, 5);
    said["choices"][0]["message"]["content"] = json!(text);
    let rig = Rig::new(Stage::always(ok(said.clone()))).await;
    let got = rig.chat(json!({"model": "demo-alias"})).await;
    assert_eq!(rig.stage.last_body()["model"], "org/demo-7b");
    assert_eq!(
        got.json(),
        said,
        "the engine's own words, its model name included"
    );
    let stream = vec![data(&chunk(text, 3, 5)), data("data: [DONE]\n\n")];
    let rig = Rig::new(Stage::always(Play::Stream(stream))).await;
    let got = rig
        .chat(json!({"model": "demo-alias", "stream": true}))
        .await;
    assert!(
        got.text().contains(&Value::from(text).to_string()),
        "{}",
        got.text()
    );
}

#[tokio::test]
async fn case_42_a_request_is_one_attempt_here_and_says_that_retrying_is_the_callers() {
    let headers = [
        ("x-headpond-reason", "upstream_error"),
        ("x-headpond-work", "prefill"),
    ];
    let headers = headers
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec();
    let failed = Play::Whole(
        502,
        headers,
        json!({"error": {"message": "cut"}}).to_string(),
    );
    let rig = Rig::new(Stage::always(failed)).await;
    let mut ids = Vec::new();
    for tries in 1..=3 {
        let got = rig.chat(json!({})).await;
        assert_eq!((got.status, got.header("x-should-retry")), (502, "true"));
        assert_eq!(got.header("x-headpond-work"), "prefill");
        let (context, _) = rig.stage.last_call();
        assert_eq!(context.request, got.request_id(), "one id, from end to end");
        assert_eq!(rig.stage.call_count(), tries, "L1 adds no tries of its own");
        ids.push(got.request_id());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "each try of a client is a request of its own");
}
