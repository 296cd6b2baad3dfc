//! Counters of the metrics page, and what they amount to per second.

use std::collections::BTreeMap;

use serde::Serialize;

const PREFIX: &str = "headpond_scheduler_";

/// The counters of one moment.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counters {
    /// Waits that ended, by outcome.
    outcomes: BTreeMap<String, f64>,
    /// Requests that ended, by outcome.
    requests: BTreeMap<String, f64>,
    sums: BTreeMap<&'static str, f64>,
}

/// What happened per second between two moments.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    /// Requests that asked for a turn and have had their answer to that.
    pub(super) judged: f64,
    pub(super) dispatched: f64,
    /// By code.
    pub(super) refused: BTreeMap<String, f64>,
    /// By outcome.
    pub(super) ended: BTreeMap<String, f64>,
    /// Work dispatched, in WTU.
    pub(super) wtu: f64,
    pub(super) retries: f64,
    /// Targets of running streams that were expected to be missed.
    pub(super) misses: f64,
    pub(super) held: f64,
    pub(super) late: f64,
    /// Mean seconds in the queue of what was dispatched.
    pub(super) wait_s: Option<f64>,
    /// Mean seconds to the first output of what has begun to stream.
    pub(super) first_token_s: Option<f64>,
}

const SUMS: [&str; 9] = [
    "charged_wtu_total",
    "retries_total",
    "expected_misses_total",
    "held_total",
    "late_total",
    "queue_wait_seconds_sum",
    "queue_wait_seconds_count",
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
];

impl Counters {
    /// Reads a metrics page; what it does not have counts nothing.
    pub(super) fn read(page: &str) -> Self {
        let mut counters = Self::default();
        for line in page.lines().filter_map(|line| line.strip_prefix(PREFIX)) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value: f64 = value.parse().unwrap_or_default();
            let outcome = || label(labels, "outcome").unwrap_or_default().to_owned();
            match name {
                "outcomes_total" => *counters.outcomes.entry(outcome()).or_default() += value,
                "requests_total" => *counters.requests.entry(outcome()).or_default() += value,
                _ => {
                    if let Some(known) = SUMS.iter().find(|known| **known == name) {
                        *counters.sums.entry(known).or_default() += value;
                    }
                }
            }
        }
        counters
    }

    /// What was added to `before` in so many seconds. A process that started anew counts from zero.
    pub(super) fn since(&self, before: &Self, seconds: f64) -> Rates {
        let per_second = |now: f64, then: f64| (now - then).max(0.0) / seconds.max(1e-3);
        let each = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            now.iter()
                .map(|(name, value)| {
                    let then = then.get(name).copied().unwrap_or_default();
                    (name.clone(), per_second(*value, then))
                })
                .filter(|(_, rate)| *rate > 0.0)
                .collect::<BTreeMap<_, _>>()
        };
        let value = |counters: &Self, name| counters.sums.get(name).copied().unwrap_or_default();
        let sum = |name| per_second(value(self, name), value(before, name));
        let mean = |total, count| (sum(count) > 0.0).then(|| sum(total) / sum(count));
        let mut refused = each(&self.outcomes, &before.outcomes);
        // A sum of nothing is -0, and would be shown so.
        let judged = refused.values().fold(0.0, |sum, rate| sum + rate);
        let dispatched = refused.remove("dispatched").unwrap_or_default();
        Rates {
            judged,
            dispatched,
            refused,
            ended: each(&self.requests, &before.requests),
            wtu: sum("charged_wtu_total"),
            retries: sum("retries_total"),
            misses: sum("expected_misses_total"),
            held: sum("held_total"),
            late: sum("late_total"),
            wait_s: mean("queue_wait_seconds_sum", "queue_wait_seconds_count"),
            first_token_s: mean(
                "time_to_first_token_seconds_sum",
                "time_to_first_token_seconds_count",
            ),
        }
    }
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels
        .trim_end_matches('}')
        .split(',')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""))
        .map(|value| value.trim_end_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# HELP headpond_scheduler_outcomes x\n\
        headpond_scheduler_outcomes_total{band=\"0\",outcome=\"dispatched\"} 10\n\
        headpond_scheduler_charged_wtu_total 5.5\n\
        headpond_scheduler_queue_wait_seconds_sum{band=\"0\"} 1.0\n\
        headpond_scheduler_queue_wait_seconds_count{band=\"0\"} 10\n";
    const AFTER: &str = "headpond_scheduler_outcomes_total{band=\"0\",outcome=\"dispatched\"} 14\n\
        headpond_scheduler_outcomes_total{band=\"1\",outcome=\"dispatched\"} 2\n\
        headpond_scheduler_outcomes_total{band=\"0\",outcome=\"shed\"} 1\n\
        headpond_scheduler_requests_total{outcome=\"completed\"} 8\n\
        headpond_scheduler_charged_wtu_total 25.5\n\
        headpond_scheduler_queue_wait_seconds_sum{band=\"0\"} 2.5\n\
        headpond_scheduler_queue_wait_seconds_count{band=\"0\"} 13\n\
        headpond_governance_requests_total{outcome=\"x\"} 999\n";

    #[test]
    fn rates_are_what_was_added_per_second() {
        let rates = Counters::read(AFTER).since(&Counters::read(BEFORE), 2.0);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(
            near(rates.judged, 3.5) && near(rates.dispatched, 3.0),
            "{rates:?}"
        );
        assert_eq!(rates.refused, BTreeMap::from([("shed".to_owned(), 0.5)]));
        assert_eq!(rates.ended, BTreeMap::from([("completed".to_owned(), 4.0)]));
        assert!(near(rates.wtu, 10.0), "{rates:?}");
        assert!(
            rates.wait_s.is_some_and(|wait| near(wait, 0.5)),
            "{rates:?}"
        );
        assert_eq!(rates.first_token_s, None);
    }

    #[test]
    fn a_process_that_started_anew_has_no_negative_rates() {
        let rates = Counters::read(BEFORE).since(&Counters::read(AFTER), 1.0);
        assert_eq!(rates, Rates::default());
        assert!(rates.judged.is_sign_positive(), "{rates:?}");
    }
}
