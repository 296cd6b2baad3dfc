use expect_test::{Expect, expect};

use super::*;

fn refused(text: &str, expected: &Expect) {
    expected.assert_eq(&parse(text).expect_err(text).to_string());
}

#[test]
fn a_value_of_the_wrong_type_is_refused_by_path_value_and_range() {
    for (text, expected) in [
        (
            "scheduling: { room: -1 }",
            expect![
                "scheduling.room: -1 is not allowed; use a whole number from 1 to 100000 (line 1, column 21)"
            ],
        ),
        (
            "scheduling: { room: ten }",
            expect![
                "scheduling.room: ten is not allowed; use a whole number from 1 to 100000 (line 1, column 21)"
            ],
        ),
        (
            "scheduling: { room: 1.5 }",
            expect![
                "scheduling.room: 1.5 is not allowed; use a whole number from 1 to 100000 (line 1, column 21)"
            ],
        ),
        (
            "scheduling: { room: \"1e3\" }",
            expect![[
                r#"scheduling.room: "1e3" is not allowed; use a whole number from 1 to 100000 (line 1, column 21)"#
            ]],
        ),
        (
            "scheduling: { room: 99999999999 }",
            expect![
                "scheduling.room: 99999999999 is not allowed; use a whole number from 1 to 100000 (line 1, column 21)"
            ],
        ),
        (
            "scheduling: { queue: { ttl_ms: 5s } }",
            expect![
                "scheduling.queue.ttl_ms: 5s is not allowed; use a whole number from 1 to 86400000 (line 1, column 32)"
            ],
        ),
        (
            "scheduling:\n  bands:\n    - { band: 1 }\n    - band: high\n",
            expect![
                "scheduling.bands[1].band: high is not allowed; use a whole number from -2147483648 to 2147483647 (line 4, column 13)"
            ],
        ),
        (
            "scheduling: { bands: [{ band: 1, ttl_ms: -1 }] }",
            expect![
                "scheduling.bands[0].ttl_ms: -1 is not allowed; use a whole number from 1 to 86400000 (line 1, column 42)"
            ],
        ),
        (
            "scheduling: { bands: [{ band: 1, may_starve: maybe }] }",
            expect![
                "scheduling.bands[0].may_starve: maybe is not allowed; use true or false (line 1, column 46)"
            ],
        ),
        (
            "scheduling: { wtu: { cached: cheap } }",
            expect![
                "scheduling.wtu.cached: cheap is not allowed; use a number from 0 to 1000 (line 1, column 30)"
            ],
        ),
        (
            "scheduling: { quota: { flows: { acme: { wtu_per_s: x } } } }",
            expect![
                "scheduling.quota.flows.acme.wtu_per_s: x is not allowed; use a whole number from 1 to 1000000000000 (line 1, column 52)"
            ],
        ),
        (
            "scheduling: { scrape: { interval_ms: fast } }",
            expect![
                "scheduling.scrape.interval_ms: fast is not allowed; use a whole number from 50 to 1000 (line 1, column 38)"
            ],
        ),
        (
            "scheduling: { peers: { interval_ms: 0.5 } }",
            expect![
                "scheduling.peers.interval_ms: 0.5 is not allowed; use a whole number from 10 to 400 (line 1, column 37)"
            ],
        ),
        (
            "governance: { max_body_bytes: 1M }",
            expect![
                "governance.max_body_bytes: 1M is not allowed; use bytes from 1024 to 1073741824 (line 1, column 31)"
            ],
        ),
        (
            "governance: { models: [{ name: a, context_tokens: 8k }] }",
            expect![
                "governance.models[0].context_tokens: 8k is not allowed; use 1 to 100000000 tokens (line 1, column 51)"
            ],
        ),
        (
            "governance: { tenants: [{ name: a, limits: [{ requests: -5, per: 1m }] }] }",
            expect![
                "governance.tenants[0].limits[0].requests: -5 is not allowed; use at least 1 (line 1, column 57)"
            ],
        ),
        (
            "governance: { tenants: [{ name: a, limits: [{ wtu: [1], per: 1m }] }] }",
            expect![
                "governance.tenants[0].limits[0].wtu: a list is not allowed; use a number (line 1, column 52)"
            ],
        ),
        (
            "governance: { access_log: 1 }",
            expect![
                "governance.access_log: 1 is not allowed; use true or false (line 1, column 27)"
            ],
        ),
        (
            "ledger: { patience_ms: long }",
            expect![
                "ledger.patience_ms: long is not allowed; use a whole number from 1 to 60000 (line 1, column 24)"
            ],
        ),
        (
            "scheduling:\n  room: |\n    ten\n    or so\n  policy: planned\n",
            expect![
                "scheduling.room: ten is not allowed; use a whole number from 0 to 4294967295 (line 3, column 5)"
            ],
        ),
        (
            "listen: nowhere",
            expect![
                "listen: nowhere is not allowed; use an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080 (line 1, column 9)"
            ],
        ),
        (
            "admin_listen: 9090",
            expect![
                "admin_listen: 9090 is not allowed; use an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080 (line 1, column 15)"
            ],
        ),
    ] {
        refused(text, &expected);
    }
}

#[test]
fn the_range_is_told_where_nothing_else_is_wrong() {
    refused(
        "scheduling: { room: x, policy: best }",
        &expect![
            "scheduling.room: x is not allowed; use a whole number from 0 to 4294967295 (line 1, column 21)"
        ],
    );
}

#[test]
fn another_shape_is_refused_by_path() {
    for (text, expected) in [
        (
            "scheduling: { bands: 3 }",
            expect![
                "scheduling.bands: 3 is not allowed; use a list (`- value`) (line 1, column 22)"
            ],
        ),
        (
            "scheduling: { bands: { band: 3 } }",
            expect![
                "scheduling.bands: a group of fields is not allowed; use a list (`- value`) (line 1, column 22)"
            ],
        ),
        (
            "scheduling:\n  bands:\n    band: 3\n",
            expect![
                "scheduling.bands: a group of fields is not allowed; use a list (`- value`) (line 3, column 5)"
            ],
        ),
        (
            "governance: { admin_token: hp-abc }",
            expect![
                "governance.admin_token: a single value is not allowed; use { file: PATH } or { env: NAME }: secrets are never in the file itself (line 1, column 28)"
            ],
        ),
        (
            "scheduling: { policy: [planned] }",
            expect![
                "scheduling.policy: a list is not allowed; use a single value (line 1, column 23)"
            ],
        ),
        (
            "scheduling:\n  policy:\n    - planned\n",
            expect![
                "scheduling.policy: a list or a group of fields is not allowed; use a single value (line 3, column 5)"
            ],
        ),
        (
            "scheduling: { policy: { name: planned } }",
            expect![
                "scheduling.policy: a group of fields is not allowed; use a single value (line 1, column 23)"
            ],
        ),
        (
            "scheduling: { room: [3] }",
            expect![
                "scheduling.room: a list is not allowed; use a single value (line 1, column 21)"
            ],
        ),
        (
            "scheduling: { room: }",
            expect![
                "scheduling.room: nothing is not allowed; use a whole number from 0 to 4294967295 (line 1, column 19)"
            ],
        ),
        (
            "governance: 5",
            expect![
                "governance: a single value is not allowed; use fields (`name: value`) (line 1, column 13)"
            ],
        ),
        (
            "governance: [",
            expect![
                "governance: a single value is not allowed; use fields (`name: value`) (line 1, column 13)"
            ],
        ),
        (
            "scheduling: { policy: ~ }",
            expect!["scheduling.policy: ~ is not allowed; use a single value (line 1, column 23)"],
        ),
        (
            "scheduling: { queue: ~ }",
            expect![
                "scheduling.queue: a single value is not allowed; use fields (`name: value`) (line 1, column 22)"
            ],
        ),
        (
            "- governance",
            expect![
                "the file: a list is not allowed; use fields (`name: value`) (line 1, column 1)"
            ],
        ),
        (
            "scheduling: { polcy: planned }",
            expect![
                "scheduling.polcy: there is no such field; use one of pool, policy, endpoints, queue, fairness, wtu, quota, bands, other_bands, room, engine, peers, scrape, attempts, timeouts, untrusted, profile, records, body_limit_bytes, idle_connections (line 1, column 15)"
            ],
        ),
        (
            "schedulign: { policy: planned }",
            expect![
                "schedulign: there is no such field; use one of listen, admin_listen, scheduler_url, context_keys, ledger, governance, scheduling (line 1, column 1)"
            ],
        ),
        (
            "ledger: { patience: 5 }",
            expect![
                "ledger.patience: there is no such field; use one of patience_ms (line 1, column 11)"
            ],
        ),
        (
            "governance: { models: [{ name: a }] }",
            expect![
                "governance.models[0].context_tokens: missing, and it has no default; write it (line 1, column 26)"
            ],
        ),
        (
            "governance: { objectives: { fast: { band: 1 }, fast: { band: 2 } } }",
            expect![
                "governance.objectives.fast: stands here a second time; use each name once (line 1, column 48)"
            ],
        ),
        (
            "scheduling: { room: 1, room: 2 }",
            expect![
                "scheduling.room: stands here a second time; use each name once (line 1, column 24)"
            ],
        ),
        (
            "scheduling: { room: 1 }\nscheduling: { room: 2 }\n",
            expect!["scheduling: stands here a second time; use each name once (line 2, column 1)"],
        ),
        (
            "governance: { models: [{ name: a, context_tokens: 8, name: b }] }",
            expect![
                "governance.models[0].name: stands here a second time; use each name once (line 1, column 54)"
            ],
        ),
        (
            "scheduling: { room: &many -3, depth: *many }",
            expect![
                "scheduling.room: -3 is not allowed; use a whole number from 0 to 4294967295 (line 1, column 27)"
            ],
        ),
    ] {
        refused(text, &expected);
    }
}

#[test]
fn a_secret_in_the_place_of_its_source_is_not_repeated() {
    for text in [
        "governance: { admin_token: hp-very-secret }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: [{ name: k, secret: hp-very-secret }] }] }] }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: [{ name: k, secret: { text: hp-very-secret } }] }] }] }",
    ] {
        let told = parse(text).expect_err(text).to_string();
        assert!(told.starts_with("governance."), "{told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
}

#[test]
fn a_secret_beside_what_is_wrong_is_not_repeated() {
    for text in [
        "governance:\n  admin_token: \"hp-very-secret\n",
        "governance:\n  admin_token: \"hp-very-secret\\q\"\n",
        "governance:\n\tadmin_token: hp-very-secret\n",
        "governance:\n  admin_token: %hp-very-secret\n",
        "governance:\n  installation_secret: { file: hp-very-secret }\n  admin_token: *other\n",
        "governance: { admin_token: { file: a, env: hp-very-secret } }",
        "scheduling: { endpoints: [{ url: \"http://user:very-secret@host:1\" }] }",
        "scheduling: { endpoints: [{ url: \"http://h:1\", metrics_url: \"http://user:very-secret@host:1/metrics\" }] }",
        "scheduling: { endpoints: [{ url: \"https://user:very-secret@host:1\" }] }",
        "scheduling: { peers: { key_file: k, urls: [\"http://user:very@secret@host:1\"] } }",
        "scheduling: { endpoints: [{ url: \"http://host:1/?token=very-secret\" }] }",
        "scheduling: { endpoints: [{ url: \"http://h:1\", metrics_url: \"https://h:1/metrics?token=very-secret\" }] }",
        "scheduling: { peers: { key_file: k, urls: [\"http://host:1/?token=very-secret\"] } }",
        "governance: { admin_token: { hp-very-secret } }",
        "governance: { admin_token: { hp-very-secret: } }",
        "governance: { admin_token: { hp-very-secret: a, hp-very-secret: b } }",
        "governance:\n  admin_token:\n    hp-very-secret:\n",
        "governance: { admin_token: [hp-very-secret] }",
        "governance: { admin_token: { file: [hp-very-secret] } }",
        "governance: { admin_token: { file: { path: hp-very-secret } } }",
        "governance: { admin_token: { env: [hp-very-secret] } }",
        "governance: { admin_token: *hp-very-secret }",
        "governance: { admin_token: { file: *hp-very-secret } }",
        "governance:\n  installation_secret: |\n    hp-very-secret\n",
        "governance:\n  installation_secret:\n    - hp-very-secret\n",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: hp-very-secret }] }] }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: { k: hp-very-secret } }] }] }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: [[hp-very-secret]] }] }] }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: [{ hp-very-secret }] }] }] }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: [{ name: k, secret: { hp-very-secret } }] }] }] }",
        "governance: { tenants: [{ name: a, projects: [{ name: p, keys: [{ name: k, secret: hp-very-secret, secret: hp-very-secret }] }] }] }",
        "context_keys: [hp-very-secret]",
        "context_keys: { secret: hp-very-secret }",
        "scheduling: { peers: { key_file: [hp-very-secret] } }",
        "scheduling: { peers: { key_file: { secret: hp-very-secret } } }",
    ] {
        let told = parse(text)
            .and_then(|file| file.check().map(drop))
            .expect_err(text);
        let told = told.to_string();
        assert!(!told.contains("very"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn names_in_a_path_are_shown_on_one_line() {
    let told = |text: &str| parse(text).expect_err(text).to_string();
    let colours = told("scheduling: { \"\\x1b[31m\\nred\": 1 }");
    assert!(
        colours.starts_with("scheduling.\\u{1b}[31m\\nred: there is no such field"),
        "{colours}"
    );
    let long = told(&format!("scheduling: {{ {}: 1 }}", "k".repeat(100_000)));
    assert!(long.len() < 1000, "{}", long.len());
}

#[test]
fn a_tag_is_refused_and_not_repeated() {
    for (text, path) in [
        ("governance: { admin_token: !x }", "governance"),
        (
            "governance:\n  admin_token: !hp-very-secret\n",
            "governance",
        ),
        ("governance: { admin_token: !x { file: a } }", "governance"),
        ("scheduling: { room: !big 3 }", "scheduling"),
        ("scheduling: { endpoints: !mine [] }", "scheduling"),
        ("!mine\nscheduling: { room: 3 }", "the file"),
    ] {
        let told = parse(text).expect_err(text).to_string();
        let expected =
            format!("{path}: a tag (`!...`) is not allowed; write the value without it (line ");
        assert!(told.starts_with(&expected), "{text}: {told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
}
