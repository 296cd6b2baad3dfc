//! What a load found, as a table and as JSON. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Version of the JSON form: raised when a field changes its meaning or goes, not when one is added.
pub const SCHEMA: &str = "headpond.load/1";

/// What the figures mean.
pub const DEFINITIONS: &str = "\
All times count from the intended time of a request (when the schedule wanted it sent) and are given as they would be
at speed 1. Only complete answers have latencies.
TTFT      intended time to the first event with output (headers do not count: servers send them before admission)
TPOT      (last output - first output) / (output tokens - 1), answers of two tokens or more
E2E       intended time to the last byte
goodput   requests that met their targets / requests offered, except those whose client left on purpose;
          refused, failed and late ones count against it. TPOT is judged for answers of 16 tokens or more
WTU       work served: a prompt token counts 1, a cached one 0.1, a generated one 2. Of answers that ended while requests
          were still being sent, or whose TTFT met its target: what is worked off afterwards says nothing about shares
Jain      Jain's index over the WTU served to each tenant as a multiple of its max-min fair share; 1 is fair
wait      how long a request waited for an engine, as the server tells in x-headpond-queue-ms
hit ratio cached prompt tokens / prompt tokens, both as the engine reports them in usage
refused   answers with an error status, by status and code
failed    connect, timeout, cut (connection or stream ended early), error_in_stream, unreadable
lag       how late the generator itself sent a request, in real time";

/// The report of one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub verdict: Verdict,
    pub load: String,
    pub target: String,
    pub speed: f64,
    pub seed: u64,
    pub slo: String,
    pub offered: u64,
    pub completed: u64,
    /// Clients that left on purpose.
    pub left: u64,
    /// By status and code.
    pub refused: BTreeMap<String, u64>,
    /// By kind.
    pub failed: BTreeMap<String, u64>,
    /// Most requests that ever waited inside one engine, where that is known: on virtual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deepest_engine_queue: Option<u32>,
    /// Lateness of the generator, in real time.
    pub lag_s: Option<Quantiles>,
    /// Absent unless the verdict is valid: figures of a load that was not sent as planned are not reported.
    pub figures: Option<Figures>,
}

/// Whether the load was sent as planned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    Valid,
    /// The generator was later than its bound; its machine is too busy, or the bound on requests in flight was hit.
    Lagged {
        p99_s: f64,
        bound_s: f64,
    },
    /// Nothing was offered.
    Empty,
    /// Nothing was answered, and no client left on purpose: this says nothing of the server's speed.
    Unanswered,
}

/// What the clients saw.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    pub duration_s: f64,
    pub offered_per_s: f64,
    pub goodput: Option<f64>,
    pub ttft_s: Option<Quantiles>,
    pub tpot_s: Option<Quantiles>,
    pub e2e_s: Option<Quantiles>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub hit_ratio: Option<f64>,
    pub output_tokens: u64,
    pub output_tokens_per_s: f64,
    /// How fairly work was given out, where there are several tenants.
    pub jain: Option<f64>,
    pub tenants: BTreeMap<String, PartFigures>,
    /// Of the bands that are known.
    pub bands: BTreeMap<i32, PartFigures>,
    /// Second by second since the start; not in the table.
    pub timeline: Vec<Second>,
}

/// What happened in one second of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Second {
    /// Intended for it.
    pub offered: u64,
    /// Of those, refused, whenever that was.
    pub refused: u64,
    /// Answers that ended in it.
    pub completed: u64,
    /// WTU of the answered requests that went to an engine in it, by band, where the server tells how long each waited.
    pub work: BTreeMap<i32, f64>,
}

/// The share of one tenant, or of one band, in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartFigures {
    pub offered: u64,
    pub completed: u64,
    pub refused: u64,
    /// By status and code.
    pub refused_by: BTreeMap<String, u64>,
    pub failed: u64,
    pub left: u64,
    pub goodput: Option<f64>,
    pub output_tokens: u64,
    pub ttft_s: Option<Quantiles>,
    /// Of complete answers whose server tells how long they waited.
    pub wait_s: Option<Quantiles>,
    /// WTU served.
    pub wtu: f64,
    /// Of what was served to all tenants, or to all bands.
    pub wtu_share: Option<f64>,
}

/// A distribution of times in seconds, exact to three digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub mean: f64,
    pub max: f64,
}

impl Report {
    /// Whether the figures stand.
    pub fn is_valid(&self) -> bool {
        self.verdict == Verdict::Valid
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid => write!(formatter, "valid"),
            Self::Lagged { p99_s, bound_s } => write!(
                formatter,
                "INVALID: the generator lagged its own schedule by {:.1} ms (p99, bound {:.1} ms), so this was not the \
                 load asked for. Use a less busy machine, a lower rate or speed, or more requests in flight",
                p99_s * 1e3,
                bound_s * 1e3
            ),
            Self::Empty => write!(formatter, "INVALID: no request was offered"),
            Self::Unanswered => write!(
                formatter,
                "INVALID: no request was answered; what is refused and failed says why. Check the address, the key and the \
                 model"
            ),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "load      {} to {}, seed {}, speed {}",
            self.load, self.target, self.seed, self.speed
        )?;
        writeln!(
            formatter,
            "offered   {}   completed {}   refused {}   failed {}   left {}",
            self.offered,
            self.completed,
            self.refused.values().sum::<u64>(),
            self.failed.values().sum::<u64>(),
            self.left
        )?;
        counts(formatter, "refused", &self.refused)?;
        counts(formatter, "failed", &self.failed)?;
        if let Some(figures) = &self.figures {
            write!(formatter, "{figures}")?;
            writeln!(formatter, "targets   {}", self.slo)?;
        }
        if let Some(lag) = &self.lag_s {
            writeln!(
                formatter,
                "lag       p50 {:.1} ms   p99 {:.1} ms   max {:.1} ms",
                lag.p50 * 1e3,
                lag.p99 * 1e3,
                lag.max * 1e3
            )?;
        }
        writeln!(formatter, "verdict   {}", self.verdict)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "goodput   {} of offered", percent(self.goodput))?;
        writeln!(
            formatter,
            "{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "p50", "p90", "p99", "mean", "max"
        )?;
        quantiles(formatter, "TTFT s", self.ttft_s.as_ref(), 1.0)?;
        quantiles(formatter, "TPOT ms", self.tpot_s.as_ref(), 1e3)?;
        quantiles(formatter, "E2E s", self.e2e_s.as_ref(), 1.0)?;
        writeln!(
            formatter,
            "tokens    {} prompt, {} of them cached   {} output, {:.0}/s",
            self.prompt_tokens,
            percent(self.hit_ratio),
            self.output_tokens,
            self.output_tokens_per_s
        )?;
        writeln!(
            formatter,
            "time      {:.1} s, {:.2} requests/s offered",
            self.duration_s, self.offered_per_s
        )?;
        if self.tenants.len() > 1 {
            self.tenants
                .iter()
                .try_for_each(|(name, tenant)| tenant.row(formatter, "tenant", name))?;
        }
        // Band 0 alone is whatever nobody said anything about, and the same as the whole.
        if self.bands.keys().any(|band| *band != 0) {
            self.bands
                .iter()
                .try_for_each(|(band, of_it)| of_it.row(formatter, "band", band))?;
        }
        if let Some(jain) = self.jain {
            writeln!(formatter, "Jain      {jain:.4}")?;
        }
        Ok(())
    }
}

impl PartFigures {
    fn row(
        &self,
        formatter: &mut fmt::Formatter<'_>,
        kind: &str,
        name: &dyn fmt::Display,
    ) -> fmt::Result {
        let times = |name, times: Option<Quantiles>| {
            times.map_or_else(String::new, |times| {
                format!(
                    "   {name} p50 {:.3} p90 {:.3} p99 {:.3} s",
                    times.p50, times.p90, times.p99
                )
            })
        };
        writeln!(
            formatter,
            "{kind:<10}{name}: offered {}   completed {}   refused {}   failed {}   goodput {}   WTU {}{}{}",
            self.offered,
            self.completed,
            self.refused,
            self.failed,
            percent(self.goodput),
            percent(self.wtu_share),
            times("TTFT", self.ttft_s),
            times("wait", self.wait_s)
        )
    }
}

fn counts(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    counts: &BTreeMap<String, u64>,
) -> fmt::Result {
    counts
        .iter()
        .try_for_each(|(code, count)| writeln!(formatter, "{name:<10}{count:>8}  {code}"))
}

fn quantiles(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    times: Option<&Quantiles>,
    unit: f64,
) -> fmt::Result {
    let Some(times) = times else {
        return writeln!(formatter, "{name:<10}{:>10}", "-");
    };
    write!(formatter, "{name:<10}")?;
    for time in [times.p50, times.p90, times.p99, times.mean, times.max] {
        write!(formatter, "{:>10.3}", time * unit)?;
    }
    writeln!(formatter)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}
