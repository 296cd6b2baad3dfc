use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn limit(account: &str, rule: Rule) -> Limit {
    Limit {
        account: AccountId::parse(account).unwrap(),
        rule,
    }
}

fn rate(account: &str, count: u32, seconds: u64, burst: u32) -> Limit {
    limit(
        account,
        Rule::Rate(Rate::new(count, seconds * SECOND, burst).unwrap()),
    )
}

fn wait(table: &mut Table, now: u64, limits: &[Limit]) -> Wait {
    match table.admit(Nanos(now), limits, 1) {
        Ok(admitted) => {
            table.release(admitted);
            Wait::None
        }
        Err(Refused::Limit { retry_after_ns, .. }) => {
            retry_after_ns.map_or(Wait::ForOthers, Wait::For)
        }
        Err(Refused::TableFull) => panic!("the table is large enough"),
    }
}

#[test]
fn retry_after_is_when_this_request_fits() {
    let mut table = Table::new(100);
    let limits = [rate("a", 2, 1, 2), rate("a/b", 10, 10, 3)];
    assert_eq!(wait(&mut table, 0, &limits), Wait::None);
    assert_eq!(wait(&mut table, 0, &limits), Wait::None);
    let after = SECOND / 2;
    assert_eq!(wait(&mut table, 0, &limits), Wait::For(after));
    assert!(
        wait(&mut table, after - 1, &limits) != Wait::None,
        "not a nanosecond earlier"
    );
    assert_eq!(wait(&mut table, after, &limits), Wait::None);
    // The second limit binds now: three of its burst are gone, one comes back per second.
    assert_eq!(wait(&mut table, SECOND, &limits), Wait::None);
    assert_eq!(wait(&mut table, SECOND + 1, &limits), Wait::For(SECOND - 1));
}

#[test]
fn a_burst_that_does_not_divide_the_period_is_still_whole() {
    let mut table = Table::new(10);
    let limits = [limit("a", Rule::Rate(Rate::per_minute(7).unwrap()))];
    for _ in 0..7 {
        assert_eq!(wait(&mut table, 5, &limits), Wait::None);
    }
    assert!(wait(&mut table, 5, &limits) != Wait::None);
}

#[test]
fn case_19_a_refusal_by_the_third_of_five_leaves_nothing_counted() {
    let mut table = Table::new(100);
    let third = limit("a/b/c", Rule::Concurrency(1));
    let five = [
        rate("a", 100, 60, 100),
        limit("a/b", Rule::Concurrency(10)),
        third.clone(),
        rate("a/b/c/d", 100, 60, 100),
        limit("a/b/c/d", Rule::Concurrency(10)),
    ];
    let running = table.admit(Nanos(0), &five, 1).unwrap();
    let before: Vec<Standing> = five
        .iter()
        .map(|limit| table.standing(Nanos(0), limit))
        .collect();
    for _ in 0..50 {
        let refused = table.admit(Nanos(0), &five, 1).unwrap_err();
        let Refused::Limit {
            limit,
            retry_after_ns,
            standing,
        } = refused
        else {
            panic!("a limit refuses")
        };
        assert_eq!((limit, retry_after_ns), (third.clone(), None));
        assert_eq!((standing.limit, standing.remaining), (1, 0));
        let after: Vec<Standing> = five
            .iter()
            .map(|limit| table.standing(Nanos(0), limit))
            .collect();
        assert_eq!(after, before);
    }
    table.release(running);
    assert!(table.admit(Nanos(0), &five, 1).is_ok());
}

#[test]
fn concurrency_is_given_back_once() {
    let mut table = Table::new(10);
    let limits = [limit("a", Rule::Concurrency(2))];
    let first = table.admit(Nanos(0), &limits, 1).unwrap();
    let second = table.admit(Nanos(0), &limits, 1).unwrap();
    assert!(table.admit(Nanos(0), &limits, 1).is_err());
    table.release(first);
    assert_eq!(table.standing(Nanos(0), &limits[0]).remaining, 1);
    table.release(second);
    assert!(table.is_empty());
}

#[test]
fn a_request_that_can_never_fit_is_told_so() {
    let mut table = Table::new(10);
    let refused = table.admit(Nanos(0), &[rate("a", 1, 1, 3)], 4).unwrap_err();
    assert!(matches!(
        refused,
        Refused::Limit {
            retry_after_ns: None,
            ..
        }
    ));
}

#[test]
fn limits_of_nothing_are_refused() {
    assert_eq!(Rate::new(0, SECOND, 1), Err(LimitError::Zero));
    assert_eq!(Rate::new(1, SECOND, 0), Err(LimitError::Zero));
    assert_eq!(Rate::new(2, 1, 1), Err(LimitError::OutOfRange));
    assert_eq!(Rate::new(1, u64::MAX, 1), Err(LimitError::OutOfRange));
}

#[test]
fn the_table_is_bounded_and_forgets_only_the_idle() {
    let mut table = Table::new(100);
    for i in 0..100 {
        assert_eq!(
            wait(&mut table, 0, &[rate(&format!("a{i}"), 1, 1, 1)]),
            Wait::None
        );
    }
    let more = [rate("more", 1, 1, 1)];
    assert!(matches!(
        table.admit(Nanos(0), &more, 1),
        Err(Refused::TableFull)
    ));
    assert_eq!(table.len(), 100, "nothing that counts was evicted");
    assert_eq!(wait(&mut table, SECOND, &more), Wait::None);
    assert_eq!(table.len(), 1);
    assert!(
        wait(&mut table, SECOND, &more) != Wait::None,
        "what is in use still counts"
    );
}

#[test]
fn a_clock_that_goes_back_admits_nothing_extra() {
    let mut table = Table::new(10);
    let limits = [rate("a", 1, 1, 1)];
    assert_eq!(wait(&mut table, 10 * SECOND, &limits), Wait::None);
    assert!(wait(&mut table, 0, &limits) != Wait::None);
}

/// A list of admissions; a rate admits when the bucket, drained step by step, has room.
struct Model {
    full_at: Vec<u128>,
}

proptest! {
    #[test]
    fn all_limits_agree_with_a_list_of_buckets(
        rates in prop::collection::vec((1u32..20, 1u64..30, 1u32..10), 1..5),
        steps in prop::collection::vec(0u64..3 * SECOND, 1..100),
    ) {
        let limits: Vec<Limit> = rates
            .iter()
            .enumerate()
            .map(|(i, (count, seconds, burst))| rate(&format!("a{i}"), *count, *seconds, *burst))
            .collect();
        let mut table = Table::new(limits.len());
        let mut model = Model { full_at: vec![0; limits.len()] };
        let mut now = 0;
        for step in steps {
            now += step;
            let room = |full_at: u128, (count, seconds, burst): &(u32, u64, u32)| {
                let each = u128::from(seconds * SECOND).div_ceil(u128::from(*count));
                let next = full_at.max(u128::from(now)) + each;
                (next <= u128::from(now) + each * u128::from(*burst)).then_some(next)
            };
            let next: Option<Vec<u128>> = model.full_at.iter().zip(&rates).map(|(at, r)| room(*at, r)).collect();
            let admitted = wait(&mut table, now, &limits);
            prop_assert_eq!(admitted == Wait::None, next.is_some());
            if let Some(next) = next {
                model.full_at = next;
            } else if let Wait::For(after) = admitted {
                let mut later = Table::new(limits.len());
                later.states = table.states.clone();
                prop_assert_eq!(wait(&mut later, now + after, &limits), Wait::None);
            }
        }
    }
}
