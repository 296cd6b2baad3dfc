//! The same load without a server: the production scheduler in front of simulated engines on virtual time, reported in
//! the same figures. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use governance_context::{Band, FairnessId};
use inference_wire::usage::Usage;
use pool_simulator::{Offer, Record, Scenario, flow_of, replay};
use scheduler_core::Targets;
use scheduler_core::flow::Quota;

use super::outcome::{Answer, End, Failure, Outcome};
use super::report::Report;
use super::tally::{Arriving, Tally};
use super::{Plan, Tenant};

/// A load that virtual time does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RehearsalError {
    #[error("clients do not leave on virtual time; cancel none")]
    Cancels,
    #[error("virtual time has a speed of its own; leave the speed at 1")]
    Speed,
}

/// Replays the load. Of the plan, models, API and bounds mean nothing here; networks and the process itself take no time.
pub fn rehearse(mut plan: Plan, mut scenario: Scenario) -> Result<Report, RehearsalError> {
    if plan.cancel > 0.0 {
        return Err(RehearsalError::Cancels);
    }
    if plan.speed.total_cmp(&1.0).is_ne() {
        return Err(RehearsalError::Speed);
    }
    let where_to = match scenario.engines {
        1 => "1 engine on virtual time".to_owned(),
        engines => format!("{engines} engines on virtual time"),
    };
    let mut tally = Tally::new(&plan, where_to);
    let (offers, tenants) = offers(&mut plan);
    let last = offers
        .last()
        .map_or(Duration::ZERO, |offer| offer.planned.at);
    scenario.flow.flow_quotas = quotas(&scenario.flow.flow_quotas, &tenants);
    let outcome = replay(&scenario, &pool_simulator::Load::new(offers));
    for record in &outcome.records {
        let tenant = &tenants[record.tenant as usize];
        let outcome = outcome_of(record, tenant);
        let at = outcome.at + outcome.ended;
        let arriving = if at < last {
            Arriving::Still
        } else {
            Arriving::Over
        };
        tally.sent();
        tally.record(&outcome, at, arriving);
    }
    Ok(Report {
        deepest_engine_queue: Some(outcome.deepest_engine_queue),
        ..tally.report()
    })
}

/// The requests as the simulator takes them, and the tenants by the numbers they have there.
fn offers(plan: &mut Plan) -> (Vec<Offer>, Vec<Tenant>) {
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut offers = Vec::new();
    while let Some((mut planned, tenant)) = plan.traffic.next(plan.seed) {
        let key = format!("{} {:?}", tenant.name, tenant.band);
        planned.output_tokens = planned.output_tokens.max(1);
        let band = Band(tenant.band.unwrap_or(0));
        planned.tenant = *numbers.entry(key).or_insert_with(|| {
            tenants.push(tenant);
            tenants.len() as u32 - 1
        });
        offers.push(Offer {
            planned,
            band,
            targets: Targets::default(),
        });
    }
    (offers, tenants)
}

/// Quotas by the names that flows have on virtual time. A tenant is one flow in each of its bands there as well.
fn quotas(named: &BTreeMap<FairnessId, Quota>, tenants: &[Tenant]) -> BTreeMap<FairnessId, Quota> {
    let quota = |(number, tenant): (u32, &Tenant)| {
        let (_, quota) = named.iter().find(|(id, _)| id.as_str() == tenant.name)?;
        Some((flow_of(number), quota.clone()))
    };
    (0..).zip(tenants).filter_map(quota).collect()
}

fn outcome_of(record: &Record, tenant: &Tenant) -> Outcome {
    Outcome {
        tenant: tenant.name.clone(),
        band: tenant.band,
        prompt_tokens: record.prompt_tokens,
        output_tokens: record.output_tokens,
        at: seconds(record.arrived_s).unwrap_or_default(),
        lag: Duration::ZERO,
        waited: seconds(record.waited_s),
        ended: seconds(record.total_s).unwrap_or_default(),
        end: end_of(record),
    }
}

fn end_of(record: &Record) -> End {
    match record.end {
        pool_simulator::End::Refused(code) => End::Refused {
            status: status_of(code),
            code: code.to_owned(),
        },
        pool_simulator::End::Open => End::Failed(Failure::Timeout),
        pool_simulator::End::Completed => {
            let output_tokens = u64::from(record.output_tokens);
            End::Completed(Answer {
                first: seconds(record.ttft_s),
                last: seconds(record.total_s),
                usage: Some(Usage {
                    prompt_tokens: u64::from(record.prompt_tokens),
                    cached_tokens: Some(u64::from(record.cached_tokens)),
                    output_tokens,
                }),
                outputs: record.output_tokens,
            })
        }
    }
}

/// As the scheduler answers over HTTP.
fn status_of(code: &str) -> u16 {
    match code {
        "no_endpoint" | "shutting_down" => 503,
        "upstream_timeout" => 504,
        "rejected" => 400,
        _ => 429,
    }
}

/// `None` for what did not happen.
fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value).ok()
}
