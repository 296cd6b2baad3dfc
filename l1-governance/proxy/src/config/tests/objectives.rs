use serde_json::{Value, json};

use super::{check, minimal};
use crate::config::*;

fn with_objectives() -> Value {
    let mut config = minimal();
    config["objectives"] = json!({
        "interactive": {"band": 10, "weight": 4, "ttl_ms": 5000, "ttft_ms": 800, "tpot_ms": 50},
        "batch": {"band": -1, "ttl_ms": "3600000"},
    });
    config["default_objective"] = json!("batch");
    config["tenants"][0]["objective"] = json!("interactive");
    config["tenants"][0]["projects"][0]["weight"] = json!(9);
    config["tenants"][0]["projects"][0]["keys"][0]["tpot_ms"] = json!(20);
    config
}

#[test]
fn objectives_and_what_levels_say_about_them_are_read() {
    let config = check(with_objectives()).expect("a valid configuration");
    let tenant = &config.tenants[0];
    let project = &tenant.projects[0];
    let key = &project.keys[0];
    let terms = config
        .objectives
        .resolve(&tenant.choice, &project.choice, &key.choice);
    let objective = terms.objective.as_ref().map(|said| said.value.as_str());
    assert_eq!(objective, Some("interactive"));
    assert_eq!(
        (terms.band.value.0, terms.weight.value, terms.ttl_ms.value),
        (10, 9, 5000)
    );
    let targets = terms.targets();
    assert_eq!((targets.ttft_ms, targets.tpot_ms), (Some(800), Some(20)));
    let nobody = Choice::default();
    let terms = config.objectives.resolve(&nobody, &nobody, &nobody);
    assert_eq!(
        (terms.band.value.0, terms.ttl_ms.value),
        (-1, 3_600_000),
        "the default objective"
    );
}

#[test]
fn without_objectives_the_queue_timeout_is_the_patience() {
    let mut config = minimal();
    config["timeouts"] = json!({"queue": "90s"});
    let config = check(config).expect("a valid configuration");
    let nobody = Choice::default();
    let terms = config.objectives.resolve(&nobody, &nobody, &nobody);
    assert_eq!(terms.objective, None);
    assert_eq!(
        (terms.band.value.0, terms.weight.value, terms.ttl_ms.value),
        (0, 1, 90_000)
    );
    assert!(terms.targets().is_empty());
}

#[test]
fn errors_about_objectives_name_the_field_the_value_and_what_is_allowed() {
    const BAND: &str = "a whole number from -2147483648 to 2147483647";
    const DAY: &str = "milliseconds from 1 to 86400000";
    const NAMES: &str = "one of batch, interactive";
    const WEIGHT: &str = "a whole number from 1 to 1000000";
    let batch = "/objectives/batch";
    let (tenant, project) = ("/tenants/0", "/tenants/0/projects/0");
    let key = "/tenants/0/projects/0/keys/0";
    for (place, field, value, path, allowed) in [
        (
            batch,
            "band",
            json!(2_147_483_648_u64),
            "objectives.batch.band",
            BAND,
        ),
        (
            batch,
            "band",
            json!(-2_147_483_649_i64),
            "objectives.batch.band",
            BAND,
        ),
        (batch, "band", json!(1e30), "objectives.batch.band", BAND),
        (batch, "band", json!(0.5), "objectives.batch.band", BAND),
        (batch, "band", json!("high"), "objectives.batch.band", BAND),
        (batch, "weight", json!(0), "objectives.batch.weight", WEIGHT),
        (
            batch,
            "weight",
            json!(-1),
            "objectives.batch.weight",
            WEIGHT,
        ),
        (
            batch,
            "weight",
            json!(1_000_001),
            "objectives.batch.weight",
            WEIGHT,
        ),
        (batch, "ttl_ms", json!(0), "objectives.batch.ttl_ms", DAY),
        (batch, "ttl_ms", json!(-5), "objectives.batch.ttl_ms", DAY),
        (
            batch,
            "ttl_ms",
            json!(86_400_001),
            "objectives.batch.ttl_ms",
            DAY,
        ),
        (
            batch,
            "ttl_ms",
            json!("30s"),
            "objectives.batch.ttl_ms",
            DAY,
        ),
        (batch, "ttft_ms", json!(0), "objectives.batch.ttft_ms", DAY),
        (
            batch,
            "ttft_ms",
            json!(86_400_001),
            "objectives.batch.ttft_ms",
            DAY,
        ),
        (
            batch,
            "tpot_ms",
            json!(0),
            "objectives.batch.tpot_ms",
            "milliseconds from 1 to 60000",
        ),
        (
            batch,
            "tpot_ms",
            json!(60_001),
            "objectives.batch.tpot_ms",
            "milliseconds from 1 to 60000",
        ),
        (
            "",
            "default_objective",
            json!("gold"),
            "default_objective",
            NAMES,
        ),
        (
            tenant,
            "objective",
            json!("gold"),
            "tenants[0].objective",
            NAMES,
        ),
        (
            tenant,
            "objective",
            json!(""),
            "tenants[0].objective",
            NAMES,
        ),
        (
            tenant,
            "band",
            json!(3_000_000_000_u64),
            "tenants[0].band",
            BAND,
        ),
        (tenant, "weight", json!(0), "tenants[0].weight", WEIGHT),
        (
            project,
            "objective",
            json!("Batch"),
            "tenants[0].projects[0].objective",
            NAMES,
        ),
        (
            project,
            "ttl_ms",
            json!(0),
            "tenants[0].projects[0].ttl_ms",
            DAY,
        ),
        (
            key,
            "objective",
            json!("gold"),
            "tenants[0].projects[0].keys[0].objective",
            NAMES,
        ),
        (
            key,
            "ttft_ms",
            json!(0),
            "tenants[0].projects[0].keys[0].ttft_ms",
            DAY,
        ),
        (
            key,
            "role",
            json!("lead"),
            "tenants[0].projects[0].keys[0].role",
            "member where the key has a band, weight, ttl_ms, ttft_ms or tpot_ms of its own: the keys a lead makes would not have it. Name an objective, or set it on the project",
        ),
    ] {
        let mut config = with_objectives();
        config
            .pointer_mut(place)
            .expect("a place in the configuration")[field] = value.clone();
        let error = check(config).expect_err("not valid");
        let shown = value.to_string().replace("e+", "e");
        let expected = format!("governance.{path}: {shown} is not allowed; use {allowed}");
        assert_eq!(error.to_string(), expected, "{place} {field} {value}");
    }
    for (config, expected) in [
        (
            json!({"objectives": {"a b": {}}}),
            r#"governance.objectives.a b: "a b" is not allowed; use 1 to 64 letters, digits, '-', '_' or '.'"#,
        ),
        (
            json!({"default_objective": "gold"}),
            r#"governance.default_objective: "gold" is not allowed; use none: governance.objectives defines none"#,
        ),
    ] {
        let error = check(config).expect_err("not valid");
        assert_eq!(error.to_string(), expected);
    }
    for text in [
        r#"{"objectives": {"a": {"bnad": 1}}}"#,
        r#"{"tenants": [{"name": "a", "allowed_objectives": ["x"]}]}"#,
    ] {
        assert!(serde_json::from_str::<File>(text).is_err(), "{text}");
    }
}

#[test]
fn the_limits_of_every_field_are_valid() {
    for (field, values) in [
        ("band", vec![json!(i32::MIN), json!(i32::MAX), json!("-7")]),
        ("weight", vec![json!(1), json!(1_000_000)]),
        ("ttl_ms", vec![json!(1), json!(86_400_000)]),
        ("ttft_ms", vec![json!(1), json!(86_400_000)]),
        ("tpot_ms", vec![json!(1), json!(60_000)]),
    ] {
        for value in values {
            let mut config = with_objectives();
            config["objectives"]["batch"][field] = value.clone();
            assert!(check(config).is_ok(), "{field} {value}");
        }
    }
}
