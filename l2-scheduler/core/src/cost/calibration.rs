//! The step model refitted from what is observed: least squares with forgetting and bounds, per class of engines.
//!
//! Rows are scaled by their own prediction, so a slow prefill and a quick step weigh alike, and parameters by their first
//! guess, so all start at one. What has been seen is kept as the normal equations, in which old lessons fade; after each
//! lesson coordinate descent finds the best parameters within a factor of their first guess. (The recursive form has no
//! place for bounds: a parameter cut off at its bound left the others to drift, without end where lessons are alike.) The
//! further a residual is beyond three times its usual size, the less a lesson weighs: an outlier moves little, a wrong
//! guess moves far in time.

use super::{StepModel, attention_area};
use crate::Timestamp;

const PARAMETERS: usize = 6;
const FORGETTING: f64 = 0.998;
/// Lessons that the first guess is worth: it decides between parameters that lessons cannot tell apart.
const PRIOR: f64 = 0.05;
/// A parameter stays within this factor of its first guess.
const BOUND: f64 = 30.0;
/// Rounds of coordinate descent per lesson, from where the last lesson left off.
const ROUNDS: usize = 4;

type Row = [f64; PARAMETERS];

/// What the step model of one class has learned.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    first: StepModel,
    model: StepModel,
    /// Parameters as multiples of the first guess: lin, quad, fix, fix0, per stream, per context.
    factors: Row,
    /// Sums over lessons of the products of what they say of two parameters, and of one and the time seen.
    products: [Row; PARAMETERS],
    seen: Row,
    /// Usual size of a relative residual.
    spread: f64,
}

impl Calibration {
    pub(crate) fn new(first: StepModel) -> Self {
        Self {
            first,
            model: first,
            factors: [1.0; PARAMETERS],
            products: [[0.0; PARAMETERS]; PARAMETERS],
            seen: [0.0; PARAMETERS],
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
        // Beyond a hundredfold only that it is far off counts.
        let residual = (seconds / predicted - 1.0).min(100.0);
        let usual = 3.0 * self.spread;
        let weight = (usual / residual.abs().max(usual)).min(1.0);
        let surprise = residual.abs().min(usual);
        self.spread = (self.spread + 0.05 * (surprise - self.spread)).clamp(0.03, 0.5);

        for ((line, seen), left) in self.products.iter_mut().zip(&mut self.seen).zip(row) {
            for (product, right) in line.iter_mut().zip(row) {
                *product = FORGETTING * *product + weight * left * right;
            }
            *seen = FORGETTING * *seen + weight * left * (1.0 + residual);
        }
        for _ in 0..ROUNDS {
            self.descend();
        }
        self.publish();
    }

    /// Moves every parameter to where it is best while the others stay.
    fn descend(&mut self) {
        for at in 0..PARAMETERS {
            let line = &self.products[at];
            let others = dot(line, &self.factors) - line[at] * self.factors[at];
            let best = (self.seen[at] + PRIOR - others) / (line[at] + PRIOR);
            self.factors[at] = best.clamp(1.0 / BOUND, BOUND);
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
