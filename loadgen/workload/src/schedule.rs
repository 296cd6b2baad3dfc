//! The requests of a load, one after the other in order of their time.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::arrivals::{Arrivals, Clock, Factor};
use crate::lengths::Lengths;
use crate::prompt::{Answer, Prompt, Run, own_block, shared_block};
use crate::seed::{Purpose, stream};
use crate::trace::Trace;

/// What the requests are.
#[derive(Debug, Clone)]
pub enum Requests {
    /// Those of a trace, in its order.
    Trace(Arc<Trace>),
    /// Made up from distributions.
    Generated(Generated),
}

/// Prompts that begin with the prefix of a group and go on alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generated {
    /// Tokens of the prompt, the shared prefix included.
    pub input: Lengths,
    pub output: Lengths,
    /// Tokens of the prefix shared inside a group.
    pub shared_tokens: u32,
    /// Number of groups; each request belongs to one of them at random.
    pub groups: u32,
}

/// One request to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Counted from zero.
    pub index: u64,
    /// When, since the start of the load.
    pub at: Duration,
    pub prompt: Prompt,
    pub output_tokens: u32,
    pub answer: Answer,
    /// Who sends it, counted from zero.
    pub tenant: u32,
}

/// Where a load ends; it ends at whatever comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub requests: Option<u64>,
    pub duration: Option<Duration>,
}

/// A load that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("generated requests have no recorded times; give a constant or Poisson rate")]
    NothingRecorded,
    #[error("the load would never end; limit its requests or its duration")]
    Endless,
    #[error("the trace has no requests")]
    Empty,
}

/// Iterates over the requests of a load. Equal arguments give equal requests.
#[derive(Debug, Clone)]
pub struct Schedule {
    times: Times,
    requests: Requests,
    limits: Limits,
    seed: u64,
    next: u64,
}

#[derive(Debug, Clone)]
enum Times {
    Clock(Clock),
    /// Time and place in the trace, sorted.
    Recorded(Vec<(Duration, usize)>),
}

impl Schedule {
    pub fn new(
        arrivals: Arrivals,
        requests: Requests,
        limits: Limits,
        seed: u64,
    ) -> Result<Self, ScheduleError> {
        let endless = limits == Limits::default();
        let times = match (arrivals, &requests) {
            (_, Requests::Trace(trace)) if trace.requests().is_empty() => {
                return Err(ScheduleError::Empty);
            }
            (Arrivals::Recorded { .. }, Requests::Generated(_)) => {
                return Err(ScheduleError::NothingRecorded);
            }
            (_, Requests::Generated(_)) if endless => return Err(ScheduleError::Endless),
            (Arrivals::Recorded { factor, jitter }, Requests::Trace(trace)) => {
                Times::Recorded(recorded(trace, factor, jitter, limits.requests, seed))
            }
            (Arrivals::Constant(rate), _) => Times::Clock(Clock::constant(rate)),
            (Arrivals::Poisson(rate), _) => Times::Clock(Clock::poisson(rate, seed)),
        };
        Ok(Self {
            times,
            requests,
            limits,
            seed,
            next: 0,
        })
    }

    /// How many requests will come, where the limits or the trace tell.
    pub fn expected(&self) -> Option<u64> {
        let of_trace = match &self.requests {
            Requests::Trace(trace) => Some(trace.requests().len() as u64),
            Requests::Generated(_) => None,
        };
        [of_trace, self.limits.requests].into_iter().flatten().min()
    }
}

impl Iterator for Schedule {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let index = self.next;
        if self.limits.requests.is_some_and(|limit| index >= limit) {
            return None;
        }
        let place = usize::try_from(index).ok()?;
        let (at, place) = match &mut self.times {
            Times::Clock(clock) => (clock.next(), place),
            Times::Recorded(times) => *times.get(place)?,
        };
        if self.limits.duration.is_some_and(|limit| at >= limit) {
            return None;
        }
        let (prompt, output_tokens) = match &self.requests {
            Requests::Trace(trace) => {
                let recorded = trace.requests().get(place)?;
                (recorded.prompt.clone(), recorded.output_tokens)
            }
            Requests::Generated(generated) => generated.draw(index, self.seed),
        };
        self.next += 1;
        Some(Planned {
            index,
            at,
            prompt,
            output_tokens,
            answer: Answer::Nobodys,
            tenant: 0,
        })
    }
}

impl Generated {
    fn draw(&self, index: u64, seed: u64) -> (Prompt, u32) {
        let mut random = stream(seed, Purpose::Lengths, index);
        let (input, output) = (self.input.draw(&mut random), self.output.draw(&mut random));
        let group = stream(seed, Purpose::Group, index).random_range(0..self.groups.max(1));
        let shared = self.shared_tokens.min(input);
        let prompt = Prompt::new([
            Run {
                first: shared_block(group),
                tokens: shared,
            },
            Run {
                first: own_block(index),
                tokens: input - shared,
            },
        ]);
        (prompt, output)
    }
}

/// The first requests of a trace at their jittered times, sorted again.
fn recorded(
    trace: &Trace,
    factor: Factor,
    jitter: Duration,
    limit: Option<u64>,
    seed: u64,
) -> Vec<(Duration, usize)> {
    let limit = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX);
    let mut times: Vec<(Duration, usize)> = trace
        .requests()
        .iter()
        .take(limit)
        .enumerate()
        .map(|(place, request)| {
            let moved = jitter.mul_f64(stream(seed, Purpose::Jitter, place as u64).random::<f64>());
            ((request.at + moved).div_f64(factor.get()), place)
        })
        .collect();
    times.sort_unstable();
    times
}
