use super::*;

fn told<T>(result: anyhow::Result<T>) -> String {
    result.map_or_else(|error| format!("{error:#}"), |_| "good".to_owned())
}

fn check(text: &str) -> String {
    told(File::parse(text).and_then(File::check))
}

#[test]
fn a_quota_for_nobody_is_refused_where_the_tenants_are_known() {
    let tenants = "governance: { tenants: [{ name: acme }, { name: globex }] }\n";
    let flows = |name: &str| {
        format!("scheduling: {{ quota: {{ flows: {{ {name}: {{ wtu_per_s: 5 }} }} }} }}")
    };
    assert_eq!(check(&flows("nobody")), "good", "a scheduler alone");
    assert_eq!(check(&format!("{tenants}{}", flows("globex"))), "good");
    let strangers = flows("anonymous").replace("{ quota", "{ untrusted: lowest, quota");
    assert_eq!(check(&format!("{tenants}{strangers}")), "good");
    assert_ne!(check(&format!("{tenants}{}", flows("anonymous"))), "good");
    assert_eq!(
        check(&format!("{tenants}{}", flows("nobody"))),
        "scheduling.quota.flows.nobody: \"nobody\" is not allowed; use a tenant of governance.tenants: acme, globex"
    );
}

#[test]
fn a_model_is_in_the_pool_of_the_file_unless_the_file_leaves_scheduling_to_another() {
    let models = |pool: &str| {
        format!(
            "governance: {{ models: [{{ name: a, context_tokens: 8 }}, {{ name: b, {pool} context_tokens: 8 }}] }}\n"
        )
    };
    for (pool_of_model, rest, expected) in [
        ("", "", "good"),
        ("pool: default,", "", "good"),
        (
            "pool: gpus,",
            "",
            "governance.models[1].pool: \"gpus\" is not allowed; use \"default\", which is scheduling.pool",
        ),
        (
            "pool: gpus,",
            "scheduling: { pool: gpus }",
            "governance.models[0].pool: \"default\" is not allowed; use \"gpus\", which is scheduling.pool",
        ),
        ("pool: gpus,", "scheduler_url: 'http://l2:8081'", "good"),
        (
            "pool: gpus,",
            "scheduler_url: 'http://l2:8081'\nscheduling: { room: 3 }",
            "governance.models[1].pool: \"gpus\" is not allowed; use \"default\", which is scheduling.pool",
        ),
    ] {
        let text = format!("{}{rest}", models(pool_of_model));
        assert_eq!(check(&text), expected, "{text}");
    }
}

#[test]
fn a_file_that_says_nothing_is_read_as_defaults_and_serves_nothing() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "---",
        "---\n",
        "--- # nothing\n...\n",
        "~",
        "null\n",
        "{}",
        "governance: {}\n",
    ] {
        let checked = File::parse(text).and_then(File::check).expect(text);
        let told = told(checked.serves_something());
        assert!(
            told.starts_with("governance.models: none, and scheduling.endpoints: none; name"),
            "{text:?}: {told}"
        );
    }
    for text in [
        "governance: { models: [{ name: a, context_tokens: 8 }] }",
        "---\nscheduling: { endpoints: [{ url: 'http://e:1' }] }",
    ] {
        let checked = File::parse(text).and_then(File::check).expect(text);
        assert_eq!(told(checked.serves_something()), "good", "{text}");
    }
}

#[test]
fn what_is_most_likely_not_meant_is_told_by_path() {
    let models = "governance: { models: [{ name: a, context_tokens: 8, price: { uncached: 1, output: 1 } }, \
                  { name: b, context_tokens: 8 }]MORE }\n";
    for (more, rest, expected) in [
        (
            "",
            "",
            &[
                "governance.models[1].price: none, so every request for \"b\" is refused with 403 no_price",
            ][..],
        ),
        (", no_price: floor, floor_wtu: 1", "", &[]),
        (
            ", no_price: floor, floor_wtu: 1",
            "scheduling: { profile: { kv_tokens: 5 } }",
            &["scheduling.endpoints: none, and scheduling.profile.kv_tokens is about real engines"],
        ),
    ] {
        let text = models.replace("MORE", more) + rest;
        let warnings = File::parse(&text).and_then(File::check).expect(&text);
        let warnings = warnings.warnings();
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, start) in warnings.iter().zip(expected) {
            assert!(warning.starts_with(start), "{warning}");
        }
    }
}

#[test]
fn a_band_that_nobody_set_up_is_told_where_others_are() {
    let objectives = "governance: { objectives: { fast: { band: 20 }, slow: { band: 0 } }, models: [{ name: a, context_tokens: 8, \
                      price: { uncached: 1, output: 1 } }], tenants: [{ name: t, band: 20, projects: [{ name: p, band: 7, keys: \
                      [{ name: k, band: -3, secret: { file: f } }] }] }] }\n";
    let none: &[&str] = &[];
    let told = &[
        "governance.tenants[0].projects[0].keys[0].band: -3 is none of scheduling.bands (0, 10), so that defaults hold for it;",
        "governance.tenants[0].projects[0].band: 7 is none of",
        "governance.objectives.fast.band, governance.tenants[0].band: 20 is none of",
    ][..];
    for (scheduling, expected) in [
        ("", none),
        ("scheduling: { room: 3 }", none),
        ("scheduling: { other_bands: { ttl_ms: 5 } }", none),
        ("scheduling: { bands: [{ band: 0 }, { band: 10 }] }", told),
        (
            "scheduling: { bands: [{ band: 0 }, { band: 10 }], other_bands: { may_starve: true } }",
            none,
        ),
        (
            "scheduling: { bands: [{ band: 0 }, { band: 20 }, { band: 7 }, { band: -3 }] }",
            none,
        ),
    ] {
        let text = format!("{objectives}{scheduling}");
        let warnings = File::parse(&text).and_then(File::check).expect(&text);
        let warnings = warnings.warnings();
        assert_eq!(warnings.len(), expected.len(), "{scheduling}: {warnings:?}");
        for (warning, start) in warnings.iter().zip(expected) {
            assert!(warning.starts_with(start), "{warning}");
        }
    }
}

#[test]
fn a_file_without_models_is_told_unless_it_is_of_schedule_alone() {
    let endpoints = "scheduling: { endpoints: [{ url: 'http://e:1' }] }\n";
    for (governance, expected) in [
        ("", 0),
        ("governance: { tenants: [{ name: t }] }", 1),
        ("governance: { models: [], admin_token: { file: t } }", 1),
    ] {
        let text = format!("{endpoints}{governance}");
        let warnings = File::parse(&text).and_then(File::check).expect(&text);
        let warnings = warnings.warnings();
        assert_eq!(warnings.len(), expected, "{governance}: {warnings:?}");
        assert!(
            warnings
                .iter()
                .all(|warning| warning.starts_with("governance.models: none, so every request")),
            "{warnings:?}"
        );
    }
}

#[test]
fn one_address_is_not_listened_on_twice() {
    for (clients, operators, is_good) in [
        ("127.0.0.1:8080", "127.0.0.1:8080", false),
        ("0.0.0.0:8080", "127.0.0.1:8080", false),
        ("127.0.0.1:8080", "0.0.0.0:8080", false),
        ("[::]:8080", "[::1]:8080", false),
        ("127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", false),
        ("127.0.0.1:8080", "127.0.0.1:8081", true),
        ("0.0.0.0:8080", "127.0.0.1:8081", true),
        ("0.0.0.0:8080", "[::1]:8080", true),
        ("127.0.0.1:8080", "127.0.0.2:8080", true),
        ("127.0.0.1:0", "127.0.0.1:0", true),
        ("0.0.0.0:0", "127.0.0.1:0", true),
    ] {
        let text = format!("listen: '{clients}'\nadmin_listen: '{operators}'\n");
        let refused = format!(
            "admin_listen: {operators} is not allowed; use an address that listen does not take"
        );
        let expected = if is_good { "good" } else { &refused };
        assert_eq!(check(&text), expected, "{text}");
    }
    assert_eq!(check("admin_listen: '127.0.0.1:8080'"), "good");
}

#[test]
fn the_files_of_keys_are_looked_into_and_nothing_of_a_secret_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let ring = write(
        "ring",
        "kid: a\nsecret: hex:0101010101010101010101010101010101010101010101010101010101010101\n",
    );
    let peer = write("peer", &"very-secret".repeat(6));
    let broken = write("broken", "very-secret");
    let secret = "very-secret".to_owned();
    let context = |path: &str| format!("context_keys: '{path}'");
    let peers = |path: &str| format!("scheduling: {{ peers: {{ key_file: '{path}' }} }}");
    for (more, expected) in [
        (context(&ring), "good"),
        (peers(&peer), "good"),
        (
            context(&secret),
            "context_keys: cannot read the file it names (No such file or directory (os error 2)); write a path that this process can read",
        ),
        (
            context(&broken),
            "context_keys: the file it names is not a file of keys: line 1",
        ),
        (
            peers(&secret),
            "scheduling.peers.key_file: cannot read the file it names (No such file or directory (os error 2)); write a path that this process can read",
        ),
        (
            peers(&broken),
            "scheduling.peers.key_file: the file it names is not a key",
        ),
        (
            "scheduler_url: 'http://u:very-secret@l2:8081'".to_owned(),
            "scheduler_url: not the address of a scheduler; use http://host:port",
        ),
        (
            "scheduler_url: very-secret".to_owned(),
            "scheduler_url: not the address of a scheduler; use http://host:port",
        ),
    ] {
        let models = "governance: { models: [{ name: a, context_tokens: 8 }] }";
        let file = File::parse(&format!("{models}\n{more}\n")).expect("a file");
        let told = told(whole(file));
        assert!(told.starts_with(expected), "{more}: {told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
}
