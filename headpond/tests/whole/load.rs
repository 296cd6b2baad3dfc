//! `headpond load`: crowds of tenants, sent and rehearsed, and what is refused.

use std::process::Output;

use serde_json::Value;

use crate::process::{headpond, run};
use crate::site::{PATIENT, Site};

fn load(arguments: &[&str]) -> Output {
    run(headpond().arg("load").args(arguments))
}

fn stdout(arguments: &[&str]) -> String {
    let output = load(arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A file in a directory of its own, with this `scheduling` section.
fn file(scheduling: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("headpond.yaml");
    std::fs::write(&path, format!("scheduling: {scheduling}\n")).expect("a file");
    let path = path.to_str().expect("a UTF-8 path").to_owned();
    (directory, path)
}

/// Twice what one engine of the profile can do.
const BANDS: [&str; 8] = [
    "--group",
    "web rate=6 prompt=500..1500 output=100..300 band=1",
    "--group",
    "batch rate=4 prompt=3000..9000 output=200 band=0",
    "--duration",
    "20",
    "--engines",
    "1",
];

fn rehearsed(file: &str, more: &[&str]) -> Value {
    let arguments = [&BANDS[..], &["--rehearse", file, "--json"], more].concat();
    serde_json::from_str(&stdout(&arguments)).expect("JSON")
}

#[test]
fn a_rehearsal_follows_the_file_and_its_seed() {
    let (_kept, refusing) = file("{ bands: [{ band: 1 }, { band: 0, share: 0.1 }] }");
    let report = rehearsed(&refusing, &[]);
    assert_eq!(report, rehearsed(&refusing, &[]));
    assert_ne!(report, rehearsed(&refusing, &["--seed", "1"]));
    let part = |report: &Value, path: &str| -> f64 {
        let found = report.pointer(path).and_then(Value::as_f64);
        found.unwrap_or_else(|| panic!("{path} in {report}"))
    };
    assert!(part(&report, "/figures/bands/1/goodput") > 0.95);
    assert!(part(&report, "/figures/bands/0/refused_by/429 queue_wait") > 10.0);
    let band = part(&report, "/figures/bands/0/offered");
    assert!((band - part(&report, "/figures/tenants/batch/offered")).abs() < 0.5);
    // Bands the other way round.
    let (_kept, waiting) = file("{ bands: [{ band: 1 }, { band: 0, refuse: never }] }");
    let waits = rehearsed(&waiting, &[]);
    assert_eq!(
        waits.pointer("/figures/bands/0/refused_by/429 queue_wait"),
        None
    );
    let (_kept, policy) = file("{ policy: round-robin }");
    assert_ne!(rehearsed(&policy, &[])["figures"], report["figures"]);
}

#[test]
fn the_table_has_a_line_for_each_tenant_and_band() {
    let (_kept, file) = file("{}");
    let table = stdout(&[&BANDS[..], &["--rehearse", &file]].concat());
    let lines = |start: &str| table.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        (lines("tenant"), lines("band"), lines("Jain")),
        (2, 2, 1),
        "{table}"
    );
    assert!(
        table.contains("2 groups for 20 s to 1 engine on virtual time"),
        "{table}"
    );
}

#[test]
fn a_rehearsal_keeps_to_the_quota_of_a_tenant() {
    let quota = "{ quota: { flows: { web: { wtu_per_s: 1, over: refuse } } } }";
    let (_kept, file) = file(quota);
    let group = |name: &str| format!("{name} rate=2 prompt=100 output=10");
    let (web, other) = (group("web"), group("other"));
    let groups = ["--group", &web, "--group", &other, "--duration", "10"];
    let table = stdout(&[&groups[..], &["--rehearse", &file]].concat());
    let line = |name: &str| {
        let start = format!("{:<10}{name}:", "tenant");
        let line = table.lines().find(|line| line.starts_with(&start));
        line.unwrap_or_else(|| panic!("no line of {name}:\n{table}"))
    };
    assert!(line("other").contains("refused 0 "), "{table}");
    assert!(!line("web").contains("refused 0 "), "{table}");
}

#[test]
fn a_crowd_is_sent_with_the_keys_of_its_tenants() {
    let site = Site::with(&[("acme", "[]"), ("globex", "[]")], "", PATIENT);
    let written = std::fs::read_to_string(site.config()).expect("the file");
    let (lead, other) = written.split_at(written.find("- name: globex").expect("it is there"));
    let other = other.replace("role: lead", "role: member");
    site.write("headpond.yaml", &format!("{lead}{other}"));
    let running = site.up(&["--slow", "1"]);
    let ready = site.path().join("up.ready.json");
    let ready = ready.to_str().expect("a UTF-8 path");
    let group = |name: &str| format!("{name} rate=10 prompt=100..300 output=4");
    let (acme, globex) = (group("acme"), group("globex"));
    let groups = ["--group", &acme, "--group", &globex];
    let whole = ["--ready-file", ready, "--json", "--duration", "2"];
    let report = load(&[&whole[..], &groups].concat()).stdout;
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    assert!(report["offered"].as_u64() > Some(10), "{report}");
    assert_eq!(report["completed"], report["offered"], "{report}");
    // A machine that is too busy for its own schedule gives no figures.
    if report["verdict"]["kind"] == "valid" {
        for tenant in ["acme", "globex"] {
            let figures = &report["figures"]["tenants"][tenant];
            assert!(figures["completed"].as_u64() > Some(3), "{report}");
        }
        // Only a lead is told how long its requests waited.
        let wait = |tenant: &str| &report["figures"]["tenants"][tenant]["wait_s"];
        assert!(
            wait("acme")["p95"].is_number() && wait("globex").is_null(),
            "{report}"
        );
    }
    let output = load(&["--ready-file", ready, "--group", &group("nobody")]);
    let told = String::from_utf8_lossy(&output.stderr);
    let expected = "no tenant \"nobody\"; it has acme, globex";
    assert!(
        !output.status.success() && told.contains(expected),
        "{told}"
    );
    drop(running);
}

#[test]
fn what_cannot_be_sent_or_rehearsed_is_refused_by_name() {
    let (_kept, good) = file("{}");
    let group = "a rate=1 prompt=100 output=10";
    for (arguments, named) in [
        (&["--group", "a rate=1", "--rehearse", &good][..], "--group"),
        (
            &["--group", group, "--rehearse", "nowhere.yaml"],
            "nowhere.yaml",
        ),
        (
            &["--group", group, "--rehearse", &good, "--blackout", "9..3"],
            "--blackout",
        ),
        (
            &["--group", group, "--rehearse", &good, "--speed", "2"],
            "--speed",
        ),
        (
            &["--group", group, "--rehearse", &good, "--rate", "2"],
            "--rate",
        ),
        (
            &[
                "--group",
                group,
                "--rehearse",
                &good,
                "--key",
                "a",
                "--key",
                "b",
            ],
            "--key: 2 for 1 group;",
        ),
        (
            &["--url", "http://127.0.0.1:1", "--engines", "2"],
            "--engines",
        ),
        (
            &["--url", "http://127.0.0.1:1", "--duration", "2"],
            "--group",
        ),
    ] {
        let output = load(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && told.contains(named),
            "{arguments:?}: {told}"
        );
    }
}
