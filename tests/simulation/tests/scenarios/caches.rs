//! What the scheduler believes of caches that it cannot see.

use std::sync::Arc;

use pool_simulator::{End, Load, Offer};
use workload::trace::Embedded;
use workload::{Arrivals, Factor, Limits, Requests, Schedule};

use crate::{refusing, run};

#[test]
fn hardly_anything_is_believed_to_be_cached_that_an_engine_has_forgotten() {
    let trace = Embedded::MooncakeSynthetic;
    let arrivals = Arrivals::Recorded {
        factor: Factor::new(4.5).expect("a factor"),
        jitter: trace.jitter(),
    };
    let limits = Limits {
        requests: None,
        duration: None,
    };
    let requests = Requests::Trace(Arc::new(trace.load()));
    let schedule = Schedule::new(arrivals, requests, limits, 1).expect("a schedule");
    let outcome = run(&refusing(), &Load::new(schedule.map(Offer::from)));
    let (mut prompts, mut believed, mut missing, mut unknown) = (0, 0, 0, 0);
    let answered = outcome.records.iter().filter(|r| r.end == End::Completed);
    for record in answered {
        prompts += u64::from(record.prompt_tokens);
        believed += u64::from(record.believed_tokens);
        missing += u64::from(record.believed_tokens.saturating_sub(record.cached_tokens));
        unknown += u64::from(record.cached_tokens.saturating_sub(record.believed_tokens));
    }
    let share = |tokens: u64| tokens as f64 / prompts as f64;
    println!(
        "believed to be cached {:.2} % of all prompt tokens; not found {:.3} %, found beside {:.3} %",
        100.0 * share(believed),
        100.0 * share(missing),
        100.0 * share(unknown)
    );
    // Without looking at when requests end, and at what answers take, 2.1 % were believed and not found.
    assert!(share(believed) > 0.5);
    assert!(share(missing) < 0.004, "{}", share(missing));
    assert!(share(unknown) < 0.004, "{}", share(unknown));
}
