//! `headpond simulate`: its table, its JSON, and what it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;

use serde_json::Value;

use crate::process::{headpond, run};

fn simulate(arguments: &[&str]) -> Output {
    run(headpond().arg("simulate").args(arguments))
}

fn stdout(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {told}");
    assert_eq!(told, "", "progress is for terminals");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn objects(arguments: &[&str]) -> Vec<Value> {
    let object = |line| serde_json::from_str(line).expect("a line of JSON");
    stdout(arguments).lines().map(object).collect()
}

/// Few requests, so that a debug build answers at once.
const SMALL: [&str; 8] = [
    "--requests",
    "60",
    "--engines",
    "2",
    "--trace",
    "agentic",
    "--trace",
    "bursty",
];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}

#[test]
fn a_table_names_every_policy_and_lines_up() {
    let table = stdout(&small(&["--load", "1.5", "--seeds", "1"]));
    for title in [
        "agentic: 60 requests, 2 × 70b-8xh100, 1 scheduler, 1 seed",
        "bursty: 60 requests",
    ] {
        assert!(table.contains(title), "{title} is missing:\n{table}");
    }
    for policy in scheduler_core::Policy::ALL {
        assert_eq!(
            table.matches(&format!("\n{policy} ")).count(),
            2,
            "{policy}:\n{table}"
        );
    }
    assert_eq!(table.matches("\nplanned, refusing ").count(), 2, "{table}");
    let rows = table.lines().skip_while(|line| !line.starts_with("policy"));
    let rows = rows.take_while(|line| !line.starts_with(' ') && !line.is_empty());
    let widths: BTreeSet<usize> = rows.map(|line| line.chars().count()).collect();
    assert_eq!(widths.len(), 1, "rows differ in width:\n{table}");
    for meaning in ["\ngoodput", "\n  planned: Jain", "of 8 tenants"] {
        assert!(table.contains(meaning), "{meaning} is missing:\n{table}");
    }
    for meaning in ["goodput: share", "Jain", "of 8 tenants"] {
        assert!(table.contains(meaning), "{meaning} is missing:\n{table}");
    }
}

#[test]
fn hits_beyond_the_best_are_explained_where_there_are_any() {
    let at = |load: &str| {
        let arguments = [
            "--trace",
            "agentic",
            "--requests",
            "600",
            "--engines",
            "2",
            "--policy",
            "planned",
            "--refuse",
            "doomed",
            "--seeds",
            "1",
            "--load",
            load,
        ];
        let found =
            objects(&[&arguments[..], &["--json"]].concat())[0]["hit_ratio_of_best"].as_f64();
        let explained = stdout(&arguments).contains("hits above 100 % of best");
        (found.expect("a share") > 1.0, explained)
    };
    assert_eq!(at("30"), (true, true), "refused prompts shared less");
    assert_eq!(at("1"), (false, false));
}

#[test]
fn json_has_one_object_per_trace_policy_and_seed() {
    let arguments = small(&[
        "--load",
        "2",
        "--seeds",
        "3",
        "--json",
        "--policy",
        "planned,random",
    ]);
    let rows = objects(&arguments);
    let mut kinds: BTreeMap<(String, String, String), BTreeSet<u64>> = BTreeMap::new();
    for row in &rows {
        let word = |name: &str| row[name].as_str().expect(name).to_owned();
        let seed = row["seed"].as_u64().expect("a seed");
        let kind = (word("trace"), word("policy"), word("refuse"));
        kinds.entry(kind).or_default().insert(seed);
        for path in [
            "/load",
            "/goodput",
            "/ttft_s/p50",
            "/ttft_s/p90",
            "/ttft_s/p99",
            "/slowdown/p50",
            "/tpot_ms/p50",
            "/tpot_ms/p99",
            "/stall_s/p99",
            "/hit_ratio",
            "/hit_ratio_of_best",
            "/imbalance",
            "/wasted_prefill",
            "/jain",
            "/drops_by_prompt_tokens/more",
        ] {
            let value = row.pointer(path).and_then(Value::as_f64);
            assert!(value.is_some_and(|value| value >= 0.0), "{path} of {row}");
        }
        assert!(row["drops"].is_object(), "{row}");
        assert_eq!(row["load"], 2.0);
    }
    assert_eq!(
        kinds.len(),
        2 * 3,
        "planned both ways, and random: {kinds:?}"
    );
    assert!(
        kinds.values().all(|seeds| seeds.iter().copied().eq(1..=3)),
        "{kinds:?}"
    );
    assert_eq!(
        objects(&arguments),
        rows,
        "the same seeds give the same figures"
    );
}

#[test]
fn the_load_that_is_sustained_is_found_and_one_step_more_is_too_much() {
    let base = [
        "--requests",
        "150",
        "--engines",
        "1",
        "--trace",
        "tenants",
        "--policy",
        "weighted",
    ];
    let all = |more: &[&str]| objects(&[&base[..], more, &["--seeds", "2", "--json"]].concat());
    let goodput = |rows: &[Value]| {
        rows.iter()
            .map(|row| row["goodput"].as_f64().expect("a share"))
            .sum::<f64>()
            / 2.0
    };
    let found = all(&["--capacity"]);
    assert_eq!(found[0]["search"], "sustained");
    let load = found[0]["load"].as_f64().expect("a factor");
    assert!(goodput(&found) >= 0.95, "{found:?}");
    let again = all(&["--load", &load.to_string()]);
    for (again, found) in again.iter().zip(&found) {
        assert_eq!(again["goodput"], found["goodput"]);
    }
    assert!(goodput(&all(&["--load", &(load * 1.3).to_string()])) < 0.95);
}

#[test]
fn files_in_every_form_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let forms = [
        ("blocks.tsv", "0\t600\t9\t0-1\n5\t512\t20\t0\n"),
        ("plain.tsv", "#t_ms\tin\tout\n0\t600\t9\n5\t512\t20\n"),
        (
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,600,9\n2023-11-16 18:15:46.6900000,512,20\n",
        ),
        (
            "mooncake.jsonl",
            "{\"timestamp\":0,\"input_length\":600,\"output_length\":9,\"hash_ids\":[0,1]}\n{\"timestamp\":5,\"input_length\":512,\"output_length\":20,\"hash_ids\":[0]}\n",
        ),
    ];
    for (name, text) in forms {
        let file = directory.path().join(name);
        std::fs::write(&file, text).expect("a file");
        let file = file.to_str().expect("a UTF-8 path");
        let rows = objects(&[
            "--trace", file, "--load", "1", "--policy", "planned", "--refuse", "never", "--seeds",
            "1", "--json",
        ]);
        assert_eq!(
            (rows.len(), rows[0]["completed"].as_u64()),
            (1, Some(2)),
            "{name}"
        );
        assert_eq!(rows[0]["trace"], file);
    }
}

#[test]
fn what_cannot_be_simulated_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("a UTF-8 path").to_owned()
    };
    let bad = file("bad.tsv", "0\t1\t1\n0\tx\t1\n");
    let empty = file("empty.tsv", "# nothing\n");
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--policy", "fastest"],
            &["--policy", "fastest", "planned", "round-robin"],
        ),
        (
            &["--trace", "nowhere"],
            &["--trace", "nowhere", "agentic", "mooncake_conversation"],
        ),
        (
            &["--trace", &bad],
            &["bad.tsv", "line 2", "input_tokens", "x"],
        ),
        (&["--trace", &empty], &["empty.tsv", "no requests"]),
        (
            &["--trace", directory.path().to_str().expect("UTF-8")],
            &["--trace"],
        ),
        (
            &["--profile", "h200"],
            &["--profile", "h200", "70b-8xh100", "8b-a100"],
        ),
        (&["--load", "-1"], &["--load", "-1", "above 0"]),
        (&["--load", "0"], &["--load", "above 0"]),
        (&["--load", "51"], &["--load", "up to 50"]),
        (&["--load", "NaN"], &["--load"]),
        (&["--load", "2", "--capacity"], &["--load", "--capacity"]),
        (&["--seeds", "0"], &["--seeds", "0"]),
        (&["--engines", "0"], &["--engines", "0"]),
        (&["--schedulers", "65"], &["--schedulers", "64"]),
        (&["--requests", "-5"], &["-5"]),
        (&["--tenants", "0"], &["--tenants", "0"]),
        (&["--refuse", "some"], &["--refuse", "doomed", "never"]),
        (
            &["--refuse", "doomed", "--policy", "random"],
            &["--refuse", "planned"],
        ),
    ];
    for (arguments, names) in cases {
        let output = simulate(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(output.status.code(), Some(1 | 2)),
            "{arguments:?} ran: {told}"
        );
        assert!(output.stdout.is_empty());
        for name in *names {
            assert!(
                told.contains(name),
                "{arguments:?} does not name {name}: {told}"
            );
        }
    }
}

#[test]
fn the_help_is_complete() {
    let help = stdout(&["--help"]);
    for flag in [
        "--trace",
        "--load",
        "--capacity",
        "--policy",
        "--seeds",
        "--first-seed",
        "--engines",
        "--profile",
        "--schedulers",
        "--refuse",
        "--tenants",
        "--requests",
        "--json",
        "agentic",
        "Examples",
    ] {
        assert!(help.contains(flag), "{flag} is missing:\n{help}");
    }
}
