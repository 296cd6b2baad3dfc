use std::time::Duration;

use engine_model::Profile;
use expect_test::expect;
use inference_wire::usage::Usage;
use workload::schedule::{Generated, Limits, Requests, Schedule};
use workload::{Arrivals, Lengths, Mix, Rate};

use super::{Arriving, Tally};
use crate::drive::outcome::{Answer, End, Failure, Outcome};
use crate::drive::{Api, Bounds, Delivery, OutputLength, Plan, Slo, Tenant, Traffic, Verdict};

fn plan(speed: f64) -> Plan {
    let lengths = Lengths::Fixed(10);
    let requests = Requests::Generated(Generated {
        input: lengths,
        output: lengths,
        shared_tokens: 0,
        groups: 1,
    });
    let limits = Limits {
        requests: Some(4),
        duration: None,
    };
    let arrivals = Arrivals::Constant(Rate::new(1.0).expect("in range"));
    Plan {
        name: "constant 1/s".to_owned(),
        models: "m".parse().expect("one"),
        traffic: Traffic::Mixed {
            schedule: Box::new(Schedule::new(arrivals, requests, limits, 1).expect("limited")),
            tenants: Mix::new([(
                Tenant {
                    name: "a".to_owned(),
                    key: None,
                    band: None,
                },
                1,
            )])
            .expect("one"),
        },
        speed,
        seed: 1,
        api: Api::Chat,
        delivery: Delivery::Stream,
        output_length: OutputLength::Exact,
        cancel: 0.0,
        slo: Slo::Fixed {
            ttft: Duration::from_secs(1),
            tpot: Duration::from_millis(100),
        },
        bounds: Bounds::at_speed(speed),
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn outcome(tenant: &str, ended: u64, end: End) -> Outcome {
    Outcome {
        tenant: tenant.to_owned(),
        band: None,
        prompt_tokens: 100,
        output_tokens: 21,
        at: ms(1_000),
        lag: ms(1),
        waited: None,
        ended: ms(ended),
        end,
    }
}

fn answer(first: u64, last: u64) -> End {
    let usage = Some(Usage {
        prompt_tokens: 100,
        cached_tokens: Some(25),
        output_tokens: 21,
    });
    End::Completed(Answer {
        first: Some(ms(first)),
        last: Some(ms(last)),
        usage,
        outputs: 21,
    })
}

fn tally(speed: f64, outcomes: &[Outcome]) -> Tally {
    let mut tally = Tally::new(&plan(speed), "http://127.0.0.1:1".to_owned());
    for outcome in outcomes {
        tally.sent();
        tally.record(outcome, ms(4_000), Arriving::Still);
    }
    tally
}

#[test]
fn everything_offered_counts_in_goodput_but_those_who_left() {
    let refused = |status, code: &str| End::Refused {
        status,
        code: code.to_owned(),
    };
    let tally = tally(
        1.0,
        &[
            outcome("a", 2_500, answer(500, 2_500)),
            outcome("a", 3_500, answer(1_500, 3_500)),
            outcome("b", 10, refused(429, "queue_full")),
            outcome("b", 20, refused(429, "queue_full")),
            outcome("b", 30, refused(503, "no_endpoint")),
            outcome("b", 40, End::Failed(Failure::Cut)),
            outcome("b", 50, End::Left),
        ],
    );
    expect![[r"
        load      constant 1/s to http://127.0.0.1:1, seed 1, speed 1
        offered   7   completed 2   refused 3   failed 1   left 1
        refused          2  429 queue_full
        refused          1  503 no_endpoint
        failed           1  cut
        goodput   16.7 % of offered
                         p50       p90       p99      mean       max
        TTFT s         0.500     1.500     1.500     1.000     1.500
        TPOT ms      100.031   100.031   100.031   100.000   100.031
        E2E s          2.501     3.500     3.500     2.999     3.500
        tokens    200 prompt, 25.0 % of them cached   42 output, 10/s
        time      4.0 s, 1.75 requests/s offered
        tenant    a: offered 2   completed 2   refused 0   failed 0   goodput 50.0 %   WTU 100.0 %   TTFT p50 0.500 p90 1.500 p99 1.500 s
        tenant    b: offered 5   completed 0   refused 3   failed 1   goodput 0.0 %   WTU 0.0 %
        Jain      0.5000
        targets   TTFT <= 1s, TPOT <= 100ms
        lag       p50 1.0 ms   p99 1.0 ms   max 1.0 ms
        verdict   valid
    "]]
    .assert_eq(&tally.report().to_string());
}

#[test]
fn a_faster_server_is_reported_at_the_speed_of_its_clients() {
    let report = tally(20.0, &[outcome("a", 125, answer(25, 125))]).report();
    let figures = report.figures.expect("valid");
    let ttft = figures.ttft_s.expect("one answer");
    assert!((ttft.p50 - 0.5).abs() < 0.001, "{ttft:?}");
    assert!((figures.duration_s - 80.0).abs() < 1e-9);
    let e2e = figures.e2e_s.expect("one answer");
    assert!((e2e.p50 - 2.5).abs() < 0.01, "{e2e:?}");
    assert_eq!(figures.goodput, Some(1.0));
    let late = tally(20.0, &[outcome("a", 250, answer(51, 151))]).report();
    assert_eq!(late.figures.expect("valid").goodput, Some(0.0));
}

#[test]
fn a_generator_that_was_late_reports_no_figures() {
    let late = Outcome {
        lag: ms(200),
        ..outcome("a", 2_500, answer(500, 2_500))
    };
    let report = tally(1.0, &[late]).report();
    assert!(
        matches!(report.verdict, Verdict::Lagged { .. })
            && report.figures.is_none()
            && !report.is_valid()
    );
    let text = report.to_string();
    assert!(
        text.contains("INVALID: the generator lagged its own schedule by 200.")
            && !text.contains("TTFT"),
        "{text}"
    );
    assert!(report.to_json().contains("\"kind\": \"lagged\""));
    assert_eq!(tally(1.0, &[]).report().verdict, Verdict::Empty);
}

#[test]
fn a_load_that_nobody_answered_reports_no_figures() {
    let report = tally(1.0, &[outcome("a", 40, End::Failed(Failure::Connect))]).report();
    assert_eq!(
        (report.verdict, report.figures.is_none()),
        (Verdict::Unanswered, true)
    );
    let text = report.to_string();
    assert!(
        text.contains("INVALID: no request was answered") && text.contains("connect"),
        "{text}"
    );
}

#[test]
fn the_json_names_its_version_and_every_figure() {
    let json: serde_json::Value = serde_json::from_str(
        &tally(1.0, &[outcome("a", 2_500, answer(500, 2_500))])
            .report()
            .to_json(),
    )
    .expect("JSON");
    assert_eq!(json["schema"], "headpond.load/1");
    assert_eq!(json["verdict"]["kind"], "valid");
    for path in [
        "/figures/goodput",
        "/figures/hit_ratio",
        "/figures/ttft_s/p99",
        "/figures/tpot_s/p50",
        "/figures/e2e_s/p90",
        "/figures/tenants/a/offered",
        "/lag_s/max",
    ] {
        assert!(
            json.pointer(path).is_some_and(serde_json::Value::is_number),
            "{path}"
        );
    }
}

#[test]
fn names_are_bounded() {
    let mut outcomes: Vec<Outcome> = (1..1_000)
        .map(|index| {
            outcome(
                &format!("t{index}"),
                1,
                End::Refused {
                    status: 400,
                    code: format!("c{index}"),
                },
            )
        })
        .collect();
    outcomes.push(outcome("t0", 2_500, answer(500, 2_500)));
    let report = tally(1.0, &outcomes).report();
    assert!(report.refused.len() <= 257 && report.refused.values().sum::<u64>() == 999);
    let tenants = report.figures.expect("valid").tenants;
    assert!(
        tenants.len() <= 257 && tenants.values().map(|tenant| tenant.offered).sum::<u64>() == 1_000
    );
}

#[test]
fn the_profile_sets_the_targets_where_one_is_given() {
    assert_eq!(
        Slo::of(Profile::LLAMA_8B_A100).to_string(),
        "TTFT <= 1s + 3 x T_p(8b-a100), TPOT <= 100ms"
    );
}

#[test]
fn tenants_and_bands_have_figures_of_their_own() {
    let of = |tenant: &str, band, end| Outcome {
        band: Some(band),
        waited: Some(ms(300)),
        ..outcome(tenant, 3_500, end)
    };
    let refused = End::Refused {
        status: 429,
        code: "queue_wait".to_owned(),
    };
    let report = tally(
        1.0,
        &[
            of("a", 1, answer(500, 2_500)),
            of("b", 1, answer(700, 2_500)),
            of("c", 0, answer(1_500, 3_500)),
            of("c", 0, refused),
        ],
    )
    .report();
    let figures = report.figures.expect("valid");
    let (top, low) = (&figures.bands[&1], &figures.bands[&0]);
    assert_eq!((top.offered, top.completed, top.goodput), (2, 2, Some(1.0)));
    assert_eq!((low.offered, low.refused, low.goodput), (2, 1, Some(0.0)));
    assert_eq!(low.refused_by, [("429 queue_wait".to_owned(), 1)].into());
    let wait = low.wait_s.expect("one answer");
    assert!(
        (wait.p95 - 0.3).abs() < 0.001 && wait.count == 1,
        "{wait:?}"
    );
    // Of 100 prompt tokens 25 are cached, and 21 were generated.
    assert!(
        (low.wtu - 119.5).abs() < 1e-9 && low.wtu_share == Some(1.0 / 3.0),
        "{low:?}"
    );
    // All were served as much, and one wanted 142 more.
    let jain = figures.jain.expect("three tenants");
    assert!((jain - 1.0).abs() < 1e-9, "{jain}");
    let seconds: Vec<_> = figures
        .timeline
        .iter()
        .map(|s| (s.offered, s.refused, s.completed))
        .collect();
    assert_eq!(
        seconds,
        [(0, 0, 0), (4, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 3)]
    );
    assert_eq!(figures.timeline[1].work, [(0, 142.0), (1, 284.0)].into());
}

#[test]
fn bands_have_lines_as_soon_as_one_is_named() {
    let of = |band| Outcome {
        band,
        ..outcome("a", 3_500, answer(500, 2_500))
    };
    for (bands, lines) in [
        (vec![None], vec![]),
        (vec![Some(0)], vec![]),
        (vec![Some(1)], vec!["1"]),
        (vec![Some(-1), Some(-1)], vec!["-1"]),
        (vec![Some(0), Some(1)], vec!["0", "1"]),
    ] {
        let outcomes: Vec<Outcome> = bands.iter().copied().map(of).collect();
        let shown = tally(1.0, &outcomes).report().to_string();
        let told: Vec<&str> = shown
            .lines()
            .filter_map(|line| line.strip_prefix("band "))
            .filter_map(|rest| rest.trim_start().split(':').next())
            .collect();
        assert_eq!(told, lines, "{bands:?}\n{shown}");
    }
}

#[test]
fn what_is_worked_off_at_the_end_is_no_share() {
    let mut tally = Tally::new(&plan(1.0), "nowhere".to_owned());
    for (tenant, first) in [("in time", 900), ("late", 1_100)] {
        tally.sent();
        tally.record(
            &outcome(tenant, 2_000, answer(first, 2_000)),
            ms(9_000),
            Arriving::Over,
        );
    }
    let figures = tally.report().figures.expect("valid");
    let share = |tenant: &str| figures.tenants[tenant].wtu_share;
    assert_eq!((share("in time"), share("late")), (Some(1.0), Some(0.0)));
    assert_eq!(figures.jain, Some(0.5));
}
