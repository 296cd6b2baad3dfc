//! The text format of a metrics page.

use std::fmt::Write;

use super::Histogram;

/// Which samples a scrape asked for.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Names {
    All,
    Only(Vec<String>),
}

impl Names {
    fn include(&self, sample: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|n| n == sample),
        }
    }
}

/// What a family is.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Gauge,
    Counter,
}

/// A page under construction. Families without a sample anybody asked for leave no trace.
pub(super) struct Page<'a> {
    names: &'a Names,
    text: String,
}

/// Label values escaped as little as the text format demands.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// `a="1",b="2"` of pairs that are already in order.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
        .collect();
    pairs.join(",")
}

impl<'a> Page<'a> {
    pub(super) fn new(names: &'a Names) -> Self {
        Self {
            names,
            text: String::with_capacity(16 * 1024),
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    pub(super) fn header(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        // As Python prints numbers: always with a point or an exponent.
        let _ = if labels.is_empty() {
            writeln!(self.text, "{name} {value:?}")
        } else {
            writeln!(self.text, "{name}{{{labels}}} {value:?}")
        };
    }

    /// One family of gauges or counters, one sample per set of labels.
    pub(super) fn family(&mut self, kind: Kind, name: &str, help: &str, samples: &[(&str, f64)]) {
        if !self.names.include(name) {
            return;
        }
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        self.header(name, kind, help);
        for (labels, value) in samples {
            self.sample(name, labels, *value);
        }
    }

    /// One family of histograms. Labels are sorted by name, so each series says which stand before `le`
    /// and which after it.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        series: &[(&str, &str, &Histogram)],
    ) {
        let [bucket, count, sum] =
            ["_bucket", "_count", "_sum"].map(|suffix| format!("{name}{suffix}"));
        let wanted = [&bucket, &count, &sum].map(|n| self.names.include(n));
        if !wanted.contains(&true) {
            return;
        }
        self.header(name, "histogram", help);
        for (before_le, after_le, histogram) in series {
            if wanted[0] {
                for (bound, n) in histogram.cumulative() {
                    let bound = if bound.is_finite() {
                        format!("{bound:?}")
                    } else {
                        "+Inf".to_owned()
                    };
                    let _ = writeln!(
                        self.text,
                        "{bucket}{{{before_le},le=\"{bound}\",{after_le}}} {n}.0"
                    );
                }
            }
            let labels = format!("{before_le},{after_le}");
            if wanted[1] {
                self.sample(&count, &labels, histogram.count() as f64);
            }
            if wanted[2] {
                self.sample(&sum, &labels, histogram.sum());
            }
        }
    }
}
