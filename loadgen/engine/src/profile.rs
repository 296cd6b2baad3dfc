//! What one engine step costs on the hardware we imitate. `docs/engine-profiles.md` says where the
//! numbers come from.

use std::{fmt, str::FromStr, time::Duration};

/// Coefficients of the step time of one model on one kind of machine:
///
/// ```text
/// step = c0 + max(g0 + g1·n, g3·n) + g4·n + θ3·Σ(q·p + q²/2) + θ4·Σ ctx_decode
/// ```
///
/// where a step computes `n` tokens, a prefill chunk of `q` tokens stands on `p` computed ones, and a
/// decoding sequence attends to `ctx` tokens. All coefficients are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    pub name: &'static str,
    /// Fixed host work of a step.
    pub c0: f64,
    /// Reading the weights once, when the step is bound by memory.
    pub g0: f64,
    /// Per token while the step is bound by memory.
    pub g1: f64,
    /// Per token once the step is bound by arithmetic.
    pub g3: f64,
    /// Per token of communication between devices.
    pub g4: f64,
    /// Per pair of prompt tokens in prefill attention.
    pub theta3: f64,
    /// Per token of context read by a decoding sequence.
    pub theta4: f64,
    /// Tokens the KV memory holds.
    pub kv_tokens: u64,
    /// Token budget of one step that servers on this hardware use by default.
    pub max_batched_tokens: u32,
    /// Most sequences in one step by default.
    pub max_sequences: u32,
}

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batch {
    /// Tokens of the step, decoded and prefilled together.
    pub tokens: u64,
    /// Sequences that decode one token.
    pub decodes: u64,
    /// `Σ(q·p + q²/2)` over prefill chunks.
    pub prefill_pairs: f64,
    /// Context tokens of all decoding sequences together.
    pub decode_context: u64,
}

impl Batch {
    /// A prefill chunk of `new` tokens after `computed` ones.
    pub fn add_prefill(&mut self, new: u32, computed: u32) {
        let (new, computed) = (f64::from(new), f64::from(computed));
        self.tokens += new as u64;
        self.prefill_pairs += new * computed + new * new / 2.0;
    }

    /// One decoded token that attends to `context` tokens.
    pub fn add_decode(&mut self, context: u32) {
        self.tokens += 1;
        self.decodes += 1;
        self.decode_context += u64::from(context);
    }
}

const MS: f64 = 1e-3;
const US: f64 = 1e-6;

impl Profile {
    /// Every profile we ship.
    pub const ALL: [Profile; 4] = [
        Self::LLAMA_70B_8XH100,
        Self::LLAMA_70B_8XA100,
        Self::LLAMA_8B_A100,
        Self::QWEN_32B_2XH100,
    ];

    pub const LLAMA_70B_8XH100: Profile = Profile {
        name: "70b-8xh100",
        c0: 6.8 * MS,
        g0: 8.4 * MS,
        g1: 13.0 * US,
        g3: 31.3 * US,
        g4: 13.1 * US,
        theta3: 6.6e-10,
        theta4: 1.74e-8,
        kv_tokens: 1_330_000,
        max_batched_tokens: 8192,
        max_sequences: 256,
    };

    pub const LLAMA_70B_8XA100: Profile = Profile {
        name: "70b-8xa100",
        c0: 6.8 * MS,
        g0: 14.5 * MS,
        g1: 25.0 * US,
        g3: 88.0 * US,
        g4: 20.0 * US,
        theta3: 1.9e-9,
        theta4: 2.9e-8,
        kv_tokens: 1_330_000,
        max_batched_tokens: 2048,
        max_sequences: 256,
    };

    pub const LLAMA_8B_A100: Profile = Profile {
        name: "8b-a100",
        c0: 3.0 * MS,
        g0: 9.8 * MS,
        g1: 26.0 * US,
        g3: 66.7 * US,
        g4: 0.0,
        theta3: 3e-9,
        theta4: 9.2e-8,
        kv_tokens: 404_000,
        max_batched_tokens: 2048,
        max_sequences: 256,
    };

    pub const QWEN_32B_2XH100: Profile = Profile {
        name: "32b-2xh100",
        c0: 4.0 * MS,
        g0: 12.0 * MS,
        g1: 20.0 * US,
        g3: 45.5 * US,
        g4: 3.3 * US,
        theta3: 1.1e-9,
        theta4: 5.6e-8,
        kv_tokens: 307_000,
        max_batched_tokens: 8192,
        max_sequences: 256,
    };

    /// Duration of one step, in seconds.
    pub fn step_seconds(&self, batch: &Batch) -> f64 {
        let n = batch.tokens as f64;
        self.c0
            + (self.g0 + self.g1 * n).max(self.g3 * n)
            + self.g4 * n
            + self.theta3 * batch.prefill_pairs
            + self.theta4 * batch.decode_context as f64
    }

    /// Duration of `steps` decoding steps in a row that begin with `batch`. Each step adds one token of
    /// context to every sequence, so the sum has a closed form.
    pub fn decode_seconds(&self, batch: &Batch, steps: u32) -> f64 {
        let steps = f64::from(steps);
        let growth = batch.decodes as f64 * steps * (steps - 1.0) / 2.0;
        steps * self.step_seconds(batch) + self.theta4 * growth
    }

    /// Time to prefill `uncached` tokens after `cached` ones on an idle engine with this profile's step
    /// budget, in seconds.
    pub fn prefill_seconds(&self, uncached: u32, cached: u32) -> f64 {
        let (mut left, mut computed, mut seconds) = (uncached, cached, 0.0);
        while left > 0 {
            let chunk = left.min(self.max_batched_tokens);
            let mut batch = Batch::default();
            batch.add_prefill(chunk, computed);
            seconds += self.step_seconds(&batch);
            left -= chunk;
            computed += chunk;
        }
        seconds
    }

    /// Prefill rate a long step approaches before attention over the prompt counts, in tokens per second.
    pub fn peak_prefill_tokens_per_second(&self) -> f64 {
        1.0 / (self.g3 + self.g4)
    }

    /// [`Self::step_seconds`] as a duration.
    pub fn step(&self, batch: &Batch) -> Duration {
        Duration::from_secs_f64(self.step_seconds(batch))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no engine profile; known are 70b-8xh100, 70b-8xa100, 8b-a100, 32b-2xh100")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|p| p.name == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published rates are rounded.
    #[test]
    fn peak_prefill_rates_are_the_published_ones() {
        for (name, published) in [
            ("70b-8xh100", 22e3),
            ("70b-8xa100", 9e3),
            ("8b-a100", 14.5e3),
            ("32b-2xh100", 20e3),
        ] {
            let rate = name
                .parse::<Profile>()
                .expect(name)
                .peak_prefill_tokens_per_second();
            assert!(
                (rate / published - 1.0).abs() < 0.04,
                "{name}: {rate} is not near {published}"
            );
        }
    }

    #[test]
    fn a_step_costs_what_the_formula_says() {
        let p = Profile::LLAMA_70B_8XH100;
        let mut decode = Batch::default();
        decode.add_decode(1_000);
        decode.add_decode(3_000);
        // 6.8 + 8.4 + 2·0.013 + 2·0.0131 + 4000·1.74e-5 ms
        assert!((p.step_seconds(&decode) - 15.3218e-3).abs() < 1e-9);

        let mut prefill = Batch::default();
        prefill.add_prefill(1_000, 500);
        // 6.8 + 31.3 + 13.1 + (500 000 + 500 000)·6.6e-7 ms; arithmetic outweighs 8.4 + 13
        assert!((p.step_seconds(&prefill) - 51.86e-3).abs() < 1e-9);
    }

    #[test]
    fn a_run_of_decoding_steps_is_the_sum_of_its_steps() {
        let p = Profile::LLAMA_8B_A100;
        let mut contexts = [100_u32, 2_000, 77];
        let mut first = Batch::default();
        let mut sum = 0.0;
        for step in 0..50 {
            let mut batch = Batch::default();
            for context in &mut contexts {
                batch.add_decode(*context);
                *context += 1;
            }
            sum += p.step_seconds(&batch);
            if step == 0 {
                first = batch;
            }
        }
        assert!((p.decode_seconds(&first, 50) - sum).abs() < 1e-9);
    }

    #[test]
    fn names_parse_and_print() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("70b".parse::<Profile>().is_err());
    }
}
