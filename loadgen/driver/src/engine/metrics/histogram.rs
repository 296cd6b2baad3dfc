//! Histograms with fixed bounds.

/// Counts per bound, not cumulative; the last one is beyond all bounds.
pub(in crate::engine) struct Histogram {
    bounds: &'static [f64],
    counts: Box<[u64]>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1].into_boxed_slice(),
            sum: 0.0,
        }
    }

    pub(in crate::engine) fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += value;
    }

    /// Both together; they have the same bounds.
    pub(super) fn merged(&self, other: &Self) -> Self {
        let counts = self
            .counts
            .iter()
            .zip(&other.counts)
            .map(|(a, b)| a + b)
            .collect();
        Self {
            bounds: self.bounds,
            counts,
            sum: self.sum + other.sum,
        }
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each bound with how many values do not exceed it; the last bound is infinite.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((bound, *total))
        })
    }
}

/// Bounds that vLLM 0.32 uses.
pub(super) mod bounds {
    pub(in super::super) const FIRST_TOKEN: &[f64] = &[
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
    ];
    pub(in super::super) const PER_TOKEN: &[f64] = &[
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0,
    ];
    pub(in super::super) const LATENCY: &[f64] = &[
        0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
        240.0, 480.0, 960.0, 1920.0, 7680.0,
    ];
    pub(in super::super) const TOKENS: &[f64] = &[
        1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
        20_000.0, 50_000.0, 100_000.0,
    ];
    pub(in super::super) const ITERATION: &[f64] = &[
        1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    ];
    pub(in super::super) const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
    pub(in super::super) const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_every_bound_it_does_not_exceed() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 9.0] {
            histogram.observe(value);
        }
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative, [(1.0, 2), (2.0, 3), (f64::INFINITY, 4)]);
        assert_eq!(histogram.count(), 4);
    }
}
