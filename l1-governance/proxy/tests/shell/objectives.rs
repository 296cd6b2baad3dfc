//! Objectives: what policy says reaches the scheduler, and what a caller says does not.

use std::sync::{Arc, Mutex};

use governance_context::Context;
use http::HeaderValue;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use serde_json::{Map, Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::support::*;

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self, about: &str) -> Vec<String> {
        let bytes = self.0.lock().expect("unpoisoned").clone();
        let text = String::from_utf8(bytes).expect("UTF-8");
        text.lines()
            .filter(|line| line.contains(about))
            .map(str::to_owned)
            .collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("unpoisoned").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

const FIELDS: [&str; 5] = ["band", "weight", "ttl_ms", "ttft_ms", "tpot_ms"];

fn stage() -> Stage {
    Stage::always(ok(answer(14, 0, 5)))
}

fn objectives(config: &mut Value) {
    config["objectives"] = json!({
        "interactive": {"band": 10, "ttl_ms": 5000, "ttft_ms": 800, "tpot_ms": 50},
        "batch": {"band": -1, "ttl_ms": 3_600_000},
    });
}

/// A request of somebody who would like to decide for themselves.
fn wish(key: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let body = chat(
        json!({"priority": -100, "nvext": {"agent_hints": {"priority": 9}},
        "metadata": {"x-headpond-objective": "interactive"}}),
    );
    let mut request = post("/v1/chat/completions", key, body);
    for name in [
        "x-gateway-inference-objective",
        "X-LLM-D-Inference-Objective",
        "x-headpond-objective",
        "x-slo-ttft-ms",
        "x-llm-d-slo-tpot-ms",
    ] {
        let name: http::HeaderName = name.parse().expect("a header name");
        request
            .headers_mut()
            .append(name, HeaderValue::from_static("interactive"));
    }
    request
}

/// The parts of a context that come from an objective.
fn promised(context: &Context) -> Value {
    json!({
        "objective": context.objective,
        "band": context.band,
        "weight": context.weight,
        "ttl_ms": context.ttl_ms,
        "ttft_ms": context.targets.ttft_ms,
        "tpot_ms": context.targets.tpot_ms,
    })
}

#[tokio::test]
async fn an_objective_reaches_the_scheduler_and_the_record() {
    let rig = Rig::with(stage(), |config| {
        objectives(config);
        config["tenants"][0]["objective"] = json!("interactive");
        config["tenants"][0]["weight"] = json!(3);
        config["tenants"][0]["projects"][0]["tpot_ms"] = json!(40);
        config["tenants"][0]["projects"][1]["objective"] = json!("batch");
    })
    .await;
    let answered = rig.send(wish(&key(1))).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    let (context, request) = rig.stage.last_call();
    assert_eq!(
        promised(&context),
        json!({"objective": "interactive", "band": 10, "weight": 3, "ttl_ms": 5000,
            "ttft_ms": 800, "tpot_ms": 40})
    );
    for name in [
        "x-gateway-inference-objective",
        "x-llm-d-inference-objective",
    ] {
        let all: Vec<_> = request.headers().get_all(name).iter().collect();
        assert_eq!(all, ["interactive"], "{name}");
    }
    let record = serde_json::to_value(&*rig.record(&answered)).expect("a record");
    assert_eq!(
        record["objective"],
        json!({"name": "interactive", "named_by": "tenant", "band": 10, "weight": 3,
            "ttl_ms": 5000, "ttft_ms": 800, "tpot_ms": 40,
            "overridden": {"weight": "tenant", "tpot_ms": "project"}})
    );

    rig.send(wish(&key(5))).await;
    let (context, _) = rig.stage.last_call();
    assert_eq!(
        promised(&context),
        json!({"objective": "batch", "band": -1, "weight": 3, "ttl_ms": 3_600_000,
            "ttft_ms": null, "tpot_ms": null}),
        "a caller's own wish for the better one changes nothing"
    );
}

#[tokio::test]
async fn the_name_a_caller_used_stands_beside_the_model_in_the_record() {
    let rig = Rig::new(stage()).await;
    for (asked, alias) in [("demo-alias", json!("demo-alias")), ("demo", json!(null))] {
        let answered = rig.chat(json!({"model": asked})).await;
        let record = serde_json::to_value(&*rig.record(&answered)).expect("a record");
        assert_eq!(
            (&record["model"], &record["alias"]),
            (&json!("demo"), &alias),
            "{asked}"
        );
    }
}

async fn make(rig: &Rig, token: &str, extra: Value) -> Answer {
    let mut body = json!({"tenant": "acme", "project": "app", "name": "fresh"});
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    rig.admin("POST", "/admin/v1/keys", token, body).await
}

#[tokio::test]
async fn a_stored_key_names_an_objective_that_exists() {
    let rig = Rig::with(stage(), objectives).await;
    let refused = make(&rig, ADMIN_TOKEN, json!({"objective": "gold"})).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["error"]["param"], "objective");
    assert!(
        refused.text().contains("one of batch, interactive"),
        "{}",
        refused.text()
    );

    let made = make(&rig, ADMIN_TOKEN, json!({"objective": "batch"})).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    assert_eq!(
        (&made["objective"], &made["objective_in_force"]),
        (&json!("batch"), &json!("batch"))
    );
    let text = made["key"].as_str().expect("the key");
    rig.send(wish(text)).await;
    assert_eq!(rig.stage.last_call().0.band.0, -1);

    let path = format!(
        "/admin/v1/keys/{}",
        made["public"].as_str().expect("a name")
    );
    for (version, value, status, expected) in [
        (1, json!("gold"), 400, json!("batch")),
        (1, json!(5), 400, json!("batch")),
        (1, json!("interactive"), 200, json!("interactive")),
        (2, json!(null), 200, json!(null)),
    ] {
        let body = json!({"version": version, "objective": value});
        let changed = rig.admin("PATCH", &path, ADMIN_TOKEN, body).await;
        assert_eq!(changed.status, status, "{}", changed.text());
        let shown = rig.admin("GET", &path, ADMIN_TOKEN, json!(null)).await;
        assert_eq!(shown.json()["objective"], expected);
    }
    rig.send(wish(text)).await;
    assert_eq!(rig.stage.last_call().0.band.0, 0, "at once");

    let none = Rig::new(stage()).await;
    let refused = make(&none, ADMIN_TOKEN, json!({"objective": "gold"})).await;
    assert!(
        refused.text().contains("defines none"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn a_lead_neither_chooses_an_objective_nor_leaves_its_own() {
    let rig = Rig::with(stage(), |config| {
        objectives(config);
        config["tenants"][0]["projects"][0]["keys"][2]["objective"] = json!("batch");
    })
    .await;
    let lead = key(3);
    let refused = make(&rig, &lead, json!({"objective": "interactive"})).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(
        refused.text().contains("only the admin token"),
        "{}",
        refused.text()
    );
    for extra in [json!({}), json!({"objective": "batch"})] {
        let made = make(&rig, &lead, extra).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let made = made.json();
        assert_eq!(made["objective"], "batch", "a key passes on its own");
        let path = format!(
            "/admin/v1/keys/{}",
            made["public"].as_str().expect("a name")
        );
        for value in [json!("interactive"), json!(null)] {
            let body = json!({"version": 1, "objective": value});
            let changed = rig.admin("PATCH", &path, &lead, body).await;
            assert_eq!(changed.status, 403, "{}", changed.text());
        }
    }
}

#[tokio::test]
async fn a_key_outlives_its_objective_and_has_that_of_its_tenant() {
    let rig = Rig::with(stage(), objectives).await;
    let made = make(&rig, ADMIN_TOKEN, json!({"objective": "interactive"}))
        .await
        .json();
    let text = made["key"].as_str().expect("the key");
    let gone = make(&rig, ADMIN_TOKEN, json!({"objective": "interactive"}))
        .await
        .json();
    let path = format!(
        "/admin/v1/keys/{}",
        gone["public"].as_str().expect("a name")
    );
    rig.admin("DELETE", &path, ADMIN_TOKEN, json!(null)).await;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let rig = rig
        .restart(|config| {
            config["objectives"] = json!({"batch": {"band": -1}});
            config["tenants"][0]["objective"] = json!("batch");
        })
        .await;
    for _ in 0..2 {
        let answered = rig.send(wish(text)).await;
        assert_eq!(answered.status, 200, "{}", answered.text());
    }
    let warned = log.lines("governance.objectives");
    assert_eq!(
        warned.len(),
        1,
        "once, and not for an ended key: {warned:?}"
    );
    assert!(warned[0].contains(made["public"].as_str().expect("a name")));
    let (context, _) = rig.stage.last_call();
    let objective = context.objective.as_ref().map(ToString::to_string);
    assert_eq!((objective.as_deref(), context.band.0), (Some("batch"), -1));
    let path = format!(
        "/admin/v1/keys/{}",
        made["public"].as_str().expect("a name")
    );
    let shown = rig
        .admin("GET", &path, ADMIN_TOKEN, json!(null))
        .await
        .json();
    assert_eq!(
        (&shown["objective"], &shown["objective_in_force"]),
        (&json!("interactive"), &json!("batch"))
    );
}

#[tokio::test]
async fn a_key_made_in_place_of_one_of_the_file_follows_the_file() {
    let name = |objective: &'static str| {
        move |config: &mut Value| {
            objectives(config);
            let key = &mut config["tenants"][0]["projects"][0]["keys"][0];
            key["objective"] = json!(objective);
            key["weight"] = json!(7);
        }
    };
    let rig = Rig::with(stage(), name("interactive")).await;
    let public = key(1).split('-').nth(1).expect("a public part").to_owned();
    let path = format!("/admin/v1/keys/{public}/rotate");
    let next = rig
        .admin("POST", &path, ADMIN_TOKEN, json!({}))
        .await
        .json();
    let text = next["key"].as_str().expect("the key").to_owned();
    rig.send(wish(&text)).await;
    let (context, _) = rig.stage.last_call();
    assert_eq!((context.band.0, context.weight), (10, 7));

    let rig = rig.restart(name("batch")).await;
    let answered = rig.send(wish(&text)).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    let (context, _) = rig.stage.last_call();
    assert_eq!((context.band.0, context.weight), (-1, 7));
    let path = format!(
        "/admin/v1/keys/{}",
        next["public"].as_str().expect("a name")
    );
    let shown = rig
        .admin("GET", &path, ADMIN_TOKEN, json!(null))
        .await
        .json();
    assert_eq!(shown["objective"], "batch");

    let version = shown["version"].clone();
    let body = json!({"version": version, "objective": "interactive"});
    let changed = rig.admin("PATCH", &path, ADMIN_TOKEN, body).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    rig.send(wish(&text)).await;
    assert_eq!(rig.stage.last_call().0.band.0, 10, "until the next start");
}

/// What a level of the configuration may say: an objective, fields, both or nothing.
fn level(with_name: bool) -> impl Strategy<Value = Map<String, Value>> {
    let number = |low: i64, high: i64| proptest::option::of(low..=high);
    let name = proptest::option::of(proptest::sample::select(vec!["a", "b"]));
    let fields = (
        number(i64::from(i32::MIN), i64::from(i32::MAX)),
        number(1, 1_000_000),
        number(1, 86_400_000),
        number(1, 86_400_000),
        number(1, 60_000),
    );
    (name, fields).prop_map(move |(name, (band, weight, ttl, ttft, tpot))| {
        let mut level = Map::new();
        if let Some(name) = name.filter(|_| with_name) {
            level.insert("objective".to_owned(), name.into());
        }
        for (field, value) in FIELDS.into_iter().zip([band, weight, ttl, ttft, tpot]) {
            if let Some(value) = value {
                level.insert(field.to_owned(), value.into());
            }
        }
        level
    })
}

/// The precedence, written out: key, project, tenant, objective, default.
fn reference(config: &Value, levels: [&Map<String, Value>; 3]) -> Value {
    let mut name = config["default_objective"].clone();
    for level in levels {
        if let Some(named) = level.get("objective") {
            name = named.clone();
        }
    }
    let mut expected = json!({"objective": name, "band": 0, "weight": 1, "ttl_ms": 60_000,
        "ttft_ms": null, "tpot_ms": null});
    let empty = Map::new();
    let objective = name
        .as_str()
        .and_then(|name| config["objectives"][name].as_object())
        .unwrap_or(&empty);
    for said in [objective].into_iter().chain(levels) {
        for field in FIELDS {
            if let Some(value) = said.get(field) {
                expected[field] = value.clone();
            }
        }
    }
    expected
}

#[test]
fn the_context_equals_the_precedence_written_out_whatever_the_caller_asks_for() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let cases = (
        (
            level(false),
            level(false),
            proptest::option::of(proptest::sample::select(vec!["a", "b"])),
        ),
        (level(true), level(true), level(true)),
        proptest::option::of(proptest::sample::select(vec!["a", "b"])),
    );
    let mut runner = TestRunner::new(Cases::with_cases(48));
    let result = runner.run(
        &cases,
        |((a, b, default), (tenant, project, of_key), stored)| {
            let mut written = Value::Null;
            let config = |config: &mut Value| {
                config["objectives"] = json!({"a": a, "b": b});
                config["default_objective"] = json!(default);
                let tenant_file = &mut config["tenants"][0];
                merge(tenant_file, &tenant);
                merge(&mut tenant_file["projects"][0], &project);
                merge(&mut tenant_file["projects"][0]["keys"][0], &of_key);
                written = config.clone();
            };
            let seen = runtime.block_on(async {
                let rig = Rig::with(stage(), config).await;
                rig.send(wish(&key(1))).await;
                let of_file = promised(&rig.stage.last_call().0);
                let made = make(&rig, ADMIN_TOKEN, json!({"objective": stored}))
                    .await
                    .json();
                rig.send(wish(made["key"].as_str().expect("the key"))).await;
                (of_file, promised(&rig.stage.last_call().0))
            });
            prop_assert_eq!(seen.0, reference(&written, [&tenant, &project, &of_key]));
            let mut of_stored = Map::new();
            if let Some(name) = stored {
                of_stored.insert("objective".to_owned(), name.into());
            }
            prop_assert_eq!(seen.1, reference(&written, [&tenant, &project, &of_stored]));
            Ok(())
        },
    );
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn merge(place: &mut Value, said: &Map<String, Value>) {
    for (name, value) in said {
        place[name] = value.clone();
    }
}
