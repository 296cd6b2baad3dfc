use scheduler_core::{Pool, PoolConfig, Timestamp};

use super::*;

fn page(registry: &Registry) -> String {
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, registry).expect("a string");
    page
}

#[test]
fn labels_of_bands_and_flows_are_bounded_whatever_comes() {
    let mut registry = Registry::default();
    let metrics = FlowMetrics::new(&mut registry);
    let mut snapshot = Pool::new(PoolConfig::default(), 1).snapshot(Timestamp::ZERO);
    for n in 0..300 {
        metrics.refused(n, "shed");
        snapshot.flows = vec![scheduler_core::FlowSnapshot {
            band: n,
            flow: format!("tenant-{n}"),
            waiting: 1,
            running: 2,
            running_wtu: 1.0,
            over_quota: false,
        }];
        metrics.show(&snapshot);
    }
    let page = page(&registry);
    let series = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("outcomes_total{"), BAND_LABELS + 1);
    assert_eq!(series("band_running{"), BAND_LABELS + 1);
    assert_eq!(series("flow_running{"), FLOW_LABELS + 1);
    assert!(
        page.contains("outcomes_total{band=\"other\",outcome=\"shed\"} 284"),
        "{page}"
    );
    assert!(page.contains("flow_running{flow=\"tenant-0\"} 0"), "{page}");
    assert!(page.contains("flow_running{flow=\"other\"} 2"), "{page}");
}

#[test]
fn a_turn_is_counted_by_what_it_rested_on() {
    let mut registry = Registry::default();
    let metrics = FlowMetrics::new(&mut registry);
    let turn = Turn {
        by_share: true,
        slack_s: -0.5,
        misses: 0.25,
        passed: 3,
        charged_wtu: 1.5,
        ..Turn::default()
    };
    metrics.dispatched(10, Duration::from_millis(30), &turn);
    metrics.dispatched(10, Duration::ZERO, &Turn::default());
    let page = page(&registry);
    for line in [
        "outcomes_total{band=\"10\",outcome=\"dispatched\"} 2",
        "queue_wait_seconds_count{band=\"10\"} 2",
        "charged_wtu_total 1.5",
        "expected_misses_total 0.25",
        "held_total 1",
        "late_total 1",
        "by_share_total 1",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}
