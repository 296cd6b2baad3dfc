//! The load generator: sends requests when they are due, whatever became of those before, and reports what their users
//! would feel. Not a benchmark of engines: it measures from outside, over HTTP.
//!
//! Open loop. Every request has an *intended* time from the schedule, and every latency counts from it, so a stalled
//! server cannot slow the load down and look better for it. The generator reports how late it was itself; when that is
//! more than its bound, the report has a verdict in place of figures.
//!
//! `flight`, `wire` and this file know sockets and clocks; everything else here is pure.

mod body;
pub mod crowd;
mod flight;
mod outcome;
mod progress;
mod reading;
mod rehearsal;
pub mod report;
mod slo;
mod tally;
mod target;
mod traffic;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use workload::{Mix, Planned};

use body::Body;
use flight::{Departure, Landing};
use tally::{Arriving, Tally};
use wire::Wire;

pub use body::{Api, Delivery, OutputLength};
pub use crowd::{Crowd, Group};
pub use progress::Progress;
pub use rehearsal::{RehearsalError, rehearse};
pub use report::{Report, Verdict};
pub use slo::Slo;
pub use target::{Target, TargetError};
pub use traffic::Traffic;

/// A load.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the load is called in the report.
    pub name: String,
    pub models: Mix<String>,
    /// Requests, who sends them, and their times in real time, that is, at speed 1.
    pub traffic: Traffic,
    /// The server runs this many times faster than real time: requests are sent that much sooner, and times are
    /// reported as the server's clients would see them at speed 1.
    pub speed: f64,
    /// Seed of prompts, mixes and departures.
    pub seed: u64,
    pub api: Api,
    pub delivery: Delivery,
    pub output_length: OutputLength,
    /// Share of requests, 0 to 1, whose client leaves in the middle of the answer.
    pub cancel: f64,
    pub slo: Slo,
    pub bounds: Bounds,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// As it is called in the report.
    pub name: String,
    pub key: Option<ApiKey>,
    /// The band its requests are known to be in; the report has figures for each.
    pub band: Option<i32>,
}

/// A bearer token. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(http::HeaderValue);

/// What the generator may use, and when its own lateness voids a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests in flight; one more waits, and its wait counts as lag.
    pub in_flight: usize,
    /// Real time one request may take.
    pub timeout: Duration,
    /// Largest 99th percentile of the lag, in real time, at which a run is valid.
    pub lag: Duration,
}

impl Bounds {
    /// 4,096 in flight, 10 minutes, and a lag of a tenth of a second as the clients see it, though never below 5 ms,
    /// which is what a busy machine's timers need.
    pub fn at_speed(speed: f64) -> Self {
        let lag = Duration::from_millis(100).div_f64(speed.max(1.0));
        Self {
            in_flight: 4_096,
            timeout: Duration::from_mins(10),
            lag: lag.max(Duration::from_millis(5)),
        }
    }
}

impl ApiKey {
    /// `None` if the key cannot stand in a header.
    pub fn new(key: &str) -> Option<Self> {
        let mut value = http::HeaderValue::try_from(format!("Bearer {key}")).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ApiKey(…)")
    }
}

/// A load that cannot be sent at all. What happens to its requests is in the report.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("the address of {0} is not known")]
    Unresolved(String, #[source] std::io::Error),
    #[error("speed {0} is out of range; give a number from 0.001 to 100000")]
    Speed(f64),
    #[error("cancel {0} is no share; give a number from 0 to 1")]
    Cancel(f64),
    #[error("clients leave in the middle of streams only; ask for streams, or cancel none")]
    CancelWhole,
}

/// Sends the load and waits for its last answer.
///
/// Dropping the future ends every request.
pub async fn run(plan: Plan, target: &Target, progress: Progress) -> Result<Report, DriveError> {
    check(&plan)?;
    let site = Arc::new(wire::Site::resolve(target).await?);
    let mut tally = Tally::new(&plan, target.to_string());
    let mut flights: JoinSet<Landing> = JoinSet::new();
    let mut idle: Vec<Wire> = Vec::new();
    let mut runway = Runway::new(plan);
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let next = runway.next();
        if next.is_none() && flights.is_empty() {
            break;
        }
        let room = flights.len() < runway.plan.bounds.in_flight;
        let due = next.unwrap_or_else(Instant::now);
        tokio::select! {
            biased; // what is due goes before anything else is looked at
            () = sleep_until(due), if next.is_some() && room => {
                if let Some(departure) = runway.take() {
                    tally.sent();
                    flights.spawn(flight::fly(departure, idle.pop(), Arc::clone(&site)));
                }
            }
            Some(landed) = flights.join_next() => {
                let landing = landed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
                let arriving = if next.is_some() { Arriving::Still } else { Arriving::Over };
                tally.record(&landing.outcome, runway.start.elapsed(), arriving);
                idle.extend(landing.wire);
            }
            _ = ticks.tick() => progress.show(&tally, runway.expected),
        }
    }
    progress.end();
    Ok(tally.report())
}

fn check(plan: &Plan) -> Result<(), DriveError> {
    if !(0.001..=100_000.0).contains(&plan.speed) {
        return Err(DriveError::Speed(plan.speed));
    }
    if !(0.0..=1.0).contains(&plan.cancel) {
        return Err(DriveError::Cancel(plan.cancel));
    }
    if plan.cancel > 0.0 && plan.delivery == Delivery::Whole {
        return Err(DriveError::CancelWhole);
    }
    Ok(())
}

/// Holds the next request ready before it is due, so that building it makes nobody late.
struct Runway {
    plan: Plan,
    start: Instant,
    ready: Option<(Instant, Departure)>,
    expected: Option<u64>,
}

impl Runway {
    fn new(plan: Plan) -> Self {
        /// Time to build the first requests.
        const LEAD: Duration = Duration::from_millis(20);
        let expected = plan.traffic.expected();
        Self {
            plan,
            start: Instant::now() + LEAD,
            ready: None,
            expected,
        }
    }

    /// When the next request is due.
    fn next(&mut self) -> Option<Instant> {
        if self.ready.is_none() {
            let (planned, tenant) = self.plan.traffic.next(self.plan.seed)?;
            let due = self.start + planned.at.div_f64(self.plan.speed);
            self.ready = Some((due, self.departure(&planned, tenant, due)));
        }
        self.ready.as_ref().map(|(due, _)| *due)
    }

    fn take(&mut self) -> Option<Departure> {
        self.ready.take().map(|(_, departure)| departure)
    }

    fn departure(&self, planned: &Planned, tenant: Tenant, due: Instant) -> Departure {
        /// Keeps this mix apart from that of the tenants.
        const MODEL: u64 = 1;
        let plan = &self.plan;
        let output_tokens = planned.output_tokens.max(1);
        let body = Body {
            api: plan.api,
            delivery: plan.delivery,
            output_length: plan.output_length,
            model: plan.models.pick(plan.seed, MODEL, planned.index),
            prompt: &planned.prompt,
            output_tokens,
        };
        Departure {
            at: planned.at.div_f64(plan.speed),
            due,
            tenant,
            prompt_tokens: planned.prompt.tokens(),
            output_tokens,
            leave_after: body::leaves_after(plan.cancel, plan.seed, planned),
            timeout: plan.bounds.timeout,
            api: plan.api,
            body: body.write(plan.seed),
        }
    }
}
