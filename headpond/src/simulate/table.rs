//! Rows as tables that people read.

use std::fmt::Write as _;

use super::check::Plan;
use super::runs::{LEAST_LOAD, Row, Run, Verdict};
use crate::counted::counted;

struct Column {
    /// Stands above the head, for this column and those after it that have none.
    group: &'static str,
    head: &'static str,
    width: usize,
    cell: fn(&Row) -> String,
}

/// The name of the variant comes before them.
const COLUMNS: [Column; 15] = [
    column("", "load", 5, load),
    column("", "good %", 6, |row| {
        percent(row.mean(|run| run.figures.goodput))
    }),
    column("TTFT s", "p50", 6, |row| {
        fixed::<2>(row.mean(|run| run.figures.ttft_s.p50))
    }),
    column("", "p90", 6, |row| {
        fixed::<2>(row.mean(|run| run.figures.ttft_s.p90))
    }),
    column("", "p99", 6, |row| {
        fixed::<2>(row.mean(|run| run.figures.ttft_s.p99))
    }),
    column("", "mean", 5, |row| {
        fixed::<2>(row.mean(|run| run.figures.ttft_s.mean))
    }),
    column("slow-down", "p50", 5, |row| {
        fixed::<1>(row.mean(|run| run.figures.slowdown.p50))
    }),
    column("", "p99", 6, |row| {
        fixed::<1>(row.mean(|run| run.figures.slowdown.p99))
    }),
    column("TPOT ms", "p50", 4, |row| {
        fixed::<0>(row.mean(|run| run.figures.tpot_s.p50 * 1e3))
    }),
    column("", "p99", 4, |row| {
        fixed::<0>(row.mean(|run| run.figures.tpot_s.p99 * 1e3))
    }),
    column("stall s", "p99", 7, |row| {
        fixed::<2>(row.mean(|run| run.figures.stall_s.p99))
    }),
    column("hits %", "of best", 7, |row| {
        percent(row.mean(|run| run.hits_of_best))
    }),
    column("work", "max÷mean", 8, |row| {
        fixed::<2>(row.mean(|run| run.imbalance))
    }),
    column("refused", "%", 7, |row| percent(row.mean(refused))),
    column("wasted", "prefill %", 9, |row| {
        percent(row.mean(|run| run.figures.wasted_prefill))
    }),
];

const fn column(
    group: &'static str,
    head: &'static str,
    width: usize,
    cell: fn(&Row) -> String,
) -> Column {
    Column {
        group,
        head,
        width,
        cell,
    }
}

/// Tenants whose shares are named.
const NAMED_TENANTS: usize = 5;

const BEYOND_BEST: &str = "hits above 100 % of best: hits are of answered requests, the best is of all that were offered; refused prompts shared \
                           less.\n";

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
    if rows
        .iter()
        .any(|row| row.mean(|run| run.hits_of_best) > 1.0)
    {
        text.push_str(BEYOND_BEST);
    }
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
        "{name}: {}, {} × {}, {}, {}",
        counted(offered, "request"),
        scenario.engines,
        scenario.profile,
        counted(u64::from(scenario.schedulers), "scheduler"),
        counted(plan.seeds.len() as u64, "seed"),
    );
    let names: Vec<String> = rows.iter().map(|row| row.variant.name()).collect();
    let widest = names.iter().map(String::len).max().unwrap_or(0);
    let widest = widest.max("policy".len());
    line(text, "", widest, |column| column.group.to_owned());
    line(text, "policy", widest, |column| column.head.to_owned());
    for (row, name) in rows.iter().zip(&names) {
        line(text, name, widest, |column| (column.cell)(row));
    }
    for (row, name) in rows.iter().zip(&names) {
        drops(row, name, text);
    }
    for (row, name) in rows.iter().zip(&names) {
        tenants(row, name, text);
    }
    text.push('\n');
}

fn line(text: &mut String, name: &str, widest: usize, cell: impl Fn(&Column) -> String) {
    let mut line = format!("{name:<widest$}");
    for column in &COLUMNS {
        let _ = write!(line, "  {:>1$}", cell(column), column.width);
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn drops(row: &Row, name: &str, text: &mut String) {
    for (code, drops) in row.drops() {
        let _ = writeln!(
            text,
            "  {name}: {} × {code}, by prompt tokens: {} up to 4096, {} up to 27000, {} more",
            drops.total(),
            drops.short,
            drops.medium,
            drops.long,
        );
    }
}

/// How fair it was, where there is more than one tenant.
fn tenants(row: &Row, name: &str, text: &mut String) {
    let Some(run) = row.runs.first() else {
        return;
    };
    let mut shares: Vec<f64> = run.figures.wtu_shares.values().copied().collect();
    if shares.len() <= 1 {
        return;
    }
    shares.sort_by(|a, b| b.total_cmp(a));
    let largest: Vec<String> = shares
        .iter()
        .take(NAMED_TENANTS)
        .map(|share| percent(*share))
        .collect();
    let _ = writeln!(
        text,
        "  {name}: Jain {:.3}; of {} tenants the largest were served {} % of the WTU (seed {})",
        row.mean(|run| run.figures.jain),
        shares.len(),
        largest.join(", "),
        run.seed,
    );
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

fn percent(share: f64) -> String {
    fixed::<1>(share * 100.0)
}

/// With so many digits behind the point; a dash for what has no value.
fn fixed<const DIGITS: usize>(value: f64) -> String {
    if value.is_nan() {
        "-".to_owned()
    } else {
        format!("{value:.DIGITS$}")
    }
}
