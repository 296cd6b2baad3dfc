//! Flow control as it may be written.

use governance_context::Band;
use scheduler_core::flow::{Aging, FairOrder, OverQuota, QuotaRate, Refuse, Starvation};

use super::*;

fn flow(section: &Value) -> FlowConfig {
    check(section).expect("a good section").flow
}

#[test]
fn every_setting_of_flow_control_arrives() {
    let flow = flow(&json!({
        "queue": {"requests": 10, "bytes": 20, "flow": {"requests": 3, "bytes": 4}, "ttl_ms": 5, "no_endpoint_ttl_ms": 6},
        "fairness": "strict",
        "wtu": {"uncached": 3, "cached": 0.25, "output": 4.5},
        "quota": {
            "in_flight_wtu": 7, "wtu_per_s": 8, "burst_wtu": 9, "over": "refuse",
            "flows": {"acme": {"wtu_per_s": 11}, "free/tier": {}},
        },
        "bands": [{
            "band": 10, "ttl_ms": 12, "requests": 13, "bytes": 14, "refuse": "doomed", "share": 0.5, "aging_ms": 150,
            "ceiling": 0.75, "max_streams": 16, "max_stall_ms": 4000, "ttft_ms": 17, "tpot_ms": 18,
            "quota": {"in_flight_wtu": 19},
        }],
    }));
    let pool = (flow.pool_limits.requests, flow.pool_limits.bytes);
    let each = (flow.flow_limits.requests, flow.flow_limits.bytes);
    assert_eq!((pool, each), ((10, 20), (3, 4)));
    assert_eq!(flow.no_endpoint_ttl, Duration::from_millis(6));
    assert_eq!(flow.order, FairOrder::Strict);
    let cost = (flow.cost.uncached, flow.cost.cached, flow.cost.output);
    assert_eq!(cost, (3_000_000, 250_000, 4_500_000));
    assert_eq!(flow.flow_quota.in_flight_wtu, Some(7));
    assert_eq!(flow.flow_quota.over, OverQuota::Refuse);
    let rate = |wtu_per_s, burst_wtu| {
        Some(QuotaRate {
            wtu_per_s,
            burst_wtu,
        })
    };
    assert_eq!(flow.flow_quota.rate, rate(8, 9));
    let quota = |name: &str| flow.quota(&name.parse().expect("a name")).clone();
    assert_eq!(quota("acme").rate, rate(11, 11), "a burst of one second");
    assert_eq!(
        quota("acme").in_flight_wtu,
        None,
        "its own in place of the common one"
    );
    assert_eq!(quota("free/tier").rate, None, "none at all");
    let band = flow.band(Band(10));
    assert_eq!(band.ttl, Duration::from_millis(12));
    assert_eq!((band.limits.requests, band.limits.bytes), (13, 14));
    assert_eq!(band.refuse, Refuse::Doomed);
    assert_eq!(band.starvation, Starvation::Share(0.5));
    assert_eq!(band.aging, Aging::Every(Duration::from_millis(150)));
    assert!((band.ceiling - 0.75).abs() < 1e-9);
    assert_eq!(band.max_streams, Some(16));
    assert_eq!(band.max_stall, Some(Duration::from_secs(4)));
    assert_eq!(band.ttft, Some(Duration::from_millis(17)));
    assert_eq!(band.tpot, Duration::from_millis(18));
    assert_eq!(band.quota.in_flight_wtu, Some(19));
    let others = flow.band(Band(3));
    assert_eq!(others.ttl, Duration::from_millis(5), "the queue's own");
    assert_eq!(others.refuse, Refuse::BySign);
}

#[test]
fn what_a_band_leaves_out_is_that_of_the_others() {
    let flow = flow(&json!({
        "other_bands": {"ttl_ms": 77, "may_starve": true, "max_streams": 5, "refuse": "never"},
        "bands": [{"band": 1}, {"band": -1, "share": 0.25, "refuse": "doomed"}],
    }));
    let (one, low) = (flow.band(Band(1)), flow.band(Band(-1)));
    for band in [one, low] {
        assert_eq!(
            (band.ttl, band.max_streams),
            (Duration::from_millis(77), Some(5))
        );
    }
    assert_eq!(
        (one.refuse, one.starvation),
        (Refuse::Never, Starvation::Allowed)
    );
    assert_eq!(
        (low.refuse, low.starvation),
        (Refuse::Doomed, Starvation::Share(0.25))
    );
}

#[test]
fn the_highest_band_needs_no_share() {
    for bands in [
        json!([{"band": 10, "share": 0}, {"band": 0, "share": 1}]),
        json!([{"band": 0, "share": 0}]),
        json!([{"band": 10}, {"band": 0, "share": 0, "may_starve": true}]),
    ] {
        assert!(check(&json!({ "bands": bands })).is_ok(), "{bands}");
    }
}

#[test]
fn bad_bands_are_refused_by_path() {
    for (section, expected) in [
        (
            json!({"bands": [{"band": 2_147_483_648_i64}]}),
            expect![
                "scheduling.bands[0].band: 2147483648 is not allowed; use a whole number from -2147483648 to 2147483647"
            ],
        ),
        (
            json!({"bands": [{"ttl_ms": 1}]}),
            expect![
                "scheduling.bands[0].band: nothing is not allowed; use a whole number from -2147483648 to 2147483647"
            ],
        ),
        (
            json!({"bands": [{"band": 1}, {"band": 0}, {"band": 1}]}),
            expect![
                "scheduling.bands[2].band: 1 is not allowed; use a priority that no other band has"
            ],
        ),
        (
            json!({"other_bands": {"band": 1}}),
            expect![
                "scheduling.other_bands.band: 1 is not allowed; use no number: these settings are for every band that `bands` does not name"
            ],
        ),
        (
            json!({"bands": [{"band": 1}, {"band": 0, "share": 0}]}),
            expect![
                "scheduling.bands[1].share: 0.0 is not allowed; use a share above 0, or `may_starve: true` beside it: without a share this band gets nothing while higher bands take everything"
            ],
        ),
        (
            json!({"other_bands": {"share": 0}}),
            expect![
                "scheduling.other_bands.share: 0.0 is not allowed; use a share above 0, or `may_starve: true` beside it: without a share this band gets nothing while higher bands take everything"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "share": 0.5, "may_starve": true}]}),
            expect![
                "scheduling.bands[0].may_starve: true is not allowed; use false beside a share, or no share"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "may_starve": false}], "other_bands": {"may_starve": true}}),
            expect![
                "scheduling.bands[0].may_starve: false is not allowed; use a share beside it: `other_bands` promises none"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "share": 1.5}]}),
            expect!["scheduling.bands[0].share: 1.5 is not allowed; use a number from 0 to 1"],
        ),
        (
            json!({"bands": [{"band": 1, "share": -0.1}]}),
            expect!["scheduling.bands[0].share: -0.1 is not allowed; use a number from 0 to 1"],
        ),
        (
            json!({"bands": [{"band": 2, "share": 0.5}, {"band": 1, "share": 0.5}, {"band": 0, "share": 0.25}]}),
            expect![
                "scheduling.bands[].share: 1.25 is not allowed; use shares that add up to at most 1, those taken from `other_bands` included"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "ttl_ms": 0}]}),
            expect![
                "scheduling.bands[0].ttl_ms: 0 is not allowed; use a number from 1 to 86400000"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "ttl_ms": 86_400_001}]}),
            expect![
                "scheduling.bands[0].ttl_ms: 86400001 is not allowed; use a number from 1 to 86400000"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "refuse": "always"}]}),
            expect![[
                r#"scheduling.bands[0].refuse: "always" is not allowed; use doomed or never"#
            ]],
        ),
        (
            json!({"bands": [{"band": 1, "ceiling": 1.1}]}),
            expect!["scheduling.bands[0].ceiling: 1.1 is not allowed; use a number from 0 to 1"],
        ),
        (
            json!({"bands": [{"band": 1, "max_stall_ms": 3999}]}),
            expect![
                "scheduling.bands[0].max_stall_ms: 3999 is not allowed; use a number from 4000 to 86400000"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "max_streams": 0}]}),
            expect![
                "scheduling.bands[0].max_streams: 0 is not allowed; use a number from 1 to 100000"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "aging_ms": 1}]}),
            expect![
                "scheduling.bands[0].aging_ms: 1 is not allowed; use a number from 100 to 86400000"
            ],
        ),
        (
            json!({"bands": [{"band": 1, "tpot_ms": 0}]}),
            expect!["scheduling.bands[0].tpot_ms: 0 is not allowed; use a number from 1 to 60000"],
        ),
        (
            json!({"other_bands": {"ttft_ms": 0}}),
            expect![
                "scheduling.other_bands.ttft_ms: 0 is not allowed; use a number from 1 to 86400000"
            ],
        ),
        (
            json!({"bands": (0..65).map(|band| json!({"band": band, "may_starve": true})).collect::<Vec<_>>()}),
            expect!["scheduling.bands: 65 is not allowed; use at most 64 bands"],
        ),
    ] {
        refused(&section, &expected);
    }
    let negative = check(&json!({"bands": [{"band": 1, "ttl_ms": -1}]}));
    assert!(negative.is_err_and(|error| error.contains("-1")));
}

#[test]
fn bad_weights_quotas_and_fairness_are_refused_by_path() {
    for (section, expected) in [
        (
            json!({"fairness": "none"}),
            expect![[r#"scheduling.fairness: "none" is not allowed; use lag or strict"#]],
        ),
        (
            json!({"wtu": {"uncached": 0}}),
            expect![
                "scheduling.wtu.uncached: 0.0 is not allowed; use a number from 0.000001 to 1000"
            ],
        ),
        (
            json!({"wtu": {"output": 0}}),
            expect![
                "scheduling.wtu.output: 0.0 is not allowed; use a number from 0.000001 to 1000"
            ],
        ),
        (
            json!({"wtu": {"cached": -1}}),
            expect!["scheduling.wtu.cached: -1.0 is not allowed; use a number from 0 to 1000"],
        ),
        (
            json!({"quota": {"burst_wtu": 5}}),
            expect!["scheduling.quota.burst_wtu: 5 is not allowed; use `wtu_per_s` beside it"],
        ),
        (
            json!({"quota": {"wtu_per_s": 0}}),
            expect![
                "scheduling.quota.wtu_per_s: 0 is not allowed; use a number from 1 to 1000000000000"
            ],
        ),
        (
            json!({"quota": {"in_flight_wtu": 1, "over": "drop"}}),
            expect![[r#"scheduling.quota.over: "drop" is not allowed; use wait or refuse"#]],
        ),
        (
            json!({"bands": [{"band": 1, "quota": {"over": "refuse"}}]}),
            expect![[
                r#"scheduling.bands[0].quota.over: "refuse" is not allowed; use `in_flight_wtu` or `wtu_per_s` beside it"#
            ]],
        ),
        (
            json!({"quota": {"flows": {"acme": {"in_flight_wtu": 0}}}}),
            expect![
                "scheduling.quota.flows.acme.in_flight_wtu: 0 is not allowed; use a number from 1 to 1000000000000"
            ],
        ),
        (
            json!({"quota": {"flows": {"": {}}}}),
            expect![[
                r#"scheduling.quota.flows: "" is not allowed; use fairness ids of 1 to 128 visible ASCII characters"#
            ]],
        ),
        (
            json!({"engine": {"depth": 0}}),
            expect!["scheduling.engine.depth: 0 is not allowed; use a number from 1 to 100000"],
        ),
        (
            json!({"queue": {"flow": {"requests": 10_000_001}}}),
            expect![
                "scheduling.queue.flow.requests: 10000001 is not allowed; use a number from 0 to 10000000"
            ],
        ),
    ] {
        refused(&section, &expected);
    }
}
