//! The fixed order of judgement: of all that is wrong with a request, the first counts.

use http::Request;
use http_body_util::Full;
use serde_json::json;

use crate::support::*;

/// Everything that can be wrong, in the order in which it is judged.
const FAULTS: [(&str, u16, &str); 10] = [
    ("key", 401, "invalid_api_key"),
    ("path", 404, "not_found"),
    ("method", 405, "method_not_allowed"),
    ("encoding", 415, "unsupported_media_type"),
    ("size", 413, "request_too_large"),
    ("json", 400, "invalid_json"),
    ("model", 404, "model_not_found"),
    ("value", 400, "invalid_value"),
    ("context", 400, "context_length_exceeded"),
    ("rate", 429, "rate_limit_exceeded"),
];

/// A request with all of these faults.
fn faulty(faults: &[&str]) -> Request<Full<bytes::Bytes>> {
    let has = |fault: &str| faults.contains(&fault);
    let mut body = chat(json!({}));
    if has("model") {
        body["model"] = json!("hidden");
    }
    if has("value") {
        body["n"] = json!(-1);
    }
    if has("context") {
        body["max_tokens"] = json!(5000);
    }
    let mut text = body.to_string();
    if has("json") {
        text.pop();
    }
    if has("size") {
        text.push_str(&" ".repeat(3000));
    }
    let mut request = Request::builder()
        .method(if has("method") { "PUT" } else { "POST" })
        .uri(if has("path") {
            "/v1/nothing"
        } else {
            "/v1/chat/completions"
        })
        .header(
            "authorization",
            format!("Bearer {}", if has("key") { key(9) } else { key(1) }),
        );
    if has("encoding") {
        request = request.header("content-encoding", "gzip");
    }
    request.body(Full::from(text)).expect("a request")
}

#[tokio::test]
async fn of_all_faults_the_first_in_the_order_is_answered() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 1))), |config| {
        config["max_body_bytes"] = json!(2048);
        limit(
            config,
            "/tenants/0",
            json!([{"requests": 1, "per": "1h"}, {"tier": "D", "wtu": "0.1", "per": "24h"}]),
        );
    })
    .await;
    assert_eq!(
        rig.chat(json!({"max_tokens": 1})).await.status,
        200,
        "which uses up the rate"
    );
    let names: Vec<&str> = FAULTS.iter().map(|(name, ..)| *name).collect();
    for (at, (name, status, code)) in FAULTS.into_iter().enumerate() {
        let answer = rig.send(faulty(&names[at..])).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, code),
            "{name}"
        );
        assert_eq!(answer.header("x-headpond-reason"), code);
        assert_eq!(answer.header("content-type"), "application/json");
        assert!(!answer.header("x-request-id").is_empty());
    }
    assert_eq!(
        rig.stage.call_count(),
        1,
        "nothing that is refused is dispatched"
    );
    rig.assert_quiet().await;
}

#[tokio::test]
async fn after_the_rate_comes_the_quota_and_then_the_queue() {
    let full = Play::Whole(
        429,
        vec![("x-headpond-reason", "queue_full".into())],
        "{}".into(),
    );
    let poor = Rig::with(Stage::always(full.clone()), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"tier": "D", "wtu": "0", "per": "24h"}]),
        );
    })
    .await;
    assert_eq!(poor.chat(json!({})).await.code(), "insufficient_quota");
    assert_eq!(poor.stage.call_count(), 0);
    let rich = Rig::new(Stage::always(full)).await;
    assert_eq!(rich.chat(json!({})).await.code(), "queue_full");
}

#[tokio::test]
async fn every_bad_key_looks_the_same() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    let good = key(1);
    let revoked = key(2);
    let public = revoked[3..15].to_owned();
    let path = format!("/admin/v1/keys/{public}/revoke");
    assert_eq!(
        rig.admin("POST", &path, ADMIN_TOKEN, json!(null))
            .await
            .status,
        200
    );
    let mut wrong_secret = good.clone();
    wrong_secret.pop();
    wrong_secret.push('2');
    let mut texts = std::collections::BTreeSet::new();
    for (name, headers) in [
        ("none", vec![]),
        (
            "unknown",
            vec![("authorization", format!("Bearer {}", key(9)))],
        ),
        (
            "revoked",
            vec![("authorization", format!("Bearer {revoked}"))],
        ),
        ("expired", vec![("x-api-key", key(4))]),
        ("malformed", vec![("api-key", "hello".to_owned())]),
        ("basic", vec![("authorization", format!("Basic {good}"))]),
        (
            "wrong secret",
            vec![("authorization", format!("Bearer {wrong_secret}"))],
        ),
        (
            "two",
            vec![
                ("authorization", format!("Bearer {good}")),
                ("x-api-key", key(5)),
            ],
        ),
    ] {
        let mut request = Request::builder()
            .method("POST")
            .uri("/v1/chat/completions");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::from(chat(json!({})).to_string()))
            .expect("a request");
        let answer = rig.send(request).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (401, "invalid_api_key"),
            "{name}"
        );
        texts.insert(answer.text());
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    let in_query = get(&format!("/v1/models?api_key={good}"), &good);
    assert_eq!(rig.send(in_query).await.status, 401);
    for header in ["x-api-key", "api-key"] {
        let request = Request::builder().uri("/v1/models").header(header, &good);
        let request = request.body(Full::default()).expect("a request");
        assert_eq!(rig.send(request).await.status, 200, "{header}");
    }
}

#[tokio::test]
async fn unknown_and_forbidden_models_are_one_answer() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    let hidden = rig.chat(json!({"model": "hidden"})).await;
    let nothing = rig.chat(json!({"model": "nothing"})).await;
    assert_eq!(hidden.status, 404);
    assert_eq!(hidden.text(), nothing.text());
    let hidden = rig.send(get("/v1/models/hidden", &key(1))).await;
    let nothing = rig.send(get("/v1/models/nothing", &key(1))).await;
    assert_eq!((hidden.status, hidden.text()), (404, nothing.text()));
    assert_eq!(
        rig.send(get("/v1/models/hidden", &key(6))).await.status,
        200
    );
}

#[tokio::test]
async fn the_catalogue_shows_what_the_key_may_use() {
    let rig = Rig::new(Stage::always(ok(answer(1, 0, 1)))).await;
    let ids = |answer: &Answer| -> Vec<String> {
        let list = answer.json()["data"].as_array().expect("a list").clone();
        list.iter()
            .map(|model| model["id"].as_str().expect("an id").to_owned())
            .collect()
    };
    let list = rig.send(get("/v1/models", &key(1))).await;
    assert_eq!(ids(&list), ["demo", "demo-alias", "free", "unpriced"]);
    assert_eq!(ids(&rig.send(get("/models", &key(6))).await).len(), 5);
    let one = rig.send(get("/v1/models/demo-alias", &key(1))).await.json();
    assert_eq!(
        (&one["id"], &one["object"]),
        (&json!("demo-alias"), &json!("model"))
    );
    assert_eq!(rig.stage.call_count(), 0, "it works without engines");
}
