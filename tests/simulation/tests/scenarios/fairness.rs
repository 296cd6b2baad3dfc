//! Shares between tenants of one band.

use governance_context::Band;
use pool_simulator::{Load, Outcome};

use crate::crowd::{Habit, crowd, offers};
use crate::{refused, refusing, run};

/// Four skewed tenants at about the load that eight engines sustain: all ask for as many requests, from chats of 500 tokens
/// to documents of 30,000.
pub(crate) const SAME_COUNT: [Habit; 4] = [
    Habit::new(3.5, 30_000, 300),
    Habit::new(3.5, 8_000, 300),
    Habit::new(3.5, 2_000, 300),
    Habit::new(3.5, 500, 200),
];
/// All ask for as much work, in requests of very different length.
pub(crate) const SAME_WORK: [Habit; 4] = [
    Habit::new(1.3, 30_000, 300),
    Habit::new(4.7, 8_000, 300),
    Habit::new(15.7, 2_000, 300),
    Habit::new(45.0, 500, 200),
];
/// One asks for ten times what each of the others does.
pub(crate) const ONE_HOG: [Habit; 4] = [
    Habit::new(11.7, 10_000, 300),
    Habit::new(0.4, 30_000, 300),
    Habit::new(4.5, 2_000, 300),
    Habit::new(13.0, 500, 200),
];

const CROWDS: [(&str, [Habit; 4]); 3] = [
    ("same count", SAME_COUNT),
    ("same work", SAME_WORK),
    ("one hog", ONE_HOG),
];

pub(crate) fn times(habits: [Habit; 4], factor: f64) -> [Habit; 4] {
    habits.map(|habit| habit.times(factor))
}

#[test]
fn four_skewed_tenants_share_fairly_at_twice_what_the_pool_sustains() {
    for (name, habits) in CROWDS {
        let outcome = run(&refusing(), &crowd(&times(habits, 2.0), 1));
        let figures = outcome.figures();
        let refused: Vec<f64> = (0..4)
            .map(|tenant| refused(&outcome, |record| record.tenant == tenant))
            .collect();
        println!(
            "{name:<11} × 2: Jain {:.4}, wasted prefill {:.4}, refused {refused:.3?}",
            figures.jain, figures.wasted_prefill
        );
        assert!(figures.jain >= 0.99, "{name}: Jain {}", figures.jain);
        assert!(figures.wasted_prefill <= 0.01, "{name}");
    }
}

#[test]
fn four_skewed_tenants_share_fairly_at_four_times_what_the_pool_sustains() {
    // Beside one hog 0.979 to 0.993 over three seeds, and 0.996 in two minutes.
    for (name, habits, least) in [
        ("same count", SAME_COUNT, 0.99),
        ("same work", SAME_WORK, 0.99),
        ("one hog", ONE_HOG, 0.97),
    ] {
        let habits = times(habits, 4.0).map(|habit| habit.during(0.0, 40.0));
        let figures = run(&refusing(), &crowd(&habits, 1)).figures();
        println!("{name:<11} × 4: Jain {:.4}", figures.jain);
        assert!(figures.jain >= least, "{name}: Jain {}", figures.jain);
    }
}

#[test]
fn without_overload_the_fair_order_costs_nothing() {
    for (name, habits) in CROWDS {
        for seed in [1, 2] {
            let mut requests = offers(&times(habits, 0.7), seed);
            let four = run(&refusing(), &Load::new(requests.clone()));
            for offer in &mut requests {
                offer.planned.tenant = 0;
            }
            let one = run(&refusing(), &Load::new(requests));
            let goodput = |outcome: &Outcome| outcome.figures().goodput * 100.0;
            let cost = goodput(&one) - goodput(&four);
            println!(
                "{name:<11} × 0.7, seed {seed}: {:.2} % as four, cost {cost:.2} points",
                goodput(&four)
            );
            assert!(cost <= 0.3, "{name}, seed {seed}: {cost} points");
        }
    }
}

#[test]
fn tenants_of_two_bands_share_fairly_inside_each() {
    // Inside the top band nobody lacks anything. The low band gets what is left, in gaps that suit short prompts.
    for (name, habits, least) in [
        ("same count", SAME_COUNT, 0.99),
        ("same work", SAME_WORK, 0.96),
        ("one hog", ONE_HOG, 0.85),
    ] {
        let top = times(habits, 0.4).map(|habit| habit.in_band(1));
        let all: Vec<Habit> = top.into_iter().chain(times(habits, 1.6)).collect();
        let outcome = run(&refusing(), &crowd(&all, 1));
        let of = |band: i32| outcome.figures_where(|record| record.band == Band(band));
        let (top, low) = (of(1), of(0));
        println!(
            "{name:<11} × 2 in two bands: top goodput {:.2} %, Jain {:.4}; low goodput {:.2} %, Jain {:.4}",
            top.goodput * 100.0,
            top.jain,
            low.goodput * 100.0,
            low.jain
        );
        assert!(top.goodput >= 0.98, "{name}: {}", top.goodput);
        assert!(low.jain >= least, "{name}: {}", low.jain);
        assert!(outcome.figures().wasted_prefill <= 0.01, "{name}");
    }
}
