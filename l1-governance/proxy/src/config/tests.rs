use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;

mod objectives;

fn minimal() -> Value {
    json!({
        "models": [{"name": "demo", "aliases": ["d"], "context_tokens": 4096,
                    "price": {"uncached": "0.001", "output": 0.002}}],
        "tenants": [{"name": "acme", "projects": [{"name": "app", "users": [{"name": "ann"}],
            "keys": [{"name": "main", "user": "ann", "secret": {"env": "KEY"}}]}]}],
    })
}

fn check(config: Value) -> Result<Config, ConfigError> {
    Config::check(serde_json::from_value::<File>(config).expect("the shape of a configuration"))
}

#[test]
fn what_is_left_out_has_a_default() {
    let config = check(minimal()).expect("a valid configuration");
    let model = config.models.find("d").expect("by its alias");
    assert_eq!(
        (model.name.as_str(), model.served_as.as_str()),
        ("demo", "demo")
    );
    assert_eq!(
        (model.max_output_tokens, model.default_max_tokens),
        (4096, 1024)
    );
    let rates = model.price.expect("a price");
    assert_eq!(
        (rates.uncached.0, rates.cached.0, rates.decode.0),
        (1_000_000_000, 1_000_000_000, 2_000_000_000)
    );
    assert_eq!(config.sizes.body, 64 * 1024 * 1024);
    assert_eq!(config.timeouts.idle, Duration::from_secs(75));
    assert_eq!(config.timeouts.keep_alive_grace, Duration::from_secs(10));
    assert!(config.allowed_origins.is_empty());
    assert_eq!(config.no_price, Unpriced::Refuse);
}

#[test]
fn the_version_follows_the_settings_and_nothing_else() {
    let version = |config: Value| check(config).expect("valid").version;
    let mut other = minimal();
    other["tenants"][0]["weight"] = json!(2);
    assert_eq!(version(minimal()), version(minimal()));
    assert_ne!(version(minimal()), version(other));
}

#[test]
fn an_empty_section_is_valid() {
    assert!(check(json!({})).is_ok());
}

/// Sets one value of the minimal configuration and expects a complaint about it.
fn refuses(pointer: &str, value: &Value, complaint: &Expect) {
    let mut config = minimal();
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    config
        .pointer_mut(parent)
        .expect("a place in the configuration")[name] = value.clone();
    let error = check(config).expect_err("not valid");
    complaint.assert_eq(&error.to_string());
}

#[test]
fn errors_name_the_field_the_value_and_what_is_allowed() {
    for (pointer, value, complaint) in [
        (
            "/tenants/0/limits",
            json!([{"requests": 0, "per": "1m"}]),
            expect!["governance.tenants[0].limits[0].requests: 0 is not allowed; use at least 1"],
        ),
        (
            "/tenants/0/limits",
            json!([{"requests": 5, "per": "1 minute"}]),
            expect![[
                r#"governance.tenants[0].limits[0].per: "1 minute" is not allowed; use a whole number above 0 and one unit of ms, s, m, h, d; for example 30s"#
            ]],
        ),
        (
            "/tenants/0/limits",
            json!([{"requests": 5}]),
            expect![[
                "governance.tenants[0].limits[0].per: nothing is not allowed; use the time in which so many may come, for example 1m"
            ]],
        ),
        (
            "/tenants/0/limits",
            json!([{"wtu": "NaN", "per": "1h"}]),
            expect![[
                r#"governance.tenants[0].limits[0].wtu: "NaN" is not allowed; use a decimal number of at least 0 with at most 6 digits after the point"#
            ]],
        ),
        (
            "/tenants/0/limits",
            json!([{"wtu": 5, "per": "1h", "tier": "A"}]),
            expect![[
                r#"governance.tenants[0].limits[0].tier: "A" is not allowed; use one of B, D"#
            ]],
        ),
        (
            "/tenants/0/limits",
            json!([{"wtu": 5, "per": "1h"}, {"wtu": 6, "per": "1h"}]),
            expect![[
                r#"governance.tenants[0].limits[1]: "wtu-1h" is not allowed; use a limit of its own (the account has two policies named wtu-1h)"#
            ]],
        ),
        (
            "/tenants/0/limits",
            json!([{"concurrency": 5, "requests": 5, "per": "1s"}]),
            expect![
                "governance.tenants[0].limits[0]: this combination is not allowed; use exactly one of {requests, per, burst?}, {concurrency}, {wtu, per, tier: B|D}, {tokens, per, tier: B|D}"
            ],
        ),
        (
            "/tenants/0/models",
            json!(["dmo"]),
            expect![[r#"governance.tenants[0].models[0]: "dmo" is not allowed; use one of demo"#]],
        ),
        (
            "/tenants/0/ratio",
            json!(0),
            expect![
                "governance.tenants[0].ratio: 0 is not allowed; use a positive decimal or fraction, such as 0.75 or 3/2"
            ],
        ),
        (
            "/tenants/0/name",
            json!("a/b"),
            expect![[
                r#"governance.tenants[0].name: "a/b" is not allowed; use 1 to 64 letters, digits, '-', '_' or '.'"#
            ]],
        ),
        (
            "/tenants/0/projects/0/keys/0/user",
            json!("bob"),
            expect![[
                r#"governance.tenants[0].projects[0].keys[0].user: "bob" is not allowed; use a name listed under users of the project"#
            ]],
        ),
        (
            "/tenants/0/projects/0/keys/0/secret",
            json!({}),
            expect![
                "governance.tenants[0].projects[0].keys[0].secret: nothing is not allowed; use exactly one of {file: PATH} and {env: NAME}; secrets never stand in this file"
            ],
        ),
        (
            "/tenants/0/projects/0/keys/0/role",
            json!("admin"),
            expect![[
                r#"governance.tenants[0].projects[0].keys[0].role: "admin" is not allowed; use one of member, lead"#
            ]],
        ),
        (
            "/models/0/price",
            json!({"uncached": "2.5", "output": "10"}),
            expect![[
                r#"governance.models[0].price.uncached: "2.5" is not allowed; use at most 1 WTU per token; is it a price per million?"#
            ]],
        ),
        (
            "/models/0/price",
            json!({"uncached": "0.1", "cached": "0.2", "output": "0.1"}),
            expect![[
                r#"governance.models[0].price.cached: "0.2" is not allowed; use at most the uncached rate"#
            ]],
        ),
        (
            "/models/0/price",
            json!({"uncached": "-1", "output": "0.1"}),
            expect![[
                r#"governance.models[0].price.uncached: "-1" is not allowed; use a decimal number of at least 0 with at most 12 digits after the point"#
            ]],
        ),
        (
            "/models/0/engine",
            json!("trt"),
            expect![[
                r#"governance.models[0].engine: "trt" is not allowed; use one of vllm, sglang, openai"#
            ]],
        ),
        (
            "/models/0/max_output_tokens",
            json!(5000),
            expect![
                "governance.models[0].max_output_tokens: 5000 is not allowed; use 1 to 4096 tokens"
            ],
        ),
        (
            "/models/0/aliases",
            json!(["demo"]),
            expect![[
                r#"governance.models[0]: "demo" is not allowed; use names and aliases that no other model has"#
            ]],
        ),
        (
            "/models/0/bytes_per_token_floor",
            json!(0),
            expect![
                "governance.models[0].bytes_per_token_floor: 0 is not allowed; use more than 0 bytes"
            ],
        ),
        (
            "/cors",
            json!({"allowed_origins": ["app.example"]}),
            expect![[
                r#"governance.cors.allowed_origins[0]: "app.example" is not allowed; use scheme://host[:port] without a path, or "*""#
            ]],
        ),
        (
            "/timeouts",
            json!({"idle": "0s"}),
            expect![[
                r#"governance.timeouts.idle: "0s" is not allowed; use a whole number above 0 and one unit of ms, s, m, h, d; for example 30s"#
            ]],
        ),
        (
            "/no_price",
            json!("free"),
            expect![[r#"governance.no_price: "free" is not allowed; use one of refuse, floor"#]],
        ),
        (
            "/floor_wtu",
            json!(5),
            expect![[
                r#"governance.floor_wtu: 5 is not allowed; use no value, unless no_price is "floor""#
            ]],
        ),
        (
            "/max_body_bytes",
            json!(10),
            expect![
                "governance.max_body_bytes: 10 is not allowed; use bytes from 1024 to 1073741824"
            ],
        ),
    ] {
        refuses(pointer, &value, &complaint);
    }
}

#[test]
fn every_kind_of_window_can_be_written() {
    for (limit, mode, period) in [
        (json!({"wtu": "1.5", "per": "90m"}), "rolling", "5400s"),
        (
            json!({"wtu": 1, "window": "calendar", "per": "1mo", "zone": "+02:00"}),
            "calendar",
            "1mo",
        ),
        (
            json!({"wtu": 1, "window": "anchor", "per": "1mo", "anchor": 1_700_000_000}),
            "anchor",
            "1mo",
        ),
        (
            json!({"tokens": 1000, "window": "balance", "tier": "D"}),
            "balance",
            "",
        ),
    ] {
        let mut config = minimal();
        config["tenants"][0]["limits"] = json!([limit]);
        let config = check(config).expect("a valid configuration");
        let policy = config.tenants[0].limits[0]
            .policy()
            .expect("a policy")
            .clone();
        assert_eq!(
            (policy.window.mode(), policy.window.period().as_str()),
            (mode, period)
        );
    }
}

#[test]
fn unknown_fields_are_refused() {
    for text in [
        r#"{"model": []}"#,
        r#"{"models": [{"name": "a", "context_tokens": 1, "colour": "red"}]}"#,
        r#"{"tenants": [{"name": "a", "limits": [{"rpm": 1}]}]}"#,
        r#"{"tenants": [{"name": "a", "projects": [{"name": "p", "keys": [{"name": "k", "secret": {"text": "x"}}]}]}]}"#,
    ] {
        assert!(serde_json::from_str::<File>(text).is_err(), "{text}");
    }
}
