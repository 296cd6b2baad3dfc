//! Rows as tables that people read.

use std::fmt::Write as _;

use super::check::Plan;
use super::runs::{LEAST_LOAD, Row, Run, Verdict};

struct Column {
    head: &'static str,
    width: usize,
    cell: fn(&Row) -> String,
}

/// The name of the variant comes before them.
const COLUMNS: [Column; 13] = [
    column("load", 7, load),
    column("goodput", 8, |row| {
        percent(row.mean(|run| run.figures.goodput))
    }),
    column("TTFT p50", 9, |row| {
        seconds(row.mean(|run| run.figures.ttft_s.p50))
    }),
    column("p90", 8, |row| {
        seconds(row.mean(|run| run.figures.ttft_s.p90))
    }),
    column("p99", 8, |row| {
        seconds(row.mean(|run| run.figures.ttft_s.p99))
    }),
    column("mean", 8, |row| {
        seconds(row.mean(|run| run.figures.ttft_s.mean))
    }),
    column("TPOT p50", 9, |row| {
        milliseconds(row.mean(|run| run.figures.tpot_s.p50))
    }),
    column("p99", 7, |row| {
        milliseconds(row.mean(|run| run.figures.tpot_s.p99))
    }),
    column("stall p99", 10, |row| {
        seconds(row.mean(|run| run.figures.stall_s.p99))
    }),
    column("hits/best", 10, |row| {
        percent(row.mean(|run| run.hits_of_best))
    }),
    column("max/mean", 9, |row| {
        format!("{:.2}", row.mean(|run| run.imbalance))
    }),
    column("refused", 8, |row| percent(row.mean(refused))),
    column("Jain", 7, jain),
];

const fn column(head: &'static str, width: usize, cell: fn(&Row) -> String) -> Column {
    Column { head, width, cell }
}

/// One table per source, and what they mean.
pub(super) fn tables(plan: &Plan, rows: &[Row]) -> String {
    let mut text = String::new();
    for source in &plan.sources {
        let name = source.to_string();
        let rows: Vec<&Row> = rows.iter().filter(|row| row.source == name).collect();
        table(plan, &name, &rows, &mut text);
    }
    text.push_str(meaning(plan));
    text.push('\n');
    text
}

fn table(plan: &Plan, name: &str, rows: &[&Row], text: &mut String) {
    let scenario = &plan.scenario;
    let offered = rows
        .first()
        .and_then(|row| row.runs.first())
        .map_or(0, |run| run.figures.offered);
    let _ = writeln!(
        text,
        "{name}: {offered} requests, {} × {}, {}, {}",
        scenario.engines,
        scenario.profile,
        counted(u64::from(scenario.schedulers), "scheduler"),
        counted(plan.seeds.len() as u64, "seed"),
    );
    let names: Vec<String> = rows.iter().map(|row| row.variant.name()).collect();
    let widest = names
        .iter()
        .map(String::len)
        .max()
        .unwrap_or(0)
        .max("policy".len());
    let _ = write!(text, "{:<widest$}", "policy");
    for Column { head, width, .. } in &COLUMNS {
        let _ = write!(text, " {head:>width$}");
    }
    text.push('\n');
    for (row, name) in rows.iter().zip(&names) {
        let _ = write!(text, "{name:<widest$}");
        for Column { width, cell, .. } in &COLUMNS {
            let _ = write!(text, " {:>width$}", cell(row));
        }
        text.push('\n');
    }
    for (row, name) in rows.iter().zip(&names) {
        for (code, drops) in row.drops() {
            let _ = writeln!(
                text,
                "  {name}: {} {code} (prompts up to 4096 tokens: {}, up to 27000: {}, longer: {})",
                drops.total(),
                drops.short,
                drops.medium,
                drops.long,
            );
        }
    }
    text.push('\n');
}

fn meaning(plan: &Plan) -> &'static str {
    if plan.load.is_some() {
        "goodput: share of all offered requests with TTFT ≤ 1 s + 3 × the prefill of the whole prompt and TPOT ≤ 100 ms."
    } else {
        "load: the largest factor at which 95 % of all offered requests have TTFT ≤ 1 s + 3 × the prefill of the whole \
         prompt and TPOT ≤ 100 ms; the rest of a line is at that load."
    }
}

fn load(row: &Row) -> String {
    match row.verdict {
        Verdict::Asked | Verdict::Sustained => format!("{:.2}", row.load),
        Verdict::Nothing => format!("<{LEAST_LOAD}"),
    }
}

fn refused(run: &Run) -> f64 {
    let drops = run.figures.drops.values().map(|drops| drops.total());
    drops.sum::<u64>() as f64 / run.figures.offered.max(1) as f64
}

fn jain(row: &Row) -> String {
    if row.runs.iter().all(|run| run.figures.wtu_shares.len() <= 1) {
        return "-".to_owned();
    }
    format!("{:.3}", row.mean(|run| run.figures.jain))
}

fn percent(share: f64) -> String {
    present(share, |share| format!("{:.1} %", share * 100.0))
}

fn seconds(seconds: f64) -> String {
    present(seconds, |seconds| format!("{seconds:.2} s"))
}

fn milliseconds(seconds: f64) -> String {
    present(seconds, |seconds| format!("{:.0} ms", seconds * 1e3))
}

fn present(value: f64, write: impl Fn(f64) -> String) -> String {
    if value.is_nan() {
        "-".to_owned()
    } else {
        write(value)
    }
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
