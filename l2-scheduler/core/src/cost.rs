//! What a step of an engine costs, and what a request would cost on each endpoint, in seconds.

mod calibration;
#[cfg(test)]
mod tests;

pub(crate) use calibration::{Calibration, Pace};

/// Weight of decoding streams that a prefill slows down.
const BETA: f64 = 0.02;
/// Weight of the own decode slow-down.
const GAMMA: f64 = 0.3;
/// Output tokens assumed for the own decode slow-down.
const TYPICAL_OUTPUT: f64 = 300.0;
/// Price of duplicate work at most.
const MAX_KAPPA: f64 = 20.0;
/// Utilisation is capped here, or the price would have no bound.
const MAX_UTILISATION: f64 = 0.97;

/// The step model of one class of engines; all in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepModel {
    /// Per uncached token.
    pub(crate) lin: f64,
    /// Per pair of a computed token and a token it attends to.
    pub(crate) quad: f64,
    /// Fixed part of a step that prefills.
    pub(crate) fix: f64,
    /// Fixed part of a step that only decodes.
    pub(crate) fix0: f64,
    /// Per decoding stream and step.
    pub(crate) per_stream: f64,
    /// Per token of decoding context and step.
    pub(crate) per_context: f64,
    /// Tokens per step.
    pub(crate) batch: f64,
}

impl StepModel {
    /// Everything guessed from the peak prefill rate; the ratios are typical of transformer engines on GPUs.
    pub(crate) fn from_prefill_rate(rate: f64, batch_tokens: u32) -> Self {
        let lin = 1.0 / rate.max(1.0);
        let fixed = (330.0 * lin).clamp(0.003, 0.05);
        Self {
            lin,
            quad: 2e-5 * lin,
            fix: fixed,
            fix0: fixed,
            per_stream: 0.6 * lin,
            per_context: 6e-4 * lin,
            batch: f64::from(batch_tokens.max(1)),
        }
    }

    /// Whether any parameter is another by more than a thousandth.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let parameters = |model: &Self| {
            let tokens = [model.lin, model.quad, model.per_stream, model.per_context];
            (tokens, [model.fix, model.fix0])
        };
        let ((a, c), (b, d)) = (parameters(self), parameters(other));
        let mut pairs = a.iter().zip(&b).chain(c.iter().zip(&d));
        pairs.any(|(one, other)| (one - other).abs() > 1e-3 * other.abs())
    }

    /// What decoding adds to a step.
    pub(crate) fn over(&self, decoding: f64, context: f64) -> f64 {
        self.per_stream * decoding + self.per_context * context
    }

    /// Seconds to prefill `tokens` whose attention area is `area`, beside decoding that adds `over` to every step.
    pub(crate) fn prefill(&self, tokens: f64, area: f64, over: f64) -> f64 {
        let work = self.work(tokens, area);
        work.tokens_s + work.steps * (self.fix + over)
    }

    /// What of a prefill depends on the prompt alone.
    pub(crate) fn work(&self, tokens: f64, area: f64) -> Work {
        Work {
            tokens_s: self.lin * tokens + self.quad * area,
            steps: self.steps(tokens),
        }
    }

    /// Steps to prefill `tokens`. (Not `ceil`, which is a call on plain x86-64; this runs for every endpoint.)
    pub(crate) fn steps(&self, tokens: f64) -> f64 {
        let exact = tokens / self.batch;
        let whole = f64::from(exact as u32);
        if whole < exact { whole + 1.0 } else { whole }
    }

    /// Seconds of a step that only decodes.
    pub(crate) fn decode_step(&self, over: f64) -> f64 {
        self.fix0 + over
    }
}

/// A prefill before it is known where it happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Seconds for its tokens and their attention.
    pub(crate) tokens_s: f64,
    /// Steps it takes.
    pub(crate) steps: f64,
}

/// Pairs of a computed token and one it attends to: u·c + u²/2.
pub(crate) fn attention_area(uncached: u32, cached: u32) -> f64 {
    let (u, c) = (f64::from(uncached), f64::from(cached));
    u * c + u * u / 2.0
}

/// What one endpoint offers a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offer {
    /// Seconds until its prefill starts.
    pub(crate) queue_s: f64,
    /// Seconds of its prefill.
    pub(crate) prefill_s: f64,
    /// Streams that decode there.
    pub(crate) decoding: f64,
    /// Seconds a step of one stream takes longer for the context of all.
    pub(crate) context_s: f64,
    /// Seconds added for old metrics.
    pub(crate) handicap_s: f64,
}

impl Offer {
    /// Seconds for slowing others down.
    pub(crate) fn others_s(&self) -> f64 {
        self.prefill_s * harm(self.decoding)
    }

    /// Seconds for its own slower decoding.
    pub(crate) fn decode_s(&self) -> f64 {
        GAMMA * TYPICAL_OUTPUT * self.context_s
    }

    /// Seconds for computing what is cached elsewhere.
    pub(crate) fn duplicate_s(&self, kappa: f64, least_prefill_s: f64) -> f64 {
        kappa * (self.prefill_s - least_prefill_s)
    }
}

/// Seconds that a second of prefill is worth to the `decoding` streams it slows down.
pub(crate) fn harm(decoding: f64) -> f64 {
    BETA * decoding
}

/// Price of work done twice: the scarcer the machine, the dearer.
pub(crate) fn kappa(factor: f64, prefill_utilisation: f64, kv_utilisation: f64) -> f64 {
    let rho = prefill_utilisation
        .max(kv_utilisation)
        .clamp(0.0, MAX_UTILISATION);
    (factor * rho / (1.0 - rho)).min(MAX_KAPPA)
}

/// Cost of an endpoint: own time to first token and that of others, duplicate work, own decode slow-down.
pub(crate) fn cost(offer: &Offer, kappa: f64, least_prefill_s: f64) -> f64 {
    offer.queue_s
        + offer.prefill_s
        + offer.others_s()
        + offer.duplicate_s(kappa, least_prefill_s)
        + offer.decode_s()
        + offer.handicap_s
}
