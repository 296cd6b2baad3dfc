//! When the order turns to newest first and when it turns back, departure by departure, and against a model that keeps
//! everything that happened.

use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp(1_000_000_000);
/// What a request may wait; a fifth of it, two seconds, is the target.
const BUDGET: Duration = Duration::from_secs(10);

/// Departures at so many seconds from the start, each after so many seconds of waiting.
type Departures<'a> = &'a [(f64, f64)];
/// So many services of so many seconds.
type Services<'a> = &'a [(usize, f64)];

/// A departure at so many seconds from the start after so many seconds of waiting.
fn leave(codel: &mut CoDel, at: f64, waited: f64) -> bool {
    let before = codel.newest_first();
    let now = START + Duration::from_secs_f64(at);
    let turned = codel.dispatched(now, Duration::from_secs_f64(waited), BUDGET);
    assert_eq!(turned, codel.newest_first() != before, "at {at} s");
    codel.newest_first()
}

/// Whether the newest goes first after each departure: `n` newest, `o` oldest.
fn orders(codel: &mut CoDel, departures: Departures<'_>) -> String {
    departures
        .iter()
        .map(
            |(at, waited)| {
                if leave(codel, *at, *waited) { 'n' } else { 'o' }
            },
        )
        .collect()
}

#[test]
fn waits_turn_the_order_when_they_have_been_long_for_an_interval() {
    // Until services are known an interval is four seconds.
    let cases: [(&str, Departures, &str); 10] = [
        (
            "short waits, for however long",
            &[(0.0, 0.0), (10.0, 1.9), (500.0, 1.9)],
            "ooo",
        ),
        (
            "exactly the target is long",
            &[(0.0, 2.0), (4.0, 2.0)],
            "on",
        ),
        (
            "a nanosecond less is short",
            &[(0.0, 1.999_999_999), (4.0, 1.999_999_999)],
            "oo",
        ),
        (
            "as the interval ends, not before",
            &[(0.0, 3.0), (3.999_999_999, 3.0), (4.0, 3.0)],
            "oon",
        ),
        (
            "a clock that stands still",
            &[(7.0, 9.0), (7.0, 9.0), (7.0, 10.0)],
            "ooo",
        ),
        (
            "one short wait before the end begins anew",
            &[(0.0, 3.0), (3.9, 1.0), (4.0, 3.0), (7.9, 3.0), (8.0, 3.0)],
            "oooon",
        ),
        (
            "one short wait turns back at once",
            &[(0.0, 3.0), (4.0, 3.0), (4.0, 1.0)],
            "ono",
        ),
        (
            "and the next turn takes an interval again",
            &[
                (0.0, 3.0),
                (4.0, 3.0),
                (5.0, 1.0),
                (6.0, 3.0),
                (9.9, 3.0),
                (10.0, 3.0),
            ],
            "onooon",
        ),
        (
            "long waits keep it turned",
            &[(0.0, 3.0), (4.0, 2.0), (5.0, 10.0), (500.0, 3.0)],
            "onnn",
        ),
        (
            "two long waits far apart with none between",
            &[(0.0, 3.0), (1000.0, 3.0)],
            "on",
        ),
    ];
    for (name, departures, expected) in cases {
        assert_eq!(orders(&mut CoDel::new(), departures), expected, "{name}");
    }
}

#[test]
fn the_target_is_a_share_of_what_each_request_may_wait() {
    let long = |budget: u64| {
        let mut codel = CoDel::new();
        for at in [0, 4] {
            let now = START + Duration::from_secs(at);
            codel.dispatched(now, Duration::from_secs(3), Duration::from_secs(budget));
        }
        codel.newest_first()
    };
    let turned = [1, 5, 10, 15, 16, 60].map(|budget| (budget, long(budget)));
    let expected = [
        (1, true),
        (5, true),
        (10, true),
        (15, true),
        (16, false),
        (60, false),
    ];
    assert_eq!(turned, expected);
}

#[test]
fn an_empty_queue_has_the_old_order_and_no_memory_of_waits() {
    let mut codel = CoDel::new();
    assert!(!codel.emptied(), "nothing changes");
    leave(&mut codel, 0.0, 3.0);
    assert!(!codel.emptied(), "it has not turned yet");
    assert_eq!(
        orders(&mut codel, &[(4.0, 3.0), (7.9, 3.0), (8.0, 3.0)]),
        "oon",
        "patience began anew"
    );
    assert!(codel.emptied(), "it turns back");
    assert!(!codel.newest_first());
    assert!(!codel.emptied(), "once");
    assert_eq!(orders(&mut codel, &[(8.0, 3.0), (12.0, 3.0)]), "on");
}

#[test]
fn an_interval_is_twice_the_median_of_the_latest_services() {
    let cases: [(&str, Services, f64); 7] = [
        ("none", &[], 4.0),
        ("fewer than eight", &[(7, 9.0)], 4.0),
        ("eight", &[(8, 1.0)], 2.0),
        (
            "the upper of the two in the middle",
            &[(4, 0.5), (4, 3.0)],
            6.0,
        ),
        ("a few long ones do not matter", &[(32, 1.0), (8, 5.0)], 2.0),
        ("half of the last 32 do", &[(32, 1.0), (16, 5.0)], 10.0),
        ("older ones are forgotten", &[(200, 9.0), (32, 1.0)], 2.0),
    ];
    for (name, services, interval) in cases {
        let mut codel = CoDel::new();
        for (count, seconds) in services {
            (0..*count).for_each(|_| codel.served(*seconds));
        }
        let departures = [(0.0, 3.0), (interval - 1e-9, 3.0), (interval, 3.0)];
        assert_eq!(orders(&mut codel, &departures), "oon", "{name}");
    }
}

#[test]
fn services_that_end_meanwhile_change_the_next_interval_only() {
    let mut codel = CoDel::new();
    leave(&mut codel, 0.0, 3.0);
    (0..8).for_each(|_| codel.served(1.0));
    assert_eq!(orders(&mut codel, &[(2.0, 3.0), (4.0, 3.0)]), "on");
    leave(&mut codel, 5.0, 0.0);
    assert_eq!(
        orders(&mut codel, &[(6.0, 3.0), (7.9, 3.0), (8.0, 3.0)]),
        "oon"
    );
}

#[derive(Clone, Debug)]
enum Step {
    /// So many services of so many quarters of a second.
    Served(u32, usize),
    Left {
        waited: Duration,
        budget: Duration,
    },
    Emptied,
    Pass(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let millis = Duration::from_millis;
    prop_oneof![
        6 => (0..12u32, 1..12usize).prop_map(|(quarters, count)| Step::Served(quarters, count)),
        // Around the target, and exactly on it.
        8 => (prop::sample::select(vec![5u64, 10, 30, 60]), -2..6i64).prop_map(move |(budget, off)| Step::Left {
            waited: millis(budget * 200).saturating_add(millis(off.max(0) as u64)).saturating_sub(millis((-off).max(0) as u64)),
            budget: Duration::from_secs(budget),
        }),
        1 => Just(Step::Emptied),
        6 => prop::sample::select(vec![0u64, 1, 250, 500, 1000, 2000, 4000]).prop_map(move |ms| Step::Pass(millis(ms))),
    ]
}

/// All that happened, and when.
#[derive(Default)]
struct Model(Vec<(Timestamp, Step)>);

impl Model {
    /// Long waits since the last short one or the last empty queue; the interval is the one of the first of them.
    fn newest_first(&self) -> bool {
        let is_calm = |step: &Step| match step {
            Step::Left { waited, budget } => *waited * 5 < *budget,
            Step::Emptied => true,
            Step::Served(..) | Step::Pass(_) => false,
        };
        let since = self.0.iter().rposition(|(_, step)| is_calm(step));
        let long: Vec<usize> = (since.map_or(0, |at| at + 1)..self.0.len())
            .filter(|at| matches!(self.0[*at].1, Step::Left { .. }))
            .collect();
        let (Some(first), Some(last)) = (long.first(), long.last()) else {
            return false;
        };
        self.0[*last].0 >= self.0[*first].0 + 2 * self.median(*first)
    }

    /// The median as it was at a step: it is taken after every eighth service, of the last 32.
    fn median(&self, at: usize) -> Duration {
        let mut services: Vec<u32> = self.0[..at]
            .iter()
            .flat_map(|(_, step)| match step {
                Step::Served(quarters, count) => vec![*quarters; *count],
                Step::Left { .. } | Step::Emptied | Step::Pass(_) => Vec::new(),
            })
            .collect();
        services.truncate(services.len() / 8 * 8);
        let mut last = services.split_off(services.len().saturating_sub(32));
        last.sort_unstable();
        let quarters = last.get(last.len() / 2).copied().unwrap_or(8);
        Duration::from_millis(250) * quarters
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_turns_exactly_when_the_model_says(steps in prop::collection::vec(step(), 1..120)) {
        let (mut codel, mut model, mut now) = (CoDel::new(), Model::default(), START);
        for step in steps {
            let before = codel.newest_first();
            let turned = match &step {
                Step::Served(quarters, count) => {
                    (0..*count).for_each(|_| codel.served(0.25 * f64::from(*quarters)));
                    false
                }
                Step::Left { waited, budget } => codel.dispatched(now, *waited, *budget),
                Step::Emptied => codel.emptied(),
                Step::Pass(time) => {
                    now += *time;
                    false
                }
            };
            model.0.push((now, step));
            prop_assert_eq!(codel.newest_first(), model.newest_first());
            prop_assert_eq!(turned, codel.newest_first() != before);
        }
    }
}
