//! The step model, its cost, and what it learns.

use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::Timestamp;

/// 70B on eight H100, as the simulated engine has it.
const TRUTH: StepModel = StepModel {
    lin: 44.4e-6,
    quad: 6.6e-10,
    fix: 15.2e-3,
    fix0: 15.2e-3,
    per_stream: 26e-6,
    per_context: 1.74e-8,
    batch: 8192.0,
};

fn worst_error(calibration: &Calibration, truth: &StepModel) -> f64 {
    let model = calibration.model();
    let mut worst: f64 = 0.0;
    for (u, c, d, k) in [
        (500, 0, 5.0, 10_000.0),
        (7_000, 2_000, 30.0, 200_000.0),
        (30_000, 0, 60.0, 400_000.0),
    ] {
        let area = attention_area(u, c);
        for (mine, real) in [
            (
                model.prefill(f64::from(u), area, model.over(d, k)),
                truth.prefill(f64::from(u), area, truth.over(d, k)),
            ),
            (
                model.decode_step(model.over(d, k)),
                truth.decode_step(truth.over(d, k)),
            ),
        ] {
            worst = worst.max((mine / real - 1.0).abs());
        }
    }
    worst
}

fn sample(calibration: &mut Calibration, truth: &StepModel, rng: &mut ChaCha8Rng, outlier: f64) {
    let (u, c) = (rng.random_range(50..30_000), rng.random_range(0..20_000));
    let (d, k) = (
        f64::from(rng.random_range(0..80u32)),
        rng.random_range(0.0..600_000.0),
    );
    let noise = rng.random_range(0.95..1.05) * outlier;
    let seconds = truth.prefill(f64::from(u), attention_area(u, c), truth.over(d, k)) * noise;
    calibration.prefilled(u, c, d, k, seconds);
    calibration.decoded(d, k, truth.decode_step(truth.over(d, k)) * noise);
}

#[test]
fn a_model_started_from_a_wrong_rate_finds_the_truth() {
    for (start, seed) in [(22_000.0, 1), (5_000.0, 2), (80_000.0, 3)] {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut calibration = Calibration::new(StepModel::from_prefill_rate(start, 8192));
        for _ in 0..300 {
            sample(&mut calibration, &TRUTH, &mut rng, 1.0);
        }
        let error = worst_error(&calibration, &TRUTH);
        assert!(error < 0.12, "started from {start} tokens/s: {error}");
    }
}

#[test]
fn one_observation_in_ten_may_be_absurd() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut calibration = Calibration::new(StepModel::from_prefill_rate(15_000.0, 8192));
    for round in 0..600 {
        sample(
            &mut calibration,
            &TRUTH,
            &mut rng,
            if round % 10 == 9 { 20.0 } else { 1.0 },
        );
    }
    let error = worst_error(&calibration, &TRUTH);
    assert!(error < 0.35, "{error}");
}

#[test]
fn an_engine_that_slows_down_is_noticed() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut calibration = Calibration::new(StepModel::from_prefill_rate(22_000.0, 8192));
    let slow = StepModel {
        lin: TRUTH.lin * 2.0,
        fix: TRUTH.fix * 2.0,
        fix0: TRUTH.fix0 * 2.0,
        ..TRUTH
    };
    for truth in [TRUTH, slow] {
        for _ in 0..1500 {
            sample(&mut calibration, &truth, &mut rng, 1.0);
        }
        let error = worst_error(&calibration, &truth);
        assert!(error < 0.15, "{error}");
    }
}

#[test]
fn the_pace_of_a_slow_engine_is_learned_and_bounded() {
    let mut pace = Pace::new();
    for _ in 0..100 {
        pace.observe(3.0, pace.factor());
    }
    assert!((2.4..=3.05).contains(&pace.factor()), "{}", pace.factor());
    for _ in 0..1000 {
        pace.observe(1e9, pace.factor());
    }
    assert!(pace.factor() <= 8.01);
    let mut similar = Pace::new();
    for _ in 0..100 {
        similar.observe(1.1, 1.0);
    }
    assert!((similar.factor() - 1.0).abs() < 1e-9, "a tenth is nothing");
    pace.relax(Timestamp(1_000_000_000));
    for minute in 1..=20 {
        pace.relax(Timestamp(1_000_000_000 + minute * 60_000_000_000));
    }
    assert!((pace.factor() - 1.0).abs() < 1e-9, "forgotten");
}

#[test]
fn duplicate_work_gets_dearer_with_load_up_to_a_bound() {
    for (prefill, kv, expected) in [
        (0.0, 0.0, 0.0),
        (0.5, 0.1, 1.0),
        (0.1, 0.75, 3.0),
        (5.0, 0.0, 20.0),
        (0.0, 9.0, 20.0),
    ] {
        assert!(
            (kappa(1.0, prefill, kv) - expected).abs() < 1e-9,
            "{prefill} {kv}"
        );
    }
}

#[test]
fn every_term_of_the_cost_counts() {
    let offer = Offer {
        queue_s: 1.0,
        prefill_s: 2.0,
        decoding: 10.0,
        context_s: 0.001,
        handicap_s: 0.25,
    };
    // 1 + 2·(1 + 0.02·10) + κ·(2 − least) + 0.3·300·0.001 + 0.25
    for (kappa, least, expected) in [
        (0.0, 2.0, 3.74),
        (3.0, 2.0, 3.74),
        (3.0, 1.5, 5.24),
        (20.0, 1.0, 23.74),
    ] {
        assert!(
            (cost(&offer, kappa, least) - expected).abs() < 1e-9,
            "{kappa} {least}"
        );
    }
}

fn offer(
    model: &StepModel,
    prompt: u32,
    cached: u32,
    pending: f64,
    decoding: f64,
    context: f64,
) -> Offer {
    let over = model.over(decoding, context);
    let uncached = prompt - cached;
    Offer {
        queue_s: if pending > 0.0 {
            model.prefill(pending, pending * pending / 2.0, over)
        } else {
            0.0
        },
        prefill_s: model.prefill(f64::from(uncached), attention_area(uncached, cached), over),
        decoding,
        context_s: model.per_context * context,
        handicap_s: 0.0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn more_cached_or_less_load_never_makes_an_endpoint_worse(
        prompt in 1..100_000u32, cached in 0.0..1.0f64, more in 0.0..1.0f64, pending in 0.0..50_000.0f64,
        decoding in 0.0..200.0f64, context in 0.0..1e6f64, less in 0.0..1.0f64, rho in 0.0..1.5f64, other in 0.0..10.0f64,
    ) {
        let model = StepModel::from_prefill_rate(20_000.0, 8192);
        let cached = (f64::from(prompt - 1) * cached) as u32;
        let more = cached + (f64::from(prompt - 1 - cached) * more) as u32;
        let kappa = kappa(1.0, rho, 0.0);
        let price = |offer: &Offer| cost(offer, kappa, offer.prefill_s.min(other));
        let base = price(&offer(&model, prompt, cached, pending, decoding, context));
        prop_assert!(price(&offer(&model, prompt, more, pending, decoding, context)) <= base + 1e-9);
        prop_assert!(price(&offer(&model, prompt, cached, pending * less, decoding * less, context * less)) <= base + 1e-9);
    }

    #[test]
    fn whatever_is_observed_the_model_stays_positive_and_finite(seed in any::<u64>()) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut calibration = Calibration::new(StepModel::from_prefill_rate(20_000.0, 8192));
        for _ in 0..300 {
            let seconds = f64::from_bits(rng.next_u64());
            calibration.prefilled(rng.random(), rng.random_range(0..1_000_000), rng.random_range(0.0..1e3), rng.random_range(0.0..1e7), seconds);
            calibration.decoded(rng.random_range(0.0..1e3), rng.random_range(0.0..1e7), f64::from_bits(rng.next_u64()));
        }
        let StepModel { lin, quad, fix, fix0, per_stream, per_context, .. } = *calibration.model();
        for value in [lin, quad, fix, fix0, per_stream, per_context] {
            prop_assert!(value.is_finite() && value > 0.0);
        }
    }
}
