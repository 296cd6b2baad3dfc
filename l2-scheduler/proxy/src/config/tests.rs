use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;

mod flow;

fn check(section: &Value) -> Result<Config, String> {
    let file: File = serde_json::from_value(section.clone()).map_err(|error| error.to_string())?;
    Config::check(file).map_err(|error| error.to_string())
}

fn refused(section: &Value, expected: &Expect) {
    expected.assert_eq(&check(section).expect_err("a bad value"));
}

fn endpoint(endpoint: &Value) -> Endpoint {
    let config = check(&json!({"endpoints": [endpoint]})).expect("a good endpoint");
    config.endpoints.into_iter().next().expect("one endpoint")
}

#[test]
fn defaults_are_allowed_and_finite() {
    let config = Config::default();
    assert_eq!(config.policy, Policy::Planned);
    assert_eq!(config.untrusted, Untrusted::Refuse);
    assert!(config.body_limit >= 32 << 20);
    assert!(
        config.timeouts.idle_connection < Duration::from_secs(5),
        "vLLM closes after 5 s"
    );
    let flow = &config.flow;
    assert!(flow.pool_limits.requests > 0 && flow.pool_limits.bytes > 0);
    assert!(flow.flow_limits.requests < flow.pool_limits.requests);
    assert!(
        flow.other_bands.starvation.share() > 0.0,
        "nobody starves unless somebody says so"
    );
}

#[test]
fn addresses_are_names_ipv4_or_ipv6_with_or_without_a_metrics_address() {
    for (url, metrics_url, name, origin, metrics) in [
        (
            "http://engine-0:8000",
            None,
            "engine-0:8000",
            "http://engine-0:8000",
            "http://engine-0:8000/metrics",
        ),
        (
            "http://10.0.0.1:8000/",
            None,
            "10.0.0.1:8000",
            "http://10.0.0.1:8000",
            "http://10.0.0.1:8000/metrics",
        ),
        (
            "http://engine",
            None,
            "engine:80",
            "http://engine:80",
            "http://engine:80/metrics",
        ),
        (
            "http://[fd00::7]:8000",
            None,
            "fd00::7:8000",
            "http://[fd00::7]:8000",
            "http://[fd00::7]:8000/metrics",
        ),
        (
            "http://e:1/base",
            None,
            "e:1",
            "http://e:1/base",
            "http://e:1/base/metrics",
        ),
        (
            "http://e:1",
            Some("http://m:9"),
            "e:1",
            "http://e:1",
            "http://m:9/metrics",
        ),
        (
            "http://e:1",
            Some("http://[::1]:9/own"),
            "e:1",
            "http://e:1",
            "http://[::1]:9/own",
        ),
    ] {
        let mut written = json!({"url": url});
        if let Some(metrics_url) = metrics_url {
            written["metrics_url"] = metrics_url.into();
        }
        let endpoint = endpoint(&written);
        assert_eq!(endpoint.name, name);
        assert_eq!(endpoint.origin.to_string(), origin);
        assert_eq!(endpoint.metrics.to_string(), metrics);
    }
}

#[test]
fn bad_addresses_say_what_is_allowed() {
    let refused =
        |url: &str, expected: &Expect| refused(&json!({"endpoints": [{"url": url}]}), expected);
    refused(
        "https://e:1",
        &expect![[
            r#"scheduling.endpoints[0].url: "https://e:1" is not allowed; use http://host:port; TLS to engines is not supported, put a TLS-terminating proxy beside the engine"#
        ]],
    );
    refused(
        "e:1",
        &expect![[
            r#"scheduling.endpoints[0].url: "e:1" is not allowed; use http://host:port, including the http://"#
        ]],
    );
    refused(
        "ftp://e:1",
        &expect![[
            r#"scheduling.endpoints[0].url: "ftp://e:1" is not allowed; use http://host:port, including the http://"#
        ]],
    );
    refused(
        "http://fd00::7:8000",
        &expect![[
            r#"scheduling.endpoints[0].url: "http://fd00::7:8000" is not allowed; use http://host:port, with an IPv6 address in brackets"#
        ]],
    );
    refused(
        "http://u:p@e:1",
        &expect![[
            r#"scheduling.endpoints[0].url: "http://...@e:1" is not allowed; use http://host:port without user or password"#
        ]],
    );
    refused(
        "http://e:1/?a=b",
        &expect![[
            r#"scheduling.endpoints[0].url: "http://e:1/?..." is not allowed; use http://host:port without a query"#
        ]],
    );
    refused(
        "http://e:1/v1/",
        &expect![[
            r#"scheduling.endpoints[0].url: "http://e:1/v1/" is not allowed; use http://host:port without the /v1, with which the path of a request begins"#
        ]],
    );
    refused(
        "http://e:0",
        &expect![[
            r#"scheduling.endpoints[0].url: "http://e:0" is not allowed; use http://host:port with a port from 1 to 65535"#
        ]],
    );
    refused(
        "http://e:99999",
        &expect![[
            r#"scheduling.endpoints[0].url: "http://e:99999" is not allowed; use http://host:port with a port from 1 to 65535"#
        ]],
    );
}

#[test]
fn bad_values_name_the_field_the_value_and_what_is_allowed() {
    refused(
        &json!({"policy": "best"}),
        &expect![[
            r#"scheduling.policy: "best" is not allowed; use planned, predicted-cost, token-aware, lmetric, weighted, least-request, p2c, round-robin, random"#
        ]],
    );
    refused(
        &json!({"untrusted": "trust-peer"}),
        &expect![[r#"scheduling.untrusted: "trust-peer" is not allowed; use refuse or lowest"#]],
    );
    refused(
        &json!({"pool": ""}),
        &expect![[r#"scheduling.pool: "" is not allowed; use 1 to 128 visible ASCII characters"#]],
    );
    refused(
        &json!({"room": 0}),
        &expect!["scheduling.room: 0 is not allowed; use a number from 1 to 100000"],
    );
    refused(
        &json!({"attempts": 17}),
        &expect!["scheduling.attempts: 17 is not allowed; use a number from 1 to 16"],
    );
    refused(
        &json!({"scrape": {"interval_ms": 10}}),
        &expect!["scheduling.scrape.interval_ms: 10 is not allowed; use a number from 50 to 1000"],
    );
    refused(
        &json!({"queue": {"ttl_ms": 0}}),
        &expect!["scheduling.queue.ttl_ms: 0 is not allowed; use a number from 1 to 86400000"],
    );
    refused(
        &json!({"timeouts": {"connect_ms": 0}}),
        &expect!["scheduling.timeouts.connect_ms: 0 is not allowed; use a number from 1 to 60000"],
    );
    refused(
        &json!({"profile": {"peak_prefill_tokens_per_s": 0.0}}),
        &expect![
            "scheduling.profile.peak_prefill_tokens_per_s: 0.0 is not allowed; use a number from 1 to 1000000000"
        ],
    );
    refused(
        &json!({"peers": {"urls": ["http://a:1"]}}),
        &expect![
            "scheduling.peers.key_file: nothing is not allowed; use a file with the secret that all schedulers of the pool share"
        ],
    );
    refused(
        &json!({"peers": {"urls": ["http://a:1", "http://a:1"], "key_file": "k"}}),
        &expect![[
            r#"scheduling.peers.urls[1]: "http://a:1" is not allowed; use an address that stands here once"#
        ]],
    );
    refused(
        &json!({"peers": {"urls": ["a:1"], "key_file": "k"}}),
        &expect![[
            r#"scheduling.peers.urls[0]: "a:1" is not allowed; use http://host:port, including the http://"#
        ]],
    );
    refused(
        &json!({"peers": {"interval_ms": 5}}),
        &expect!["scheduling.peers.interval_ms: 5 is not allowed; use a number from 10 to 400"],
    );
    refused(
        &json!({"records": 0}),
        &expect!["scheduling.records: 0 is not allowed; use a number from 1 to 1000000"],
    );
    refused(
        &json!({"body_limit_bytes": 1}),
        &expect![
            "scheduling.body_limit_bytes: 1 is not allowed; use a number from 1024 to 1073741824"
        ],
    );
    refused(
        &json!({"endpoints": [{"url": "http://a:1", "engine": "trt"}]}),
        &expect![[
            r#"scheduling.endpoints[0].engine: "trt" is not allowed; use auto, vllm or sglang"#
        ]],
    );
    refused(
        &json!({"endpoints": [{"url": "http://a:1", "name": "a b"}]}),
        &expect![[
            r#"scheduling.endpoints[0].name: "a b" is not allowed; use 1 to 128 visible ASCII characters"#
        ]],
    );
    refused(
        &json!({"endpoints": [{"url": "http://a:1", "models": [""]}]}),
        &expect![[
            r#"scheduling.endpoints[0].models: "" is not allowed; use model names that are not empty"#
        ]],
    );
    refused(
        &json!({"endpoints": [{"url": "http://a:1", "engine": "sglang"}]}),
        &expect![
            "scheduling.endpoints[0].models: [] is not allowed; use at least one model name: SGLang answers any name, so what it serves must be said"
        ],
    );
    refused(
        &json!({"endpoints": [{"url": "http://a:1/x"}, {"url": "http://a:1/y"}]}),
        &expect![[
            r#"scheduling.endpoints[1].name: "a:1" is not allowed; use a name that no other endpoint has"#
        ]],
    );
}

#[test]
fn one_engine_is_one_endpoint_however_its_address_is_written() {
    for (first, again) in [
        ("http://a:1", "http://a:1"),
        ("http://a:1", "http://A:1/"),
        ("http://a", "http://a:80"),
        ("http://[::1]:9/x", "http://[::1]:9/x/"),
        ("http://[::1]:80", "http://[0:0:0:0:0:0:0:1]:80"),
        ("http://[fe80::A]", "http://[fe80:0::a]:80"),
        ("http://127.0.0.1:1", "http://[::ffff:127.0.0.1]:1"),
        ("http://127.0.0.1:1", "http://127.1:1"),
        ("http://127.0.0.1:1", "http://0x7f.1:1"),
        ("http://127.0.0.1:1", "http://0177.0.0.01:1"),
        ("http://127.0.0.1:1", "http://2130706433:1"),
        ("http://localhost:1", "http://Localhost.:1"),
    ] {
        let section = json!({"endpoints": [
            {"url": "http://other:1"}, {"url": first, "name": "one"}, {"url": again, "name": "two"},
        ]});
        let error = check(&section).expect_err("the same engine twice");
        assert!(
            error.starts_with("scheduling.endpoints[2].url: ")
                && error.ends_with(
                    "use an address that no other endpoint has: it is that of endpoints[1]"
                ),
            "{error}"
        );
    }
    for (first, second) in [
        ("http://a:1", "http://a:2"),
        ("http://a:1/x", "http://a:1/y"),
        ("http://[::1]:1", "http://[::2]:1"),
        ("http://localhost:1", "http://127.0.0.1:1"),
        ("http://a.b:1", "http://ab.:1"),
    ] {
        let section =
            json!({"endpoints": [{"url": first, "name": "one"}, {"url": second, "name": "two"}]});
        assert!(check(&section).is_ok(), "{first} {second}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    let written = json!({
        "endpoints": [{"url": "http://a:1", "engine": "vllm", "models": ["m"]}, {"url": "http://b:1", "name": "b"}],
        "scrape": {"interval_ms": 50, "idle_interval_ms": 500, "timeout_ms": 100, "max_page_bytes": 65536},
        "room": 3,
        "quota": {"wtu_per_s": 5, "flows": {"acme": {"in_flight_wtu": 7, "over": "refuse"}}},
        "bands": [{"band": -5, "may_starve": true}, {"band": 10, "ttl_ms": 5000, "quota": {"in_flight_wtu": 9}}],
        "other_bands": {"refuse": "never"},
    });
    let file: File = serde_json::from_value(written).expect("a section");
    let shown = serde_json::to_value(&file).expect("plain data");
    let again: File = serde_json::from_value(shown).expect("a section");
    assert_eq!(again, file);
    let defaults = serde_json::to_value(File::default()).expect("plain data");
    assert_eq!(
        defaults["scrape"]["interval_ms"], 100,
        "defaults are written out"
    );
    let checked = |file| format!("{:?}", Config::check(file));
    assert_eq!(checked(again), checked(file));
}

#[test]
fn unknown_fields_are_refused_at_every_level() {
    for section in [
        json!({"polcy": "random"}),
        json!({"queue": {"size": 1}}),
        json!({"queue": {"flow": {"ttl_ms": 1}}}),
        json!({"wtu": {"decode": 1}}),
        json!({"quota": {"x": 1}}),
        json!({"quota": {"flows": {"acme": {"flows": {}}}}}),
        json!({"bands": [{"band": 1, "x": 1}]}),
        json!({"other_bands": {"x": 1}}),
        json!({"engine": {"x": 1}}),
        json!({"timeouts": {"x": 1}}),
        json!({"profile": {"x": 1}}),
        json!({"scrape": {"x": 1}}),
        json!({"peers": {"x": 1}}),
        json!({"endpoints": [{"url": "http://a:1", "x": 1}]}),
    ] {
        let error = check(&section).expect_err("an unknown field");
        assert!(error.contains("unknown field"), "{section}: {error}");
    }
}
