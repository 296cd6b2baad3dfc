//! The table: every figure beside its ratio to nginx in the same run.

use std::collections::BTreeMap;
use std::fmt;

use crate::client::Shape;
use crate::subjects::Cost;

pub(crate) const BASELINE: &str = "nginx round robin";

#[derive(Default)]
pub(crate) struct Report {
    costs: BTreeMap<(Shape, String), Cost>,
    latencies: BTreeMap<(Shape, String), (f64, f64)>,
}

impl Report {
    /// Keeps the least CPU of the repeats: what else ran on the machine only adds.
    pub(crate) fn cost(&mut self, shape: Shape, subject: &str, cost: Cost) {
        let kept = self
            .costs
            .entry((shape, subject.to_owned()))
            .or_insert(cost);
        if cost.cpu_us < kept.cpu_us {
            *kept = cost;
        }
    }

    /// Keeps the least median of the repeats.
    pub(crate) fn latency(&mut self, shape: Shape, subject: &str, sorted: &[f64]) {
        let at = |share: f64| {
            sorted
                .get((sorted.len() as f64 * share) as usize)
                .copied()
                .unwrap_or(f64::NAN)
        };
        let seen = (at(0.5), at(0.99));
        let kept = self
            .latencies
            .entry((shape, subject.to_owned()))
            .or_insert(seen);
        if seen.0 < kept.0 {
            *kept = seen;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "CPU of the server, least of the repeats")?;
        writeln!(
            formatter,
            "{:<26} {:<28} {:>12} {:>8} {:>8}",
            "load", "server", "µs", "× nginx", "MiB"
        )?;
        for ((shape, subject), cost) in &self.costs {
            let baseline = self
                .costs
                .get(&(*shape, BASELINE.to_owned()))
                .map_or(f64::NAN, |cost| cost.cpu_us);
            let unit = if shape.units() == 1 {
                "/request"
            } else {
                "/chunk"
            };
            let each = cost.cpu_us / shape.units() as f64;
            let ratio = cost.cpu_us / baseline;
            let mib = cost.resident / (1 << 20);
            writeln!(
                formatter,
                "{:<26} {subject:<28} {each:>8.2}{unit:<9} {ratio:>5.2} {mib:>6}",
                shape.to_string()
            )?;
        }
        writeln!(
            formatter,
            "\nTime to the first byte of the body at 1,000 requests/s"
        )?;
        writeln!(
            formatter,
            "{:<26} {:<28} {:>10} {:>10} {:>12}",
            "load", "server", "p50 µs", "p99 µs", "p50 added µs"
        )?;
        for ((shape, subject), (p50, p99)) in &self.latencies {
            let direct = self
                .latencies
                .get(&(*shape, "direct".to_owned()))
                .map_or(f64::NAN, |direct| direct.0);
            writeln!(
                formatter,
                "{:<26} {subject:<28} {:>10.0} {:>10.0} {:>12.0}",
                shape.to_string(),
                p50 * 1e6,
                p99 * 1e6,
                (p50 - direct) * 1e6
            )?;
        }
        Ok(())
    }
}
