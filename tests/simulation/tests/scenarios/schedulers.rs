//! Several schedulers in front of the same engines.

use std::sync::Arc;
use std::time::Duration;

use pool_simulator::{Load, Offer, Scenario};
use workload::trace::Embedded;
use workload::{Arrivals, Factor, Limits, Requests, Schedule};

use crate::{refusing, run};

const REQUESTS: u64 = 2_000;

fn conversation(factor: f64, seed: u64) -> Load {
    let trace = Embedded::MooncakeConversation;
    let arrivals = Arrivals::Recorded {
        factor: Factor::new(factor).expect("a factor"),
        jitter: trace.jitter(),
    };
    let limits = Limits {
        requests: Some(REQUESTS),
        duration: None,
    };
    let requests = Requests::Trace(Arc::new(trace.load()));
    let schedule = Schedule::new(arrivals, requests, limits, seed).expect("a schedule");
    Load::new(schedule.map(Offer::from))
}

#[test]
fn schedulers_that_tell_each_other_their_load_are_almost_as_good_as_one() {
    let load = conversation(2.5, 1);
    let goodput = |schedulers, gossip: Option<u64>| {
        let scenario = Scenario {
            schedulers,
            gossip: gossip.map(Duration::from_millis),
            refuse: scheduler_core::flow::Refuse::Never,
            ..refusing()
        };
        let goodput = 100.0 * run(&scenario, &load).figures().goodput;
        println!("{schedulers} schedulers, vectors every {gossip:?} ms: goodput {goodput:.2} %");
        goodput
    };
    let one = goodput(1, None);
    // Two or three in a thousand are lost, whatever the number of schedulers.
    for schedulers in [4, 16] {
        let told = goodput(schedulers, Some(100));
        let untold = goodput(schedulers, None);
        let stale = goodput(schedulers, Some(5_000));
        assert!(told >= one - 0.7, "{schedulers}: {told} of {one}");
        assert!(untold <= told - 3.0, "{schedulers}: {untold}");
        // What is old is aged and dropped.
        assert!(
            stale >= untold - 0.5,
            "{schedulers}: {stale}, {untold} without"
        );
    }
}
