//! Steps of load, and a time without metrics.

use pool_simulator::{End, Outcome, Scenario};
use scheduler_core::PoolConfig;

use crate::crowd::{Habit, crowd};
use crate::{refused, refusing, run};

/// A quarter of what eight engines sustain.
const CALM: [Habit; 2] = [Habit::new(3.0, 6_000, 300), Habit::new(6.0, 800, 250)];

#[test]
fn case_01_a_step_of_ten_times_the_load_waits_here_and_not_inside_the_engines() {
    let step = CALM.map(|habit| habit.times(9.0).during(15.0, 25.0));
    let all: Vec<Habit> = CALM.into_iter().chain(step).collect();
    for scenario in [
        refusing(),
        Scenario {
            refuse: scheduler_core::flow::Refuse::Never,
            ..refusing()
        },
    ] {
        let outcome = run(&scenario, &crowd(&all, 1));
        let late = outcome.figures_where(|record| record.arrived_s >= 50.0);
        println!(
            "{:?}: deepest engine queue {}, refused {:.2} %, goodput of who came 25 s later {:.2} %",
            scenario.refuse,
            outcome.deepest_engine_queue,
            100.0 * refused(&outcome, |_| true),
            100.0 * late.goodput
        );
        assert!(outcome.deepest_engine_queue <= PoolConfig::default().engine.depth);
        assert!(
            late.goodput >= 0.999,
            "the backlog is gone: {}",
            late.goodput
        );
    }
}

fn completed(outcome: &Outcome, from: f64, to: f64) -> usize {
    let ended = |record: &&pool_simulator::Record| {
        record.end == End::Completed && (from..to).contains(&(record.arrived_s + record.total_s))
    };
    outcome.records.iter().filter(ended).count()
}

#[test]
fn case_02_ten_seconds_without_metrics_cost_neither_throughput_nor_a_refusal() {
    let habits = CALM.map(|habit| habit.times(2.6));
    for engines in [8, 1] {
        let habits = habits.map(|habit| habit.times(f64::from(engines) / 8.0));
        let load = crowd(&habits, 1);
        let with = |blackout| {
            let scenario = Scenario {
                engines,
                blackout,
                ..refusing()
            };
            run(&scenario, &load)
        };
        let (seen, dark) = (with(None), with(Some((30.0, 40.0))));
        let throughput = |outcome: &Outcome| completed(outcome, 30.0, 40.0);
        println!(
            "{engines} engines: completed in these 10 s {} with metrics, {} without; goodput {:.2} / {:.2} %",
            throughput(&seen),
            throughput(&dark),
            100.0 * seen.figures().goodput,
            100.0 * dark.figures().goodput
        );
        assert!(throughput(&dark) as f64 >= 0.95 * throughput(&seen) as f64);
        assert!(refused(&dark, |_| true) <= refused(&seen, |_| true) + 0.002);
    }
}
