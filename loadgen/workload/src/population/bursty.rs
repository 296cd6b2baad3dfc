//! Short questions that share nothing and come in bursts: gamma-distributed gaps, most of them nearly nothing.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Draft, log_normal};
use crate::arrivals::Factor;
use crate::lengths::normal;
use crate::prompt::{Answer, Prompt, Run, own_block};
use crate::seed::{Purpose, stream};

/// At factor 1.
const REQUESTS_PER_SECOND: f64 = 60.0;
/// Of the gamma law of gaps; 1 would be Poisson. Counts over a second vary by about ten times as much as Poisson's.
const SHAPE: f64 = 0.01;

pub(super) fn draw(factor: Factor, requests: u64, seed: u64) -> Vec<Draft> {
    let mut arrivals = stream(seed, Purpose::Arrivals, 0);
    let mut at = 0.0;
    (0..requests)
        .map(|index| {
            at += gamma(&mut arrivals) / (SHAPE * REQUESTS_PER_SECOND * factor.get());
            let random = &mut stream(seed, Purpose::Population, index);
            let tokens = log_normal(random, 300.0, 0.8, 50.0, 1_500.0) as u32;
            Draft {
                at,
                prompt: Prompt::new([Run {
                    first: own_block(index),
                    tokens,
                }]),
                output_tokens: log_normal(random, 120.0, 0.7, 20.0, 400.0) as u32,
                answer: Answer::Nobodys,
                tenant: 0,
            }
        })
        .collect()
}

/// A gamma variate of shape [`SHAPE`] and scale 1: one of shape + 1 (Marsaglia and Tsang, 2000), drawn down by a power
/// of a uniform one.
fn gamma(random: &mut ChaCha8Rng) -> f64 {
    let depth = SHAPE + 1.0 - 1.0 / 3.0;
    let spread = 1.0 / (9.0 * depth).sqrt();
    loop {
        let deviate = normal(random);
        let cube = (1.0 + spread * deviate).powi(3);
        let bound = 0.5 * deviate * deviate + depth * (1.0 - cube + cube.ln());
        if cube > 0.0 && (1.0 - random.random::<f64>()).ln() < bound {
            let down = 1.0 - random.random::<f64>();
            return depth * cube * down.powf(1.0 / SHAPE);
        }
    }
}
