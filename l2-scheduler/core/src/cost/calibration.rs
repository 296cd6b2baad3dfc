//! The step model refitted from what is observed: recursive least squares with forgetting, per class of engines.
//!
//! Rows are scaled by their own prediction, so a slow prefill and a quick step weigh alike, and parameters by their first
//! guess, so all start at one. A residual counts up to three times its usual size, and a parameter stays within a factor
//! of its first guess: an outlier moves little, a wrong guess moves far in time.

use super::{StepModel, attention_area};
use crate::Timestamp;

const PARAMETERS: usize = 6;
const FORGETTING: f64 = 0.998;
/// Variance of the relative noise of an observation.
const NOISE: f64 = 0.01;
/// Variance of a parameter at the start, and at most.
const PRIOR: f64 = 1.0;
const BOUND: f64 = 30.0;

type Row = [f64; PARAMETERS];

/// What the step model of one class has learned.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    first: StepModel,
    model: StepModel,
    /// Parameters as multiples of the first guess: lin, quad, fix, fix0, per stream, per context.
    factors: Row,
    covariance: [Row; PARAMETERS],
    /// Usual size of a relative residual.
    spread: f64,
}

impl Calibration {
    pub(crate) fn new(first: StepModel) -> Self {
        let mut covariance = [[0.0; PARAMETERS]; PARAMETERS];
        for (at, row) in covariance.iter_mut().enumerate() {
            row[at] = PRIOR;
        }
        Self {
            first,
            model: first,
            factors: [1.0; PARAMETERS],
            covariance,
            spread: 0.5,
        }
    }

    pub(crate) fn model(&self) -> &StepModel {
        &self.model
    }

    /// A prefill alone on its engine took `seconds` beside `decoding` streams of `context` tokens.
    pub(crate) fn prefilled(
        &mut self,
        uncached: u32,
        cached: u32,
        decoding: f64,
        context: f64,
        seconds: f64,
    ) {
        let first = self.first;
        let steps = first.steps(f64::from(uncached));
        self.learn(
            [
                first.lin * f64::from(uncached),
                first.quad * attention_area(uncached, cached),
                first.fix * steps,
                0.0,
                first.per_stream * decoding * steps,
                first.per_context * context * steps,
            ],
            seconds,
        );
    }

    /// A step that only decodes took `seconds`.
    pub(crate) fn decoded(&mut self, decoding: f64, context: f64, seconds: f64) {
        let first = self.first;
        self.learn(
            [
                0.0,
                0.0,
                0.0,
                first.fix0,
                first.per_stream * decoding,
                first.per_context * context,
            ],
            seconds,
        );
    }

    fn learn(&mut self, row: Row, seconds: f64) {
        let predicted = dot(&row, &self.factors);
        if !(seconds.is_finite() && seconds > 0.0 && predicted > 0.0) {
            return;
        }
        let row = row.map(|value| value / predicted);
        let residual = seconds / predicted - 1.0;
        let bounded = residual.clamp(-3.0 * self.spread, 3.0 * self.spread);
        self.spread = (self.spread + 0.05 * (bounded.abs() - self.spread)).clamp(0.03, 0.5);

        let gain = self.covariance.map(|line| dot(&line, &row));
        let scale = NOISE + dot(&gain, &row);
        for (factor, gain) in self.factors.iter_mut().zip(gain) {
            *factor = (*factor + gain / scale * bounded).clamp(1.0 / BOUND, BOUND);
        }
        for (line, left) in self.covariance.iter_mut().zip(gain) {
            for (value, right) in line.iter_mut().zip(gain) {
                *value = (*value - left * right / scale) / FORGETTING;
            }
        }
        self.bound_covariance();
        self.publish();
    }

    /// A parameter nothing speaks about would grow ever less certain and then jump.
    fn bound_covariance(&mut self) {
        for at in 0..PARAMETERS {
            let variance = self.covariance[at][at];
            if variance > PRIOR {
                let shrink = (PRIOR / variance).sqrt();
                for other in 0..PARAMETERS {
                    self.covariance[at][other] *= shrink;
                    self.covariance[other][at] *= shrink;
                }
            }
        }
    }

    fn publish(&mut self) {
        let [lin, quad, fix, fix0, per_stream, per_context] = self.factors;
        self.model = StepModel {
            lin: self.first.lin * lin,
            quad: self.first.quad * quad,
            fix: self.first.fix * fix,
            fix0: self.first.fix0 * fix0,
            per_stream: self.first.per_stream * per_stream,
            per_context: self.first.per_context * per_context,
            batch: self.first.batch,
        };
    }
}

fn dot(a: &Row, b: &Row) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// How much slower than the quick ones of its class one engine is, as a factor on every time. Never below one: what is
/// quicker than predicted teaches the class, so that engines of one kind cannot drift apart.
///
/// Small differences count as none, or an idle pool would send everything to whichever engine was measured luckily. What
/// is not measured again is forgotten, so an engine that was slow once gets another chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    logarithm: f64,
    factor: f64,
    relaxed_at: Timestamp,
}

const PACE_STEP: f64 = 0.1;
/// Natural logarithm of the largest factor, 8.
const PACE_BOUND: f64 = 2.079;
/// Natural logarithm of the largest factor that counts as none, 1.16.
const PACE_DEAD_BAND: f64 = 0.15;
const PACE_HALF_LIFE_S: f64 = 30.0;
const RELAX_INTERVAL_S: f64 = 1.0;

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            logarithm: 0.0,
            factor: 1.0,
            relaxed_at: Timestamp::ZERO,
        }
    }

    pub(crate) fn factor(self) -> f64 {
        self.factor
    }

    /// Something predicted (with this pace) to take `predicted` seconds took `seconds`.
    pub(crate) fn observe(&mut self, seconds: f64, predicted: f64) {
        if seconds > 0.0 && predicted > 0.0 {
            // The prediction stands on the factor in force; the logarithm may be ahead of it by the dead band.
            let seen = self.factor.ln() + (seconds / predicted).ln();
            let surprise = (seen - self.logarithm).clamp(-1.0, 1.0);
            self.set(self.logarithm + PACE_STEP * surprise);
        }
    }

    /// Time passed.
    pub(crate) fn relax(&mut self, now: Timestamp) {
        let passed = now.seconds_since(self.relaxed_at);
        if passed >= RELAX_INTERVAL_S {
            self.relaxed_at = now;
            self.set(self.logarithm * (-passed / PACE_HALF_LIFE_S).exp2());
        }
    }

    fn set(&mut self, logarithm: f64) {
        self.logarithm = logarithm.clamp(0.0, PACE_BOUND);
        self.factor = if self.logarithm > PACE_DEAD_BAND {
            self.logarithm.exp()
        } else {
            1.0
        };
    }
}
