//! What the users of a simulated pool felt.

use std::fmt;

/// Figures of one run. Times in seconds of virtual time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    good: u64,
    refused: u64,
    pub prompt_tokens: u64,
    /// Of these, found in an engine's cache.
    pub cached_tokens: u64,
    /// Attempts taken from an engine that was believed to hang.
    pub abandoned: u64,
}

impl Figures {
    pub(crate) fn completed(&mut self, ttft: f64, tpot: f64, good: bool) {
        self.ttft.push(ttft);
        self.tpot.push(tpot);
        self.good += u64::from(good);
    }

    pub(crate) fn refused(&mut self) {
        self.refused += 1;
    }

    /// Requests that have their outcome.
    pub fn ended(&self) -> u64 {
        self.ttft.len() as u64 + self.refused
    }

    /// Share of all offered requests that met both targets.
    pub fn goodput(&self) -> f64 {
        self.good as f64 / self.ended().max(1) as f64
    }

    /// A quantile of the time to first token.
    pub fn ttft(&self, share: f64) -> f64 {
        quantile(&self.ttft, share)
    }

    /// A quantile of the mean time per output token.
    pub fn tpot(&self, share: f64) -> f64 {
        quantile(&self.tpot, share)
    }

    /// Share of prompt tokens that were not computed.
    pub fn hit_ratio(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "goodput {:5.1} %  TTFT p50 {:6.2} s  p90 {:6.2} s  p99 {:6.2} s  TPOT p99 {:6.1} ms  hit {:4.1} %",
            self.goodput() * 100.0,
            self.ttft(0.5),
            self.ttft(0.9),
            self.ttft(0.99),
            self.tpot(0.99) * 1e3,
            self.hit_ratio() * 100.0
        )
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() as f64 * share) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}
