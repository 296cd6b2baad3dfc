//! A crowd rehearsed on virtual time, and the same crowd sent to a simulated engine.

use std::time::Duration;

use engine_model::Profile;
use governance_context::{Band, FairnessId};
use loadgen::drive::{
    self, Api, Bounds, Crowd, Delivery, Group, OutputLength, Plan, Progress, RehearsalError, Slo,
    Tenant, Traffic,
};
use loadgen::engine::{EngineConfig, SimEngine};
use pool_simulator::{Load, Offer, Scenario, replay};
use scheduler_core::flow::{OverQuota, Quota, QuotaRate, Refuse};
use scheduler_core::{Policy, Targets};
use workload::Planned;

const PROFILE: Profile = Profile::LLAMA_70B_8XH100;
/// Three tenants in two bands, three times what one engine can do.
const GROUPS: [&str; 4] = [
    "chat rate=8 prompt=250..750 output=100..300 band=1",
    "documents rate=3 prompt=4000..12000 output=150..450",
    "notes rate=8 prompt=1000..3000 output=150..450",
    "documents rate=8 prompt=4000..12000 output=150..450 from=4 until=9",
];
const DURATION: Duration = Duration::from_secs(12);

fn groups() -> Vec<Group> {
    let groups = GROUPS.iter().map(|group| group.parse().expect("a group"));
    groups.collect()
}

fn crowd() -> Crowd {
    Crowd::new(&groups(), DURATION, 5).expect("some groups")
}

fn plan() -> Plan {
    let tenants = groups().into_iter().map(|group| Tenant {
        name: group.name,
        key: None,
        band: Some(group.band),
    });
    Plan {
        name: "crowd".to_owned(),
        models: "demo".parse().expect("one"),
        traffic: Traffic::Crowd {
            crowd: crowd(),
            tenants: tenants.collect(),
        },
        speed: 1.0,
        seed: 5,
        api: Api::Completions,
        delivery: Delivery::Stream,
        output_length: OutputLength::Exact,
        cancel: 0.0,
        slo: Slo::of(PROFILE),
        // Tests share their machine with others.
        bounds: Bounds {
            lag: Duration::from_hours(1),
            ..Bounds::at_speed(1.0)
        },
    }
}

fn scenario() -> Scenario {
    Scenario {
        engines: 1,
        refuse: Refuse::Doomed,
        ..Scenario::new(Policy::Planned)
    }
}

/// The second group of documents belongs to the tenant of the first.
fn offer(planned: Planned) -> Offer {
    Offer {
        band: Band(groups()[planned.tenant as usize].band),
        targets: Targets::default(),
        planned: Planned {
            tenant: [0, 1, 2, 1][planned.tenant as usize],
            ..planned
        },
    }
}

#[test]
fn a_rehearsal_tells_what_the_simulator_counts() {
    let outcome = replay(&scenario(), &Load::new(crowd().map(offer)));
    let expected = outcome.figures();
    let report = drive::rehearse(plan(), scenario()).expect("a plan for virtual time");
    let figures = report.figures.as_ref().expect("valid");
    assert!(
        expected.goodput < 0.9 && expected.jain < 0.9999,
        "{expected:?}"
    );
    assert_eq!(report.offered, expected.offered);
    assert_eq!(report.completed, expected.completed);
    let drops = expected.drops.iter();
    let drops = drops.map(|(code, drops)| (format!("429 {code}"), drops.total()));
    assert_eq!(report.refused, drops.collect());
    assert_eq!(
        report.deepest_engine_queue,
        Some(outcome.deepest_engine_queue)
    );
    let close = |found: Option<f64>, expected: f64| {
        let found = found.expect("a figure");
        assert!((found - expected).abs() < 1e-3, "{found} is not {expected}");
    };
    close(figures.goodput, expected.goodput);
    close(figures.jain, expected.jain);
    for (name, tenant) in [("chat", 0), ("documents", 1), ("notes", 2)] {
        close(
            figures.tenants[name].wtu_share,
            expected.wtu_shares[&tenant],
        );
    }
    let top = outcome.figures_where(|record| record.band == Band(1));
    close(figures.bands[&1].goodput, top.goodput);
    close(
        figures.bands[&1].ttft_s.map(|ttft| ttft.mean),
        top.ttft_s.mean,
    );
}

#[test]
fn a_quota_of_one_tenant_holds_for_that_tenant() {
    let refused = |name: &str| {
        let mut scenario = scenario();
        let quota = Quota {
            in_flight_wtu: None,
            rate: Some(QuotaRate {
                wtu_per_s: 1,
                burst_wtu: 1,
            }),
            over: OverQuota::Refuse,
        };
        let name = FairnessId::new(name).expect("a name");
        scenario.flow.flow_quotas.insert(name, quota);
        let report = drive::rehearse(plan(), scenario).expect("a plan for virtual time");
        let of_quota = report.refused.get("429 over_quota").copied();
        let figures = report.figures.expect("valid");
        let completed = figures.tenants["documents"].completed;
        (
            of_quota.unwrap_or(0),
            completed,
            figures.tenants["documents"].offered,
        )
    };
    let (count, completed, offered) = refused("documents");
    assert!(
        count > 0 && completed <= 2 && offered > 2,
        "{count} {completed} {offered}"
    );
    assert_eq!(refused("somebody").0, 0);
}

#[test]
fn what_virtual_time_does_not_have_is_refused() {
    let cancels = Plan {
        cancel: 0.5,
        ..plan()
    };
    let fast = Plan {
        speed: 2.0,
        ..plan()
    };
    for (plan, expected) in [
        (cancels, RehearsalError::Cancels),
        (fast, RehearsalError::Speed),
    ] {
        assert_eq!(drive::rehearse(plan, scenario()), Err(expected));
    }
}

/// Without a scheduler every request goes to the engine at once, and the deepest its queue was is remembered.
#[tokio::test]
async fn a_crowd_is_sent_as_it_was_planned_and_its_tenants_are_told_apart() {
    const SPEED: f64 = 20.0;
    let mut config = EngineConfig::new(PROFILE);
    config.speed = SPEED;
    config.models = vec!["demo".to_owned()];
    let engine = SimEngine::start(config).await.expect("a free port");
    let plan = Plan {
        speed: SPEED,
        bounds: Bounds {
            lag: Duration::from_hours(1),
            ..Bounds::at_speed(SPEED)
        },
        ..plan()
    };
    let target = engine.url().parse().expect("an address");
    let report = drive::run(plan, &target, Progress::Silent).await;
    let report = report.expect("a plan that can be sent");
    let figures = report.figures.as_ref().expect("valid");
    let all: Vec<Planned> = crowd().collect();
    let of = |tenants: &[u32]| all.iter().filter(|r| tenants.contains(&r.tenant)).count() as u64;
    for (name, tenants) in [("chat", &[0][..]), ("documents", &[1, 3]), ("notes", &[2])] {
        let tenant = &figures.tenants[name];
        assert_eq!(
            (tenant.offered, tenant.completed),
            (of(tenants), of(tenants)),
            "{name}"
        );
    }
    assert_eq!(figures.bands[&1].offered, of(&[0]));
    let prompt_tokens: u64 = all.iter().map(|r| u64::from(r.prompt.tokens())).sum();
    assert_eq!(figures.prompt_tokens, prompt_tokens);
    assert_eq!(engine.usage_totals().prompt_tokens, prompt_tokens);
    assert!(
        (1..=all.len() as u32).contains(&engine.most_waiting()),
        "{}",
        engine.most_waiting()
    );
    engine.shutdown().await;
}
