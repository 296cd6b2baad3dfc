//! Quotas and their corrections as a pool keeps them.

use super::*;
use crate::Scope;
use crate::flow::{OverQuota, Quota, QuotaRate};

fn with_quota(quota: Quota) -> PoolConfig {
    PoolConfig {
        flow: FlowConfig {
            flow_quota: quota,
            ..FlowConfig::default()
        },
        ..PoolConfig::default()
    }
}

/// Costs of requests of `tokens(_, 100)` with a bound of 100: 100 + 2·100 WTU.
const EACH: u64 = 300;

#[test]
fn a_retry_of_a_flow_over_its_quota_waits_for_its_turn() {
    let mut bench = Bench::with_endpoints(
        2,
        with_quota(Quota {
            in_flight_wtu: Some(EACH),
            ..Quota::default()
        }),
    );
    bench.ask(&tokens(1, 100));
    let running = bench.last().1;
    // The pool must come to rest although this one goes first and may not go.
    let retry = Box::new(Request {
        tried: vec![EndpointId(1)],
        ..request(RequestKey(99), &tokens(2, 100))
    });
    bench.feed(Input::Arrive(retry));
    bench.pass(seconds(1.0));
    assert_eq!((bench.dispatched.len(), bench.refused.len()), (1, 0));
    bench.complete(running);
    assert_eq!(bench.last().0, RequestKey(99));
}

#[test]
fn a_flow_that_left_while_over_its_quota_may_come_back() {
    let rate = QuotaRate {
        wtu_per_s: 100,
        burst_wtu: EACH,
    };
    let quota = Quota {
        rate: Some(rate),
        ..Quota::default()
    };
    let mut bench = Bench::with_endpoints(1, with_quota(quota));
    for round in 0..5 {
        bench.ask(&tokens(4 * round, 100));
        let booking = bench.last().1;
        bench.complete(booking);
        let over = bench.ask(&tokens(4 * round + 1, 100));
        bench.feed(Input::Cancel(over));
        let back = bench.ask(&tokens(4 * round + 2, 100));
        assert_ne!(bench.last().0, back, "round {round}");
        let other = bench.ask(&tokens(4 * round + 3, 100));
        bench.feed(Input::Cancel(other));
        bench.pass(seconds(1.9));
        assert_eq!(bench.last().0, back, "round {round}");
        let booking = bench.last().1;
        bench.complete(booking);
        bench.pass(seconds(20.0));
    }
    assert!(bench.at_rest());
}

#[test]
fn over_quota_is_refused_with_the_time_when_it_fits() {
    let rate = QuotaRate {
        wtu_per_s: 100,
        burst_wtu: EACH,
    };
    let mut bench = Bench::with_endpoints(
        1,
        with_quota(Quota {
            rate: Some(rate),
            over: OverQuota::Refuse,
            ..Quota::default()
        }),
    );
    bench.ask(&tokens(1, 100));
    bench.pass(seconds(1.0));
    let over = bench.ask(&tokens(2, 100));
    let refusal = bench.refusal(over).expect("over its quota").clone();
    assert_eq!(refusal.kind, RefusalKind::OverQuota(Scope::Flow));
    assert_eq!(refusal.kind.code(), "over_quota");
    let wait = refusal.retry_after.expect("it is known");
    assert_eq!(wait, seconds(2.0));
    bench.pass(Duration::from_nanos(1_999_999_999));
    bench.ask(&tokens(3, 100));
    assert_eq!(bench.dispatched.len(), 1, "not before");
    bench.pass(Duration::from_nanos(1));
    bench.ask(&tokens(4, 100));
    assert_eq!(bench.dispatched.len(), 2, "as promised");
}
