use super::*;

const DAY: u64 = 86_400_000;

/// `2026-01-31T12:30` in UTC.
fn instant(text: &str) -> UnixMs {
    let number =
        |range: std::ops::Range<usize>| text.get(range).map_or(0, |t| t.parse::<u64>().unwrap());
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    let years: u64 = (1970..year).map(|y| if leap(y) { 366 } else { 365 }).sum();
    let lengths = [
        31,
        if leap(year) { 29 } else { 28 },
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let months: u64 = lengths.iter().take(month as usize - 1).sum();
    let minutes = if text.len() > 10 {
        number(11..13) * 60 + number(14..16)
    } else {
        0
    };
    UnixMs((years + months + day - 1) * DAY + minutes * 60_000)
}

fn check(window: &Window, now: &str, start: &str, end: &str) {
    let span = window.span(instant(now));
    let expected = Span {
        start: instant(start),
        end: instant(end),
    };
    assert_eq!(span, expected, "{window:?} at {now}");
}

#[test]
fn calendar_windows_follow_the_calendar_of_their_offset() {
    let month = Window::parse("calendar", "1mo", "UTC", None).unwrap();
    check(&month, "2026-02-10T08:00", "2026-02-01", "2026-03-01");
    check(&month, "2026-12-31T23:59", "2026-12-01", "2027-01-01");
    check(&month, "2028-02-29T00:00", "2028-02-01", "2028-03-01");
    let tokyo = Window::parse("calendar", "1d", "+09:00", None).unwrap();
    check(
        &tokyo,
        "2026-03-01T15:00",
        "2026-03-01T15:00",
        "2026-03-02T15:00",
    );
    check(
        &tokyo,
        "2026-03-01T14:59",
        "2026-02-28T15:00",
        "2026-03-01T15:00",
    );
    let lima = Window::parse("calendar", "1mo", "-05:30", None).unwrap();
    check(
        &lima,
        "2026-03-01T05:29",
        "2026-02-01T05:30",
        "2026-03-01T05:30",
    );
    let week = Window::parse("calendar", "1w", "", None).unwrap();
    check(&week, "2026-11-30T00:00", "2026-11-30", "2026-12-07");
    check(&week, "2026-11-29T23:59", "2026-11-23", "2026-11-30");
}

#[test]
fn the_thirty_first_clamps_and_comes_back() {
    let anchor = Window::parse("anchor", "1mo", "", Some(instant("2026-01-31T10:00"))).unwrap();
    check(
        &anchor,
        "2026-01-31T10:00",
        "2026-01-31T10:00",
        "2026-02-28T10:00",
    );
    check(
        &anchor,
        "2026-03-01T00:00",
        "2026-02-28T10:00",
        "2026-03-31T10:00",
    );
    check(
        &anchor,
        "2026-04-30T09:59",
        "2026-03-31T10:00",
        "2026-04-30T10:00",
    );
    check(
        &anchor,
        "2026-05-31T10:00",
        "2026-05-31T10:00",
        "2026-06-30T10:00",
    );
    check(
        &anchor,
        "2025-12-31T09:00",
        "2025-11-30T10:00",
        "2025-12-31T10:00",
    );
    let quarter = Window::parse("anchor", "3mo", "", Some(instant("2025-11-30T00:00"))).unwrap();
    check(&quarter, "2026-03-15T00:00", "2026-02-28", "2026-05-30");
}

#[test]
fn rolling_windows_are_equal_and_a_balance_never_ends() {
    let rolling = Window::parse("rolling", "72h", "", Some(instant("2026-01-01T06:00"))).unwrap();
    check(
        &rolling,
        "2026-01-04T05:59",
        "2026-01-01T06:00",
        "2026-01-04T06:00",
    );
    check(
        &rolling,
        "2026-01-04T06:00",
        "2026-01-04T06:00",
        "2026-01-07T06:00",
    );
    check(
        &rolling,
        "2025-12-31T00:00",
        "2025-12-29T06:00",
        "2026-01-01T06:00",
    );
    let balance = Window::Balance.span(instant("2026-01-01"));
    assert_eq!(balance.end, UnixMs::FOREVER);
}

#[test]
fn every_instant_lies_in_its_window_and_windows_touch() {
    let windows = [
        Window::parse("calendar", "1mo", "+14:00", None).unwrap(),
        Window::parse("calendar", "1w", "-12:00", None).unwrap(),
        Window::parse("anchor", "5mo", "", Some(instant("2024-02-29T23:59"))).unwrap(),
        Window::parse("rolling", "100h", "", Some(UnixMs(1))).unwrap(),
    ];
    for window in windows {
        let mut at = instant("1975-06-01");
        for _ in 0..500 {
            let span = window.span(at);
            assert!(span.start <= at && at < span.end, "{window:?}");
            assert_eq!(window.span(UnixMs(span.end.0 - 1)), span);
            assert_eq!(window.span(span.end).start, span.end, "{window:?}");
            at = UnixMs(span.end.0 + at.0 % (40 * DAY));
        }
    }
}

#[test]
fn a_duration_is_exact_or_refused() {
    let anchor = Some(UnixMs(0));
    for (mode, period, exact) in [
        ("rolling", "72h", true),
        ("rolling", "100h", true),
        ("rolling", "2w", true),
        ("rolling", "3mo", false),
        ("rolling", "0h", false),
        ("rolling", "1.5h", false),
        ("rolling", "", false),
        ("rolling", "99999999999999999999h", false),
        ("rolling", "18446744073709551615w", false),
        ("calendar", "1mo", true),
        ("calendar", "24h", false),
        ("calendar", "3mo", false),
        ("calendar", "2w", false),
        ("anchor", "3mo", true),
        ("anchor", "100h", false),
        ("anchor", "2w", false),
        ("anchor", "121mo", false),
        ("balance", "", true),
        ("balance", "1mo", false),
        ("sliding", "1h", false),
    ] {
        let window = Window::parse(mode, period, "", anchor);
        assert_eq!(window.is_ok(), exact, "{mode} {period}: {window:?}");
        if let Ok(window) = window {
            let again = Window::parse(
                window.mode(),
                &window.period(),
                &window.zone(),
                window.anchor(),
            );
            assert_eq!(again, Ok(window), "what is stored reads back");
        }
    }
    assert!(Window::parse("rolling", "1h", "", None).is_err());
    for zone in ["Europe/Berlin", "+2", "+15:00", "+02:60", "２"] {
        assert!(
            Window::parse("calendar", "1d", zone, None).is_err(),
            "{zone}"
        );
    }
}

#[test]
fn limits_that_are_no_numbers_are_refused() {
    for text in [
        "",
        " ",
        "-1",
        "-0.5",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e3",
        "0x10",
        "1_000",
        "1,5",
        ".5",
        "5.",
        "+5",
        "--1",
        "1.0000001",
        "99999999999999999999999999",
        "1000000000001",
        "ten",
        "١",
    ] {
        assert!(parse_wtu(text).is_err(), "{text:?}");
    }
    assert!(matches!(parse_wtu("-1"), Err(AmountError::Negative(_))));
    assert!(matches!(parse_wtu(""), Err(AmountError::Empty)));
    assert!(matches!(
        parse_tokens("1.5"),
        Err(AmountError::TooFine { .. })
    ));
    for (text, micro) in [
        ("0", 0),
        ("1500", 1_500_000_000),
        ("2.5", 2_500_000),
        ("0.000001", 1),
        ("1.100", 1_100_000),
    ] {
        assert_eq!(parse_wtu(text).map(|wtu| wtu.0), Ok(micro), "{text:?}");
    }
    assert_eq!(parse_tokens("100000"), Ok(100_000));
    assert_eq!(parse_tokens("7.0"), Ok(7));
}

#[test]
fn an_account_path_is_its_leaf_and_everything_above() {
    let leaf = AccountId::parse("acme/search/ann/hp-abc").unwrap();
    let names: Vec<String> = AccountPath::of(&leaf)
        .accounts()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        names,
        [
            "acme",
            "acme/search",
            "acme/search/ann",
            "acme/search/ann/hp-abc"
        ]
    );
    let task = AccountId::parse("acme/tasks/t1").unwrap();
    assert_eq!(
        AccountPath::of(&leaf)
            .with(task.clone())
            .with(task)
            .accounts()
            .len(),
        5
    );
    assert!(leaf.is_within(&AccountId::parse("acme/search").unwrap()));
    assert!(!leaf.is_within(&AccountId::parse("acme/sea").unwrap()));
    for text in [
        "",
        "/",
        "a//b",
        "a b",
        "a/é",
        "1/2/3/4/5/6/7/8/9",
        &"x".repeat(101),
    ] {
        assert!(AccountId::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn policies_of_an_account_fit_together() {
    let name = |text: &str| PolicyName::parse(text).unwrap();
    let spec = |text: &str, tier| {
        PolicySpec::new(
            name(text),
            tier,
            Unit::MicroWtu,
            Window::Balance,
            Limit::Of(1),
        )
    };
    let plan = PolicySpec {
        overflow: Some(name("top-up")),
        ..spec("plan", Tier::D)
    };
    let good = [plan.clone(), spec("top-up", Tier::D)];
    assert_eq!(plan.check(&good), Ok(()));
    assert!(
        plan.check(std::slice::from_ref(&plan)).is_err(),
        "the target is missing"
    );
    assert!(
        plan.check(&[plan.clone(), spec("top-up", Tier::B)])
            .is_err(),
        "tiers differ"
    );
    assert!(
        plan.check(&[plan.clone(), plan.clone(), spec("top-up", Tier::D)])
            .is_err(),
        "twice"
    );
    let carrying = PolicySpec {
        carry: Carry::Debt,
        ..spec("cap", Tier::D)
    };
    assert_eq!(
        carrying.check(std::slice::from_ref(&carrying)),
        Err(PolicyError::CarryInD(name("cap")))
    );
}
