//! `headpond ledger`: looking after a ledger file, while it runs or after.

use std::fmt::Write as _;
use std::process::ExitCode;

use governance_core::ledger::Report;
use ledger_store::verify_file;
use serde_json::json;

use crate::cli::Ledger;
use crate::counted::counted;
use crate::data::DataDir;

pub(crate) fn run(command: Ledger) -> anyhow::Result<ExitCode> {
    let Ledger::Verify { data_dir, json } = command;
    let report = verify_file(&DataDir::ledger_file(&data_dir))?;
    if json {
        println!("{:#}", as_json(&report));
    } else {
        print!("{}", as_text(&report));
    }
    Ok(if report.is_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn violations(report: &Report) -> Vec<String> {
    report
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.invariant, violation.detail))
        .collect()
}

fn as_json(report: &Report) -> serde_json::Value {
    json!({
        "green": report.is_green(),
        "entries": report.entries,
        "windows": report.windows,
        "attempts": report.attempts,
        "unknown": { "attempts": report.unknown.attempts, "held": report.unknown.held },
        "violation_count": report.violation_count,
        "violations": violations(report),
    })
}

fn as_text(report: &Report) -> String {
    let mut text = format!(
        "{}, {}, {}; of unknown end: {}, holding {} µWTU, summed over all their windows\n",
        counted(report.entries, "entry"),
        counted(report.windows, "window"),
        counted(report.attempts, "attempt"),
        counted(report.unknown.attempts, "attempt"),
        report.unknown.held
    );
    for violation in violations(report) {
        let _ = writeln!(text, "BROKEN  {violation}");
    }
    text += if report.is_green() {
        "every invariant holds\n"
    } else {
        "the ledger is not to be trusted: keep the file and restore a copy\n"
    };
    text
}
