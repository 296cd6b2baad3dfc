//! The catalogue of what went wrong elsewhere, one test each, and the ledger's own corners.

use super::*;

#[test]
fn case_01_fifty_calls_with_room_for_five_admit_five() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 500)])]);
    let admitted = (0..50)
        .filter(|n| desk.reserve(&reservation(*n, "acme", 50, 100)).is_ok())
        .count();
    assert_eq!(admitted, 5);
    assert_eq!(desk.balance("acme", "cap"), "500 0 500 0 0");
}

#[test]
fn case_02_a_limit_of_a_shared_account_binds_a_key_without_one() {
    let mut desk = Desk::new(&[
        ("acme", vec![policy("cap", Tier::D, month(), 100)]),
        ("acme/key", vec![]),
    ]);
    assert!(desk.reserve(&reservation(1, "acme/key", 1, 100)).is_ok());
    let refusal = shortage(desk.reserve(&reservation(2, "acme/key", 1, 1)).unwrap_err());
    assert_eq!(refusal.account, id("acme"));
}

#[test]
fn case_06_calls_that_fit_alone_do_not_fit_together() {
    let mut desk = Desk::new(&[("acme", vec![policy("tokens", Tier::B, minute(), 1000)])]);
    let admitted: Vec<bool> = (0..4)
        .map(|n| desk.reserve(&reservation(n, "acme", 400, 900)).is_ok())
        .collect();
    assert_eq!(admitted, [true, true, false, false]);
}

#[test]
fn case_07_a_rich_tenant_does_not_open_a_poor_key() {
    let rich = policy("cap", Tier::D, month(), 1_000_000);
    let mut desk = Desk::new(&[
        ("acme", vec![rich]),
        ("acme/key", vec![policy("cap", Tier::D, month(), 30)]),
    ]);
    let admitted = (0..100)
        .filter(|n| desk.reserve(&reservation(*n, "acme/key", 5, 10)).is_ok())
        .count();
    assert_eq!(admitted, 3);
    assert_eq!(desk.balance("acme", "cap"), "1000000 0 30 0 999970");
}

#[test]
fn case_08_a_balance_at_or_below_zero_refuses_the_next_call() {
    let mut desk = Desk::new(&[("acme", vec![policy("cash", Tier::B, Window::Balance, 100)])]);
    desk.reserve(&reservation(1, "acme", 100, 100)).unwrap();
    desk.settle(1, &commit(100));
    let refusal = shortage(desk.reserve(&reservation(2, "acme", 1, 1)).unwrap_err());
    assert_eq!(
        (refusal.available, refusal.resets_at, refusal.fits),
        (0, None, Fits::OnceStartedOver)
    );
    let mut overdrawn = Desk::new(&[("acme", vec![policy("cash", Tier::B, Window::Balance, 100)])]);
    overdrawn.reserve(&reservation(1, "acme", 60, 100)).unwrap();
    overdrawn.settle(1, &commit(160));
    assert_eq!(overdrawn.balance("acme", "cash"), "100 100 0 60 -60");
    assert!(overdrawn.reserve(&reservation(2, "acme", 1, 1)).is_err());
}

#[test]
fn case_09_a_lost_hold_becomes_unknown_within_its_lease_and_reconciles() {
    let both = vec![
        policy("cap", Tier::D, month(), 1000),
        policy("soft", Tier::B, month(), 1000),
    ];
    let mut desk = Desk::new(&[("acme", both)]);
    let start = desk.now.0;
    desk.reserve(&reservation(1, "acme", 40, 100)).unwrap();
    assert_eq!(desk.ledger.poll_timeout(), Some(UnixMs(start + 60_000)));
    desk.at(start + 60_000);
    assert_eq!(
        desk.ledger.attempt(&attempt(1)).unwrap().state,
        State::Unknown
    );
    assert_eq!(
        desk.balance("acme", "cap"),
        "1000 0 100 0 900",
        "unknown keeps its hold"
    );
    desk.settle(1, &unknown(Some(25)));
    desk.at(start + 360_000);
    assert_eq!(
        desk.balance("acme", "cap"),
        "1000 100 0 0 900",
        "a hard cap charges the hold"
    );
    assert_eq!(
        desk.balance("acme", "soft"),
        "1000 25 0 0 975",
        "an estimate charges what was seen"
    );
    assert_eq!(
        desk.settle(1, &release()).state,
        State::Committed,
        "the first result stays"
    );
    assert_eq!(desk.ledger.poll_timeout(), None);
}

#[test]
fn case_10_and_19_one_account_without_room_leaves_no_account_touched() {
    let accounts = ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"];
    let declared: Vec<(&str, Vec<PolicySpec>)> = accounts
        .iter()
        .map(|account| {
            (
                *account,
                vec![policy(
                    "cap",
                    Tier::D,
                    month(),
                    if *account == "a/b/c" { 10 } else { 1000 },
                )],
            )
        })
        .collect();
    let mut desk = Desk::new(&declared);
    let refusal = shortage(
        desk.reserve(&reservation(1, "a/b/c/d/e", 5, 11))
            .unwrap_err(),
    );
    assert_eq!(refusal.account, id("a/b/c"));
    assert_eq!(
        (
            refusal.limit,
            refusal.asked,
            refusal.available,
            refusal.fits
        ),
        (10, 11, 10, Fits::Never)
    );
    assert!(
        desk.database.entries.is_empty(),
        "nothing was counted, not even for a moment"
    );
    assert!(desk.database.windows.is_empty());
    desk.reserve(&reservation(2, "a/b/c/d/e", 5, 10)).unwrap();
    desk.settle(2, &commit(7));
    for account in accounts {
        assert!(
            desk.balance(account, "cap").contains(" 7 0 0 "),
            "{account}"
        );
    }
}

#[test]
fn case_13_spend_counts_in_every_account_of_the_path() {
    let mut desk = Desk::new(&[
        ("a", vec![]),
        ("a/b", vec![]),
        ("a/b/c", vec![]),
        ("a/b/d", vec![]),
    ]);
    for (n, leaf, charge) in [(1, "a/b/c", 10), (2, "a/b/d", 20)] {
        desk.reserve(&reservation(n, leaf, 1, 1)).unwrap();
        desk.settle(n, &commit(charge));
    }
    let used = |account| desk.ledger.balances(desk.now, &id(account))[0].used;
    assert_eq!(
        [used("a"), used("a/b"), used("a/b/c"), used("a/b/d")],
        [30, 30, 10, 20]
    );
}

#[test]
fn case_14_a_free_model_runs_on_an_exhausted_budget_and_tokens_still_count() {
    let budget = policy("cap", Tier::D, month(), 100);
    let tokens = PolicySpec {
        unit: Unit::Tokens,
        ..policy("tokens", Tier::B, minute(), 1000)
    };
    let mut desk = Desk::new(&[("acme", vec![budget, tokens])]);
    desk.reserve(&reservation(1, "acme", 100, 100)).unwrap();
    desk.settle(1, &commit(100));
    let free = |n, tokens| Reservation {
        estimate: Amounts {
            wtu: MicroWtu(0),
            tokens,
        },
        largest: Amounts {
            wtu: MicroWtu(0),
            tokens,
        },
        ..reservation(n, "acme", 0, 0)
    };
    assert!(desk.reserve(&free(2, 900)).is_ok());
    assert_eq!(desk.balance("acme", "cap"), "100 100 0 0 0");
    let refusal = shortage(desk.reserve(&free(3, 1)).unwrap_err());
    assert_eq!(refusal.unit, Unit::Tokens);
}

#[test]
fn case_17_and_18_what_does_not_fit_is_carried_and_blocks_the_next_call() {
    let mut desk = Desk::new(&[("acme", vec![policy("bucket", Tier::B, minute(), 1000)])]);
    desk.at(1_020_000);
    desk.reserve(&reservation(1, "acme", 1000, 2000)).unwrap();
    desk.settle(1, &commit(1200));
    assert_eq!(desk.balance("acme", "bucket"), "1000 1000 0 200 -200");
    let refusal = shortage(desk.reserve(&reservation(2, "acme", 1, 1)).unwrap_err());
    assert_eq!(
        (refusal.used, refusal.debt, refusal.resets_at),
        (1000, 200, Some(UnixMs(1_080_000)))
    );
    desk.at(1_080_000);
    assert_eq!(
        desk.balance("acme", "bucket"),
        "1000 0 0 200 800",
        "-200 is carried, not 0"
    );
    assert!(desk.reserve(&reservation(3, "acme", 801, 1)).is_err());
    assert!(desk.reserve(&reservation(4, "acme", 800, 1)).is_ok());
    assert_eq!(desk.balance("acme", "bucket"), "1000 0 800 200 0");
}

#[test]
fn case_20_overflow_of_a_plan_into_a_top_up_is_charged_once() {
    let plan = PolicySpec {
        overflow: Some(name("top-up")),
        ..policy("plan", Tier::D, month(), 100)
    };
    let mut desk = Desk::new(&[(
        "acme",
        vec![plan, policy("top-up", Tier::D, Window::Balance, 50)],
    )]);
    desk.reserve(&reservation(1, "acme", 70, 70)).unwrap();
    desk.reserve(&reservation(2, "acme", 60, 60)).unwrap();
    assert_eq!(desk.balance("acme", "plan"), "100 0 100 0 0");
    assert_eq!(desk.balance("acme", "top-up"), "50 0 30 0 20");
    let refusal = shortage(desk.reserve(&reservation(3, "acme", 21, 21)).unwrap_err());
    assert_eq!((refusal.policy.as_str(), refusal.available), ("top-up", 20));
    desk.settle(2, &commit(40));
    assert_eq!(desk.balance("acme", "plan"), "100 30 70 0 0");
    assert_eq!(
        desk.balance("acme", "top-up"),
        "50 10 0 0 40",
        "30 + 10 = 40, once"
    );
    desk.settle(1, &release());
    assert_eq!(desk.balance("acme", "plan"), "100 30 0 0 70");
}

#[test]
fn a_refusal_tells_what_is_held_from_what_is_used() {
    let lent = |limit| policy("lent", Tier::D, month(), limit);
    // limits of `acme` and `acme/key`, used and held by `acme/other` and `acme/key`, asked, least, what it waits for
    for (limits, used, held, asked, least, expected) in [
        (
            (100, 900),
            (0, 0),
            (100, 0),
            10,
            10,
            ("acme", Fits::OnceHoldsEnd),
        ),
        (
            (100, 900),
            (90, 0),
            (10, 0),
            10,
            10,
            ("acme", Fits::OnceHoldsEnd),
        ),
        (
            (100, 900),
            (91, 0),
            (9, 0),
            10,
            10,
            ("acme", Fits::OnceStartedOver),
        ),
        (
            (100, 900),
            (91, 0),
            (9, 0),
            10,
            9,
            ("acme", Fits::OnceHoldsEnd),
        ),
        ((100, 900), (0, 0), (90, 0), 11, 10, ("acme", Fits::Lowered)),
        ((100, 900), (0, 0), (99, 0), 900, 1, ("acme", Fits::Lowered)),
        (
            (100, 900),
            (0, 0),
            (100, 0),
            101,
            101,
            ("acme", Fits::Never),
        ),
        (
            (100, 900),
            (0, 0),
            (100, 0),
            101,
            100,
            ("acme", Fits::OnceHoldsEnd),
        ),
        (
            (100, 50),
            (0, 45),
            (55, 0),
            10,
            10,
            ("acme/key", Fits::OnceStartedOver),
        ),
        (
            (100, 50),
            (0, 0),
            (60, 40),
            11,
            11,
            ("acme", Fits::OnceHoldsEnd),
        ),
        ((100, 5), (95, 0), (0, 5), 6, 6, ("acme/key", Fits::Never)),
    ] {
        let (top, leaf) = limits;
        let mut desk = Desk::new(&[
            ("acme", vec![lent(top)]),
            ("acme/key", vec![lent(leaf)]),
            ("acme/other", vec![]),
        ]);
        for (n, leaf, used, held) in [
            (1, "acme/other", used.0, held.0),
            (2, "acme/key", used.1, held.1),
        ] {
            desk.reserve(&reservation(n, leaf, used, used)).unwrap();
            desk.settle(n, &commit(used));
            desk.reserve(&reservation(n + 2, leaf, held, held)).unwrap();
        }
        let asks = Reservation {
            least: wtu(least),
            ..reservation(9, "acme/key", asked, asked)
        };
        let refusal = shortage(desk.reserve(&asks).unwrap_err());
        let found = (refusal.account.to_string(), refusal.fits);
        assert_eq!(
            (found.0.as_str(), found.1),
            expected,
            "{limits:?} {used:?} {held:?}"
        );
    }
}

#[test]
fn a_soft_limit_is_judged_once_the_hard_caps_have_lowered_what_is_asked() {
    let cap = || policy("cap", Tier::D, month(), 10);
    let soft = || policy("soft", Tier::B, month(), 50);
    for (tenant, key, capped) in [(cap(), soft(), "acme"), (soft(), cap(), "acme/key")] {
        let mut desk = Desk::new(&[("acme", vec![tenant]), ("acme/key", vec![key])]);
        // Both are short, and the cap has room for less.
        let asks = Reservation {
            least: wtu(1),
            ..reservation(1, "acme/key", 400, 400)
        };
        let refusal = shortage(desk.reserve(&asks).unwrap_err());
        let found = (refusal.account.as_str(), refusal.fits, refusal.available);
        assert_eq!(found, (capped, Fits::Lowered, 10));
        desk.reserve(&reservation(2, "acme/key", 10, 10)).unwrap();
        // It has no room even for less.
        let asks = reservation(3, "acme/key", 400, 400);
        let refusal = shortage(desk.reserve(&asks).unwrap_err());
        assert_eq!(refusal.fits, Fits::Never);
    }
}

#[test]
fn of_several_short_windows_that_is_named_which_has_room_last() {
    let cap = |name, window, limit| policy(name, Tier::D, window, limit);
    let all = |limits: [u64; 3]| {
        vec![
            cap("minute", minute(), limits[0]),
            cap("month", month(), limits[1]),
            cap("balance", Window::Balance, limits[2]),
        ]
    };
    // limits of `acme`, used, then asked and least, what is named and what it has left
    for (limits, used, asks, expected) in [
        ([10, 10, 99], 10, (5, 5), ("month", 0)),
        ([10, 10, 10], 10, (5, 5), ("balance", 0)),
        ([10, 99, 10], 10, (5, 5), ("balance", 0)),
        ([90, 80, 70], 10, (85, 1), ("balance", 60)),
        ([70, 90, 80], 10, (85, 1), ("minute", 60)),
        ([90, 70, 80], 10, (85, 1), ("month", 60)),
    ] {
        let mut desk = Desk::new(&[("acme", all(limits))]);
        desk.reserve(&reservation(1, "acme", used, used)).unwrap();
        desk.settle(1, &commit(used));
        let asks = Reservation {
            least: wtu(asks.1),
            ..reservation(2, "acme", asks.0, asks.0)
        };
        let refusal = shortage(desk.reserve(&asks).unwrap_err());
        let found = (refusal.policy.to_string(), refusal.available);
        assert_eq!((found.0.as_str(), found.1), expected, "{limits:?}");
    }
}

#[test]
fn a_limit_that_was_lowered_below_what_is_held_starts_over_at_its_own_size() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 100)])]);
    desk.reserve(&reservation(1, "acme", 100, 100)).unwrap();
    let lowered = [policy("cap", Tier::D, month(), 30)];
    desk.ledger
        .declare(desk.now, &id("acme"), Kind::Tenant, &lowered)
        .unwrap();
    desk.check();
    for (n, asked, expected) in [(2, 30, Fits::OnceHoldsEnd), (3, 31, Fits::Never)] {
        let refusal = shortage(
            desk.reserve(&reservation(n, "acme", asked, asked))
                .unwrap_err(),
        );
        assert_eq!(refusal.fits, expected);
    }
}

#[test]
fn a_second_settlement_returns_the_first_result() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 1000)])]);
    desk.reserve(&reservation(1, "acme", 50, 100)).unwrap();
    let first = desk.settle(1, &commit(60));
    let entries = desk.database.entries.len();
    for again in [commit(60), commit(99), release(), unknown(Some(5))] {
        assert_eq!(desk.settle(1, &again), first);
    }
    assert_eq!(
        desk.database.entries.len(),
        entries,
        "no double charge, no refund"
    );
    assert_eq!(
        desk.ledger.settle(desk.now, attempt(9), &release()),
        Err(NoAttempt(attempt(9)))
    );
}

#[test]
fn an_id_is_used_once_and_a_refused_one_is_burnt() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 100)])]);
    desk.reserve(&reservation(1, "acme", 1, 100)).unwrap();
    assert_eq!(
        desk.reserve(&reservation(1, "acme", 1, 0)),
        Err(Refusal::Used(State::Sent))
    );
    let refused = desk.reserve(&reservation(2, "acme", 1, 100)).unwrap_err();
    desk.settle(1, &release());
    assert_eq!(
        desk.reserve(&reservation(2, "acme", 1, 100)),
        Err(refused),
        "there would be room now"
    );
    desk.restart();
    assert_eq!(
        desk.reserve(&reservation(2, "acme", 1, 100)),
        Err(Refusal::Used(State::Refused))
    );
    assert_eq!(
        desk.reserve(&reservation(1, "acme", 1, 100)),
        Err(Refusal::Used(State::Released))
    );
}

#[test]
fn a_late_settlement_goes_to_the_window_of_the_hold() {
    let mut desk = Desk::new(&[("acme", vec![policy("bucket", Tier::B, minute(), 1000)])]);
    desk.at(1_020_000);
    desk.reserve(&reservation(1, "acme", 400, 400)).unwrap();
    desk.at(1_080_500);
    desk.reserve(&reservation(2, "acme", 100, 100)).unwrap();
    desk.settle(1, &commit(300));
    assert_eq!(desk.balance("acme", "bucket"), "1000 0 100 0 900");
    let old = desk
        .database
        .windows
        .values()
        .find(|w| w.start == UnixMs(1_020_000) && w.granted == 1000)
        .unwrap();
    assert_eq!((old.used, old.held), (300, 0));
}

#[test]
fn a_late_refund_of_an_old_window_gives_nothing_to_the_new_one() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, minute(), 100)])]);
    desk.at(1_020_000);
    desk.reserve(&reservation(1, "acme", 100, 100)).unwrap();
    desk.at(1_080_000);
    desk.reserve(&reservation(2, "acme", 100, 100)).unwrap();
    desk.settle(1, &release());
    assert!(desk.reserve(&reservation(3, "acme", 1, 1)).is_err());
    assert_eq!(desk.balance("acme", "cap"), "100 0 100 0 0");
}

#[test]
fn an_overrun_is_carried_though_others_still_hold_what_is_left() {
    let mut desk = Desk::new(&[("acme", vec![policy("bucket", Tier::B, minute(), 100)])]);
    desk.at(1_020_000);
    desk.reserve(&reservation(1, "acme", 60, 1)).unwrap();
    desk.reserve(&reservation(2, "acme", 40, 1)).unwrap();
    desk.settle(1, &commit(100));
    assert_eq!(desk.balance("acme", "bucket"), "100 60 40 40 -40");
    desk.at(1_080_000);
    desk.reserve(&reservation(3, "acme", 1, 1)).unwrap();
    desk.settle(2, &commit(40));
    assert_eq!(
        desk.balance("acme", "bucket"),
        "100 0 1 40 59",
        "140 came out of a bucket of 100"
    );
}

#[test]
fn a_late_overrun_reaches_the_window_that_is_open_by_then() {
    let mut desk = Desk::new(&[("acme", vec![policy("bucket", Tier::B, minute(), 1000)])]);
    desk.at(1_020_000);
    desk.reserve(&reservation(1, "acme", 900, 900)).unwrap();
    desk.at(1_080_000);
    desk.reserve(&reservation(2, "acme", 100, 100)).unwrap();
    desk.settle(1, &commit(1500));
    assert_eq!(desk.balance("acme", "bucket"), "1000 0 100 500 400");
    desk.settle(2, &commit(100));
    desk.reserve(&reservation(3, "acme", 400, 400)).unwrap();
    assert_eq!(desk.balance("acme", "bucket"), "1000 100 400 500 0");
}

#[test]
fn windows_nobody_touched_pay_a_debt() {
    for (minutes_later, left) in [
        (1, "1000 0 0 2500 -1500"),
        (2, "1000 0 0 1500 -500"),
        (4, "1000 0 0 0 1000"),
    ] {
        let mut desk = Desk::new(&[("acme", vec![policy("bucket", Tier::B, minute(), 1000)])]);
        desk.at(1_020_000);
        desk.reserve(&reservation(1, "acme", 1000, 1000)).unwrap();
        desk.settle(1, &commit(3500));
        desk.at(1_020_000 + minutes_later * 60_000);
        assert_eq!(desk.balance("acme", "bucket"), left);
        let free = Reservation {
            estimate: wtu(0),
            ..reservation(2, "acme", 0, 0)
        };
        desk.reserve(&free).unwrap();
        assert_eq!(
            desk.balance("acme", "bucket"),
            left,
            "touching the window changes nothing"
        );
        let total: u64 = desk
            .database
            .windows
            .values()
            .map(|w| w.used + w.debt)
            .sum();
        assert_eq!(total, 3500, "the whole charge, once");
    }
}

#[test]
fn a_debt_above_its_maximum_blocks_even_with_room() {
    let spec = PolicySpec {
        debt_max: Some(100),
        ..policy("bucket", Tier::B, minute(), 1000)
    };
    let mut desk = Desk::new(&[("acme", vec![spec])]);
    desk.at(1_020_000);
    desk.reserve(&reservation(1, "acme", 1000, 1000)).unwrap();
    desk.settle(1, &commit(1101));
    desk.at(1_080_000);
    assert_eq!(desk.balance("acme", "bucket"), "1000 0 0 101 899");
    assert!(desk.reserve(&reservation(2, "acme", 1, 1)).is_err());
}

#[test]
fn a_charge_above_the_largest_possible_one_raises_an_alarm_and_is_recorded_whole() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 1000)])]);
    desk.reserve(&reservation(1, "acme", 50, 100)).unwrap();
    desk.settle(1, &commit(150));
    assert_eq!(desk.database.alarms, 1);
    assert_eq!(desk.balance("acme", "cap"), "1000 150 0 0 850");
    desk.reserve(&reservation(2, "acme", 50, 850)).unwrap();
    desk.ledger
        .settle(desk.now, attempt(2), &commit(900))
        .unwrap();
    desk.database.write(desk.ledger.drain_effects());
    assert_eq!(desk.balance("acme", "cap"), "1000 1000 0 50 -50");
    let report = desk.database.audit(desk.now);
    assert_eq!(
        report.violations[0].invariant,
        Invariant::HardCap,
        "verify says so"
    );
}

#[test]
fn an_ended_account_ends_its_children_and_what_runs_settles() {
    let mut desk = Desk::new(&[
        ("a", vec![]),
        ("a/b", vec![]),
        ("a/b/c", vec![]),
        ("ab", vec![]),
    ]);
    desk.reserve(&reservation(1, "a/b/c", 5, 5)).unwrap();
    desk.ledger.end_account(desk.now, &id("a/b")).unwrap();
    desk.check();
    assert_eq!(
        desk.reserve(&reservation(2, "a/b/c", 5, 5)),
        Err(Refusal::Ended(id("a/b")))
    );
    assert!(desk.reserve(&reservation(3, "ab", 5, 5)).is_ok());
    assert_eq!(desk.settle(1, &commit(5)).state, State::Committed);
    let again = desk
        .ledger
        .declare(desk.now, &id("a/b"), Kind::Project, &[]);
    assert_eq!(again, Err(DeclareError::Ended(id("a/b"))));
    let child = desk
        .ledger
        .declare(desk.now, &id("a/b/new"), Kind::User, &[]);
    assert_eq!(child, Err(DeclareError::Ended(id("a/b/new"))));
    let orphan = desk
        .ledger
        .declare(desk.now, &id("x/y"), Kind::Project, &[]);
    assert_eq!(orphan, Err(DeclareError::NoParent(id("x/y"))));
    assert_eq!(
        desk.reserve(&reservation(4, "nobody", 1, 1)),
        Err(Refusal::NoAccount(id("nobody")))
    );
}

#[test]
fn a_changed_limit_keeps_what_was_used_and_never_breaks_a_promise() {
    let cap = |limit| vec![policy("cap", Tier::D, month(), limit)];
    let mut desk = Desk::new(&[("acme", cap(1000))]);
    desk.reserve(&reservation(1, "acme", 1, 300)).unwrap();
    desk.settle(1, &commit(300));
    desk.reserve(&reservation(2, "acme", 1, 200)).unwrap();
    desk.ledger
        .declare(desk.now, &id("acme"), Kind::Tenant, &cap(100))
        .unwrap();
    assert_eq!(desk.balance("acme", "cap"), "500 300 200 0 0");
    assert!(desk.reserve(&reservation(3, "acme", 1, 1)).is_err());
    desk.ledger
        .declare(desk.now, &id("acme"), Kind::Tenant, &cap(2000))
        .unwrap();
    desk.reserve(&reservation(4, "acme", 1, 1500)).unwrap();
    assert_eq!(desk.balance("acme", "cap"), "2000 300 1700 0 0");
}

#[test]
fn a_boost_ends_by_itself() {
    let boosted = PolicySpec {
        boost: Some(Boost {
            extra: 50,
            until: UnixMs(1_100_000),
        }),
        ..policy("cap", Tier::D, Window::Balance, 100)
    };
    let mut desk = Desk::new(&[("acme", vec![boosted])]);
    desk.reserve(&reservation(1, "acme", 1, 120)).unwrap();
    desk.settle(1, &commit(120));
    assert_eq!(desk.balance("acme", "cap"), "150 120 0 0 30");
    desk.at(1_100_000);
    assert_eq!(
        desk.balance("acme", "cap"),
        "120 120 0 0 0",
        "what was used stays granted"
    );
    assert!(desk.reserve(&reservation(2, "acme", 1, 1)).is_err());
}

#[test]
fn a_lost_grant_is_reinstated_whatever_the_room() {
    let mut desk = Desk::new(&[("acme", vec![policy("soft", Tier::B, month(), 100)])]);
    desk.reserve(&reservation(1, "acme", 100, 100)).unwrap();
    desk.ledger
        .reinstate(desk.now, &reservation(2, "acme", 70, 100));
    desk.ledger
        .reinstate(desk.now, &reservation(2, "acme", 70, 100));
    desk.check();
    assert_eq!(desk.balance("acme", "soft"), "100 0 170 0 -70");
    assert_eq!(desk.settle(2, &commit(80)).charged, wtu(80));
    desk.settle(1, &commit(100));
    assert_eq!(desk.balance("acme", "soft"), "100 170 0 10 -80");
}

#[test]
fn the_past_is_forgotten_within_bounds_and_known_to_be() {
    let mut desk = Desk::new(&[("acme", vec![])]);
    desk.ledger.config.remember = 10;
    for n in 0..50 {
        desk.reserve(&reservation(n, "acme", 1, 1)).unwrap();
        desk.settle(n, &commit(1));
    }
    assert_eq!(desk.ledger.attempts.len(), 10);
    assert!(desk.ledger.may_be_forgotten(&attempt(39)));
    assert!(!desk.ledger.may_be_forgotten(&attempt(40)), "remembered");
    assert!(
        !desk.ledger.may_be_forgotten(&attempt(50)),
        "above everything forgotten, so new"
    );
    desk.config.remember = 5;
    desk.restart();
    assert_eq!(desk.ledger.attempts.len(), 5);
    assert!(desk.ledger.may_be_forgotten(&attempt(44)));
    assert!(!desk.ledger.may_be_forgotten(&attempt(50)));
}

#[test]
fn an_entry_that_was_changed_breaks_the_chain() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 1000)])]);
    desk.reserve(&reservation(1, "acme", 50, 100)).unwrap();
    desk.settle(1, &commit(60));
    for at in 0..desk.database.entries.len() {
        let mut tampered = desk.database.clone();
        tampered.entries[at].d_used += 1;
        let found = tampered.audit(desk.now);
        assert!(
            found
                .violations
                .iter()
                .any(|v| v.invariant == Invariant::Chain),
            "entry {at}"
        );
    }
    let mut shorter = desk.database.clone();
    shorter.entries.remove(1);
    assert!(!shorter.audit(desk.now).is_green());
    let mut longer = desk.database.clone();
    longer.legs.pop();
    assert!(!longer.audit(desk.now).is_green());
    let mut moved = desk.database.clone();
    moved.windows.values_mut().next().unwrap().used += 1;
    let found = moved.audit(desk.now);
    assert_eq!(found.violations[0].invariant, Invariant::CountersAreEntries);
}

#[test]
fn rows_that_contradict_each_other_do_not_open() {
    let mut desk = Desk::new(&[("acme", vec![policy("cap", Tier::D, month(), 1000)])]);
    desk.reserve(&reservation(1, "acme", 50, 100)).unwrap();
    let good = desk.database.snapshot(10);
    let mut no_window = good.clone();
    no_window.windows.clear();
    assert!(Ledger::restore(Config::default(), no_window).is_err());
    let mut no_account = good.clone();
    no_account.accounts.clear();
    assert!(Ledger::restore(Config::default(), no_account).is_err());
    let mut no_attempt = good;
    no_attempt.attempts.clear();
    assert!(Ledger::restore(Config::default(), no_attempt).is_err());
}

#[test]
fn absurd_amounts_are_refused_and_absurd_charges_do_not_overflow() {
    let cap = policy("cap", Tier::D, month(), i64::MAX as u64);
    let mut desk = Desk::new(&[("acme", vec![cap])]);
    for largest in [MAX_AMOUNT + 1, u64::MAX] {
        let refusal = shortage(
            desk.reserve(&reservation(largest, "acme", 1, largest))
                .unwrap_err(),
        );
        assert_eq!((refusal.asked, refusal.fits), (largest, Fits::Never));
    }
    desk.reserve(&reservation(1, "acme", 1, MAX_AMOUNT))
        .unwrap();
    desk.settle(1, &commit(u64::MAX));
    assert_eq!(
        desk.ledger.balances(desk.now, &id("acme"))[0].used,
        MAX_AMOUNT
    );
    desk.reserve(&reservation(2, "acme", u64::MAX, 1)).unwrap();
    desk.settle(2, &unknown(Some(u64::MAX)));
    desk.at(desk.now.0 + 10_000_000);
    assert_eq!(
        desk.ledger.attempt(&attempt(2)).unwrap().state,
        State::Committed
    );
}
