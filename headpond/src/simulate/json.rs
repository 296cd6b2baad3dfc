//! A row as JSON: one object per seed, described in `docs/simulating.md`.

use pool_simulator::{Drops, Quantiles};
use serde_json::{Map, Value, json};

use super::runs::{Row, Run, Verdict};

pub(super) fn lines(row: &Row) -> impl Iterator<Item = Value> + '_ {
    row.runs.iter().map(|run| object(row, run))
}

fn object(row: &Row, run: &Run) -> Value {
    let figures = &run.figures;
    let drops: Map<String, Value> = figures
        .drops
        .iter()
        .map(|(code, drops)| ((*code).to_owned(), json!(drops.total())))
        .collect();
    let mut lengths = Drops::default();
    for drops in figures.drops.values() {
        lengths += *drops;
    }
    let shares: Map<String, Value> = figures
        .wtu_shares
        .iter()
        .map(|(tenant, share)| (tenant.to_string(), json!(share)))
        .collect();
    json!({
        "trace": row.source,
        "policy": row.variant.policy.name(),
        "refuse": row.variant.refuse_name(),
        "seed": run.seed,
        "load": row.load,
        "search": match row.verdict {
            Verdict::Asked => "none",
            Verdict::Sustained => "sustained",
            Verdict::Nothing => "nothing_sustained",
        },
        "offered": figures.offered,
        "completed": figures.completed,
        "goodput": figures.goodput,
        "ttft_s": quantiles(figures.ttft_s, 1.0),
        "slowdown": quantiles(figures.slowdown, 1.0),
        "tpot_ms": quantiles(figures.tpot_s, 1e3),
        "stall_s": quantiles(figures.stall_s, 1.0),
        "e2e_s": quantiles(figures.total_s, 1.0),
        "hit_ratio": figures.hit_ratio,
        "hit_ratio_of_best": run.hits_of_best,
        "imbalance": run.imbalance,
        "drops": drops,
        "drops_by_prompt_tokens": {
            "up_to_4096": lengths.short,
            "up_to_27000": lengths.medium,
            "more": lengths.long,
        },
        "wasted_prefill": figures.wasted_prefill,
        "jain": figures.jain,
        "wtu_shares": shares,
        "deepest_engine_queue": run.deepest_engine_queue,
        "preemptions": run.preemptions,
        "abandoned": run.abandoned,
        "virtual_s": run.virtual_seconds,
    })
}

/// What has no value, such as the TTFT where nobody had a token, is null.
fn quantiles(values: Quantiles, scale: f64) -> Value {
    json!({
        "p50": values.p50 * scale,
        "p90": values.p90 * scale,
        "p99": values.p99 * scale,
        "mean": values.mean * scale,
    })
}
