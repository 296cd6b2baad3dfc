//! Scheduling case 26: whoever comes, the metrics page stays a page.

use std::collections::BTreeSet;

use governance_context::{Band, Context};
use scheduler_proxy::SchedulerProxy;
use serde_json::json;
use tokio::task::JoinSet;

use crate::rig::{assert_at_rest, context, post, proxy_with, until};
use crate::stub::{Reply, Stub};

/// As docs/operating.md says, and `other`.
const FLOWS: usize = 64 + 1;
const BANDS: usize = 16 + 1;
const CALLERS: u64 = 150;

/// Callers that nobody has seen before, each with a tenant, a band, a model and a path of its own, all at an engine.
async fn strangers(proxy: &SchedulerProxy, from: u64) -> String {
    let mut calls = JoinSet::new();
    for n in from..from + CALLERS {
        let proxy = proxy.clone();
        let context = Context {
            tenant: format!("tenant-{n}").parse().expect("a name"),
            fairness: format!("flow-{n}").parse().expect("a name"),
            band: Band(i32::try_from(n).expect("few")),
            ..context(n)
        };
        let body = format!(r#"{{"model":"model-{n}","prompt":"hello","max_tokens":5}}"#);
        calls.spawn(async move { proxy.call(context, post("/v1/completions", body)).await });
    }
    until("all are at the engine", || {
        proxy.snapshot().bookings as u64 == CALLERS
    })
    .await;
    let mut page = String::new();
    proxy.encode_metrics(&mut page);
    calls.shutdown().await;
    assert_at_rest(proxy);
    page
}

/// Different values of a label.
fn values<'a>(page: &'a str, label: &str) -> BTreeSet<&'a str> {
    let start = format!("{label}=\"");
    page.lines()
        .filter_map(|line| line.split_once(&start))
        .filter_map(|(_, rest)| rest.split('"').next())
        .collect()
}

/// What is counted, without how often.
fn series(page: &str) -> BTreeSet<&str> {
    page.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, _)| series)
        .collect()
}

#[tokio::test]
async fn case_26_tenants_and_bands_without_end_are_other() {
    let engine = Stub::start(|_, _| Reply::Never).await;
    let proxy = proxy_with(&[&engine], json!({"engine": {"depth": 1000}}));
    drop(strangers(&proxy, 0).await);
    let second = strangers(&proxy, CALLERS).await;
    for (label, most) in [("flow", FLOWS), ("band", BANDS)] {
        let values = values(&second, label);
        assert_eq!(values.len(), most, "{values:?}");
        assert!(values.contains("other"), "{values:?}");
    }
    for unbounded in ["model-", "tenant-"] {
        assert!(!second.contains(unbounded), "{unbounded} is no label");
    }
    let third = strangers(&proxy, 2 * CALLERS).await;
    assert_eq!(series(&third), series(&second), "later ones add nothing");
    // Bands that share a label are added up; of flows the pool shows the 64 with most.
    for (sample, count) in [
        ("band_running{band=\"other\"}", CALLERS),
        ("flow_running{flow=\"other\"}", 64),
    ] {
        let line = third.lines().find(|line| line.contains(sample));
        let line = line.expect("the sum of the others");
        assert!(line.ends_with(&format!(" {count}")), "{line}");
    }
}
