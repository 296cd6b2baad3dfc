//! The script that measures the first ten seconds: it must work; what it measures is for people to read.

use std::path::Path;
use std::process::Command;

use crate::process::run;

#[test]
fn the_first_answer_script_prints_what_it_measures() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/first-answer");
    let output = run(Command::new(script).arg(env!("CARGO_BIN_EXE_headpond")));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let number = |name: &str| -> f64 {
        let line = told.lines().find_map(|line| line.strip_prefix(name));
        let value = line
            .unwrap_or_else(|| panic!("no {name}: {told}"))
            .split_whitespace()
            .next();
        value.expect("a value").parse().expect("a number")
    };
    assert!(number("first 200") > 0.0, "{told}");
    assert!(number("resident memory") > 1.0, "{told}");
}
