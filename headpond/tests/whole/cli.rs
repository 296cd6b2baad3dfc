//! The command line: what it prints, what it refuses, and how it ends.

use http::Method;
use serde_json::{Value, json};

use crate::process::{Running, headpond, run};
use crate::site::{ADMIN, Site};
use crate::wire;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A configuration that is wrong in one place, and what the message must name.
const WRONG: &[(&str, &[&str])] = &[
    ("listen: nowhere", &["listen"]),
    ("no_such_section: 1", &["no_such_section"]),
    (
        "scheduling: { policy: fastest }",
        &["scheduling.policy", "fastest", "predicted-cost"],
    ),
    (
        "scheduling: { endpoints: [{ url: 'https://engine:8000' }] }",
        &["scheduling.endpoints[0].url", "TLS"],
    ),
    (
        "scheduling: { endpoints: [{ url: 'http://e:1' }, { url: 'http://e:1' }] }",
        &["scheduling.endpoints[1].url", "endpoints[0]"],
    ),
    (
        "scheduling: { endpoints: [{ adress: 'http://e:1' }] }",
        &["adress"],
    ),
    (
        "governance: { models: [{ name: a, context_tokens: 0 }] }",
        &["governance.models[0].context_tokens"],
    ),
    (
        "governance: { models: [{ name: a, context_tokens: 8, price: { uncached: -1, output: 1 } }] }",
        &["uncached"],
    ),
    (
        "governance: { tenants: [{ name: a, limits: [{ tier: Z, wtu: 1, per: 1d }] }] }",
        &["governance.tenants[0].limits[0]", "Z"],
    ),
    (
        "ledger: { patience_ms: 0 }",
        &["ledger.patience_ms", "1 to 60000"],
    ),
    (
        "governance: { objectives: { fast: { band: 2147483648 } } }",
        &[
            "governance.objectives.fast.band",
            "2147483648",
            "2147483647",
        ],
    ),
    (
        "governance: { objectives: { fast: { band: 1 }, fast: { band: 2 } } }",
        &["fast", "line"],
    ),
    (
        "governance: { objectives: { fast: { ttl_ms: 90000000 } } }",
        &["governance.objectives.fast.ttl_ms", "90000000", "86400000"],
    ),
    (
        "governance: { objectives: { fast: {} }, tenants: [{ name: a, objective: slow }] }",
        &["governance.tenants[0].objective", "slow", "fast"],
    ),
    ("governance: [", &["line"]),
    (
        "scheduling: { room: ten }",
        &["scheduling.room", "ten", "a whole number from 1 to 100000"],
    ),
    (
        "scheduling: { bands: [{ band: 0, ttl_ms: -1 }] }",
        &["scheduling.bands[0].ttl_ms", "-1", "1 to 86400000"],
    ),
    (
        "governance: { tenants: [{ name: a, limits: [{ concurrency: 1.5 }] }] }",
        &["governance.tenants[0].limits[0].concurrency", "1.5"],
    ),
    (
        "governance: { tenants: [{ name: a }] }\nscheduling: { quota: { flows: { b: { wtu_per_s: 1 } } } }",
        &["scheduling.quota.flows.b", "governance.tenants"],
    ),
    ("governance: { admin_token: !x }", &["governance", "a tag"]),
    (
        "governance: { models: [{ name: a, context_tokens: 8, pool: gpus }] }",
        &["governance.models[0].pool", "gpus", "default"],
    ),
    (
        "scheduler_url: 'http://l2:8081/v1'",
        &["scheduler_url", "http://host:port"],
    ),
    (
        "listen: 127.0.0.1:8080\nadmin_listen: 127.0.0.1:8080",
        &["admin_listen", "127.0.0.1:8080", "listen"],
    ),
    ("", NOTHING),
    ("# nothing yet\n", NOTHING),
    ("---\n", NOTHING),
    ("scheduling: { room: 3 }", NOTHING),
];

const NOTHING: &[&str] = &["governance.models: none", "scheduling.endpoints: none"];

#[test]
fn a_wrong_configuration_is_refused_by_name_and_nothing_starts() {
    let directory = tempfile::tempdir().expect("a directory");
    for (yaml, names) in WRONG {
        let file = directory.path().join("wrong.yaml");
        std::fs::write(&file, yaml).expect("a file");
        for command in [vec!["config", "check"], vec!["up", "--config"]] {
            let output = run(headpond().args(&command).arg(&file));
            assert_eq!(
                output.status.code(),
                Some(1),
                "{yaml} was accepted by {command:?}"
            );
            let message = text(&output.stderr);
            for name in *names {
                assert!(
                    message.contains(name),
                    "{command:?} of {yaml} does not name {name}: {message}"
                );
            }
            assert!(
                message.contains("wrong.yaml") || command[0] == "up",
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn a_model_without_a_price_is_told_before_anybody_asks_for_it() {
    let site = Site::with(&[("acme", "[]")], "", "");
    let written = std::fs::read_to_string(site.config()).expect("the file");
    let free = "  models:\n    - { name: free, context_tokens: 8192 }\n";
    let file = site.write("headpond.yaml", &written.replace("  models:\n", free));
    let checked = run(headpond().args(["config", "check"]).arg(&file));
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let warning = "governance.models[0].price: none, so every request for";
    let told = text(&checked.stderr);
    assert!(told.contains(&format!("warning: {warning}")), "{told}");
    let running = site.up(&["--engines", "1"]);
    assert!(running.log().contains(warning), "{}", running.log());
    let hello = json!({ "model": "free", "messages": [{ "role": "user", "content": "hi" }] });
    let refused = wire::chat(running.url(), &site.key("acme"), &hello).await;
    assert_eq!(
        (refused.status.as_u16(), refused.code().as_str()),
        (403, "no_price")
    );
    assert!(running.stop().success());
}

#[test]
fn settings_of_real_engines_without_any_are_refused() {
    let site = Site::new(&[("acme", "[]")]);
    let written = std::fs::read_to_string(site.config()).expect("the file");
    for (scheduling, field) in [
        ("profile: { kv_tokens: 500000 }", "profile.kv_tokens"),
        (
            "profile: { peak_prefill_tokens_per_s: 9000 }",
            "profile.peak_prefill_tokens_per_s",
        ),
        (
            "peers: { urls: ['http://127.0.0.1:9'], key_file: DIR/admin.token }",
            "peers.urls",
        ),
    ] {
        let file = site.write(
            "real.yaml",
            &format!("{written}scheduling: {{ {scheduling} }}\n"),
        );
        let output = run(headpond().args(["up", "--config"]).arg(&file));
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains("scheduling.endpoints: none") && told.contains(field),
            "{told}"
        );
    }
}

#[tokio::test]
async fn the_first_screen_tells_of_forgotten_endpoints_and_the_ready_file_of_every_key() {
    let site = Site::new(&[("acme", "[]")]);
    let written = std::fs::read_to_string(site.config()).expect("the file");
    let second = "projects: [{ name: nightly, keys: [{ name: batch, secret: { file: DIR/second.key } }] }, {";
    site.write("second.key", "hp-secundaaaaaa-abcdefghijkmnpqrstuvwxyz");
    site.write("headpond.yaml", &written.replace("projects: [{", second));
    let running = site.up(&[]);
    let first = screen(&running, 1).await;
    assert!(
        first.contains("NO ENDPOINTS CONFIGURED: 3 simulated engines"),
        "{first}"
    );
    assert!(first.contains("acme (nightly/batch, p/k)"), "{first}");
    assert!(!first.contains("hp-secunda"), "{first}");
    let tenant = &running.ready["tenants"][0];
    let path = |name: &str| site.path().join(name).display().to_string();
    assert_eq!(tenant["key"], "hp-secundaaaaaa-abcdefghijkmnpqrstuvwxyz");
    assert_eq!(
        tenant["keys"],
        json!([
            {"project": "nightly", "name": "batch", "role": "member", "secret": {"file": path("second.key")}},
            {"project": "p", "name": "k", "role": "lead", "secret": {"file": path("acme.key")}},
        ])
    );
    assert!(running.stop().success());
    let running = site.up(&["--engines", "1"]);
    let both = screen(&running, 2).await;
    assert_eq!(both.matches("NO ENDPOINTS").count(), 1, "{both}");
}

/// What so many starts have printed.
async fn screen(running: &Running, starts: usize) -> String {
    wire::until("the end of the screen", async || {
        let log = running.log();
        (log.matches("Break something").count() == starts).then_some(log)
    })
    .await
}

#[test]
fn the_example_configuration_is_valid_once_its_secrets_exist() {
    let directory = tempfile::tempdir().expect("a directory");
    let shown = run(headpond().args(["config", "show"]));
    assert!(shown.status.success());
    let file = directory.path().join("example.yaml");
    std::fs::write(&file, &shown.stdout).expect("a file");
    let checked = run(headpond().args(["config", "check"]).arg(&file));
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let again = run(headpond().args(["config", "show"]).arg(&file));
    std::fs::write(&file, &again.stdout).expect("a file");
    let checked = run(headpond().args(["config", "check"]).arg(&file));
    assert!(
        checked.status.success(),
        "what `show` prints is a configuration: {}",
        text(&checked.stderr)
    );
}

#[test]
fn flags_for_simulated_engines_are_refused_beside_real_ones() {
    let output = run(headpond().args(["up", "--endpoint", "http://127.0.0.1:9", "--engines", "5"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--engines"),
        "{}",
        text(&output.stderr)
    );
}

/// A command line that is wrong, and what the message must name.
const WRONG_USAGE: &[(&[&str], &[&str])] = &[
    (&["up", "--no-such-option"], &["--no-such-option"]),
    (&["up", "--policy", "fastest"], &["--policy", "fastest"]),
    (
        &["up", "--listen", "8080"],
        &["--listen", "8080", "127.0.0.1:8080", "[::1]:8080"],
    ),
    (
        &["schedule", "--config", "f", "--admin-listen", "localhost:1"],
        &["--admin-listen", "127.0.0.1:8080"],
    ),
    (
        &["engine", "--listen", ":8000"],
        &["--listen", "127.0.0.1:8080"],
    ),
    (&["up", "--speed", "0"], &["--speed", "0.01 to 10000"]),
    (&["up", "--slow", "0"], &["--slow", "1 to 1000"]),
    (&["up", "--endpoint", "https://e:1"], &["--endpoint", "TLS"]),
    (&["engine", "--profile", "b200"], &["--profile", "b200"]),
    (&["simulate", "--load", "-1"], &["--load", "-1"]),
    (&["simulate", "--policy", "best"], &["--policy", "best"]),
    (&["simulate", "--trace", "none"], &["--trace", "none"]),
    (
        &["load", "--url", "http://127.0.0.1:9", "--rate", "0"],
        &["--rate"],
    ),
    (&["load", "--url", "http://127.0.0.1:9"], &["--model"]),
    (&["load", "--url", "nowhere", "--model", "m"], &["--url"]),
    (&["top", "--admin-url", ""], &["--admin-url", "empty"]),
];

#[test]
fn a_wrong_command_line_ends_with_two_whoever_finds_it() {
    for (line, names) in WRONG_USAGE {
        let output = run(headpond().args(*line));
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {told}");
        for name in *names {
            assert!(told.contains(name), "{line:?} does not name {name}: {told}");
        }
    }
    for name in ["HEADPOND_ADMIN_URL", "HEADPOND_ADMIN_TOKEN_FILE"] {
        let empty = run(headpond().args(["top", "--once"]).env(name, ""));
        let told = text(&empty.stderr);
        assert_eq!(empty.status.code(), Some(2), "{told}");
        assert!(told.contains(&format!("unset {name}")), "{told}");
    }
}

#[test]
fn a_password_in_an_address_is_not_repeated() {
    for command in [&["top", "--once"][..], &["why", "id"], &["key", "list"]] {
        let url = "http://u:very-secret@127.0.0.1:1";
        let output = run(headpond().args(command).args(["--admin-url", url]));
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {told}");
        assert!(told.contains("--admin-url"), "{told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
}

#[test]
fn help_does_not_tell_what_variables_say() {
    for name in ["HEADPOND_ADMIN_URL", "HEADPOND_ADMIN_TOKEN_FILE"] {
        let help = run(headpond().args(["top", "--help"]).env(name, "very-secret"));
        let told = text(&help.stdout);
        assert!(told.contains(name), "{told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
}

#[test]
fn a_secret_in_the_place_of_its_path_is_not_repeated() {
    let site = Site::new(&[("acme", "[]")]);
    let written = std::fs::read_to_string(site.config()).expect("the file");
    for (name, field) in [
        (
            "secret",
            "governance.tenants[0].projects[0].keys[0].secret.file",
        ),
        ("admin_token", "governance.admin_token.file"),
        ("installation_secret", "governance.installation_secret.file"),
    ] {
        let file = |path: &str| format!(" {name}: {{ file: {path}");
        let good = file(&site.path().display().to_string());
        assert!(written.contains(&good), "{written}");
        let wrong = written.replace(&good, &file("very-secret"));
        let file = site.write("wrong.yaml", &wrong);
        let output = run(headpond()
            .args(["up", "--engines", "1", "--listen", "127.0.0.1:0"])
            .args(["--admin-listen", "127.0.0.1:0", "--config"])
            .arg(&file));
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(field), "{told}");
        assert!(!told.contains("very-secret"), "{told}");
    }
    let mut list = headpond();
    list.args(["key", "list", "--admin-token-file", "very-secret"]);
    let told = text(&run(&mut list).stderr);
    assert!(told.contains("--admin-token-file"), "{told}");
    assert!(!told.contains("very-secret"), "{told}");
}

#[test]
fn an_engine_that_does_not_answer_is_named() {
    let output = run(headpond().args(["up", "--endpoint", "http://127.0.0.1:9"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("http://127.0.0.1:9"),
        "{}",
        text(&output.stderr)
    );
}

#[tokio::test]
async fn why_explains_an_answer_and_a_refusal() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::up(directory.path(), &["--speed", "50"]);
    let hello = json!({ "model": "demo", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 4 });
    let good = wire::chat(running.url(), running.key("acme"), &hello).await;
    assert_eq!(good.status, 200, "{}", text(&good.body));
    let unknown = json!({ "model": "nope", "messages": [] });
    let bad = wire::chat(running.url(), running.key("acme"), &unknown).await;
    assert_eq!(
        (bad.status.as_u16(), bad.code().as_str()),
        (404, "model_not_found")
    );

    let told = why(&running, good.header("x-request-id"), false);
    for part in [
        "acme / web",
        "committed",
        "by planned",
        "candidate",
        "predicted",
        "200 ok",
    ] {
        assert!(told.contains(part), "{part} is missing:\n{told}");
    }
    let record: Value =
        serde_json::from_str(&why(&running, good.header("x-request-id"), true)).expect("JSON");
    assert_eq!(record["governance"]["settlement"]["state"], "committed");
    assert_eq!(
        record["scheduling"]["calls"][0]["attempts"][0]["end"],
        "completed"
    );
    let told = why(&running, bad.header("x-request-id"), false);
    assert!(
        told.contains("model_not_found") && told.contains("what to do"),
        "{told}"
    );

    let advice = told
        .lines()
        .find_map(|line| line.strip_prefix("what to do"));
    let advice = advice.expect("a line of advice").trim();
    assert_eq!(told.matches(advice).count(), 1, "said once:\n{told}");

    let nobody = run(headpond().args([
        "why",
        "01a22a33-4427-701d-9731-932504cf799e",
        "--admin-url",
        running.admin_url(),
    ]));
    assert_eq!(nobody.status.code(), Some(1));
    assert!(
        text(&nobody.stderr).contains("no record"),
        "{}",
        text(&nobody.stderr)
    );
    assert!(running.stop().success());
}

fn why(running: &Running, id: &str, json: bool) -> String {
    let mut command = headpond();
    command.args(["why", id, "--admin-url", running.admin_url()]);
    if json {
        command.arg("--json");
    }
    let output = run(&mut command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[tokio::test]
async fn keys_are_made_listed_rotated_and_revoked() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::up(directory.path(), &["--speed", "50"]);
    let token = directory.path().join("data/admin.token");
    let admin = [
        "--admin-url",
        running.admin_url(),
        "--admin-token-file",
        token.to_str().expect("UTF-8"),
    ];
    let key = |arguments: &[&str]| {
        let output = run(headpond().arg("key").args(arguments).args(admin));
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    };
    let works = async |key: &str| {
        let models = wire::send(
            Method::GET,
            &format!("{}/v1/models", running.url()),
            key,
            "",
        )
        .await;
        models.expect("an answer").status == 200
    };
    let made = key(&[
        "create",
        "--tenant",
        "acme",
        "--project",
        "web",
        "--name",
        "ci",
    ]);
    let secret = made.lines().next().expect("the key comes first").to_owned();
    assert!(works(&secret).await, "a new key works at once");
    let public = secret.split('-').nth(1).expect("a public part").to_owned();
    let list = key(&["list"]);
    assert!(list.contains(&public), "{list}");
    assert!(
        !list.contains(secret.rsplit('-').next().expect("a secret part")),
        "a list shows no secret"
    );
    let rotated = key(&["rotate", &public, "--overlap", "3600"]);
    let second = rotated
        .lines()
        .next()
        .expect("the key comes first")
        .to_owned();
    assert!(
        works(&secret).await && works(&second).await,
        "both are good during the overlap"
    );
    key(&["revoke", &secret]);
    assert!(!works(&secret).await, "a revoked key is refused at once");
    assert!(works(&second).await);

    let without = run(headpond().args(["key", "list", "--admin-url", running.admin_url()]));
    assert_eq!(without.status.code(), Some(1));
    assert!(
        text(&without.stderr).contains("--admin-token-file"),
        "{}",
        text(&without.stderr)
    );
    assert!(running.stop().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_names_an_objective_and_its_requests_are_explained_with_it() {
    let site = Site::with(
        &[("acme", "[]")],
        "  objectives: { interactive: { band: 10, ttft_ms: 2000 }, batch: { band: -1 } }\n  default_objective: batch\n",
        "",
    );
    let running = site.up(&[]);
    let token = site.write("token", ADMIN);
    let admin = [
        "--admin-url",
        running.admin_url(),
        "--admin-token-file",
        token.to_str().expect("UTF-8"),
    ];
    let create = |objective: &str| {
        let mut create = headpond();
        create.args([
            "key",
            "create",
            "--tenant",
            "acme",
            "--project",
            "p",
            "--name",
            "fast",
        ]);
        run(create.args(["--objective", objective]).args(admin))
    };
    let refused = create("gold");
    assert_eq!(refused.status.code(), Some(1));
    let message = text(&refused.stderr);
    assert!(message.contains("one of batch, interactive"), "{message}");
    let made = create("interactive");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let secret = text(&made.stdout);
    let secret = secret.lines().next().expect("the key comes first");

    let list = text(&run(headpond().args(["key", "list"]).args(admin)).stdout);
    for (name, objective) in [("fast", "interactive"), ("config/k", "batch")] {
        let line = list.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains(objective)), "{list}");
    }

    let body =
        json!({"model": "alias", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]});
    let url = format!("{}/v1/chat/completions", running.url());
    let answered = wire::send(Method::POST, &url, secret, body.to_string())
        .await
        .expect("an answer");
    assert_eq!(answered.status, 200);
    let id = answered.header("x-request-id");
    let why = text(&run(headpond().args(["why", id]).args(admin)).stdout);
    assert!(
        why.contains("interactive (of the key): band 10, weight 1"),
        "{why}"
    );
    assert!(why.contains("model demo (asked for as alias)"), "{why}");
    assert!(
        why.contains("band 10, flow acme"),
        "the scheduler was told: {why}"
    );
    assert!(running.stop().success());
}

#[test]
fn help_teaches_every_command() {
    for command in [
        "up", "govern", "schedule", "engine", "load", "key", "ledger", "top", "why", "config",
    ] {
        let output = run(headpond().args([command, "--help"]));
        assert!(output.status.success(), "{command}");
        assert!(text(&output.stdout).lines().count() > 5, "{command}");
    }
}

#[test]
fn what_it_keeps_is_nobody_elses_to_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::up(directory.path(), &[]);
    for entry in std::fs::read_dir(directory.path().join("data")).expect("a data directory") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("its metadata").permissions().mode();
        let is_lock = entry.file_name().to_string_lossy().ends_with(".lock");
        assert!(
            is_lock || mode.trailing_zeros() >= 6,
            "{} has mode {mode:o}",
            entry.path().display()
        );
    }
    assert!(running.stop().success());
}
