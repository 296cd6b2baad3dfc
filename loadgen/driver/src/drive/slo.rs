//! Whether a request went as its user was promised. Pure.

use std::time::Duration;

use engine_model::Profile;

use super::outcome::Answer;

/// The targets a request must meet to count as good. Times as the clients see them at speed 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Slo {
    /// First token within `base + factor · T_p(l, 0)`, the time an idle engine of this profile takes to prefill the
    /// prompt with nothing cached; then `tpot` per token.
    Prefill {
        profile: Profile,
        base: Duration,
        factor: f64,
        tpot: Duration,
    },
    /// The same limits for every request.
    Fixed { ttft: Duration, tpot: Duration },
}

/// Answers of fewer tokens have no time per token worth judging.
pub(super) const JUDGED_OUTPUT: u64 = 16;

impl Slo {
    /// 1 s + 3 · `T_p`, and 100 ms per token.
    pub fn of(profile: Profile) -> Self {
        Self::Prefill {
            profile,
            base: Duration::from_secs(1),
            factor: 3.0,
            tpot: Duration::from_millis(100),
        }
    }

    fn ttft(&self, prompt_tokens: u32) -> Duration {
        match self {
            Self::Prefill {
                profile,
                base,
                factor,
                ..
            } => {
                *base
                    + Duration::from_secs_f64(
                        profile.prefill_seconds(prompt_tokens, 0) * factor.max(0.0),
                    )
            }
            Self::Fixed { ttft, .. } => *ttft,
        }
    }

    fn tpot(&self) -> Duration {
        match self {
            Self::Prefill { tpot, .. } | Self::Fixed { tpot, .. } => *tpot,
        }
    }

    /// Whether the first token came within its target; of an answer that came whole, the last.
    pub(super) fn in_time(&self, prompt_tokens: u32, answer: &Answer, ended: Duration) -> bool {
        answer.first.unwrap_or(ended) <= self.ttft(prompt_tokens)
    }

    /// Judges an answer whose times are already those at speed 1. One that came whole is good if it came no later than
    /// a stream within the targets would have ended.
    pub(super) fn met(&self, prompt_tokens: u32, answer: &Answer, ended: Duration) -> bool {
        let Some(first) = answer.first else {
            let tokens = answer.output_tokens().min(u64::from(u32::MAX)) as u32;
            return ended <= self.ttft(prompt_tokens) + self.tpot().saturating_mul(tokens);
        };
        let judged = answer.output_tokens() >= JUDGED_OUTPUT;
        first <= self.ttft(prompt_tokens)
            && !(judged && answer.tpot().is_some_and(|tpot| tpot > self.tpot()))
    }
}

impl std::fmt::Display for Slo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Prefill {
                profile,
                base,
                factor,
                tpot,
            } => {
                write!(
                    formatter,
                    "TTFT <= {base:?} + {factor} x T_p({}), TPOT <= {tpot:?}",
                    profile.name
                )
            }
            Self::Fixed { ttft, tpot } => write!(formatter, "TTFT <= {ttft:?}, TPOT <= {tpot:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine_model::Profile;
    use inference_wire::usage::Usage;

    use super::Slo;
    use crate::drive::outcome::Answer;

    const FIXED: Slo = Slo::Fixed {
        ttft: Duration::from_secs(1),
        tpot: Duration::from_millis(100),
    };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// First and last output in ms, output tokens.
    fn check(slo: &Slo, (first, last, output_tokens): (u64, u64, u64), expected: bool) {
        let usage = Some(Usage {
            prompt_tokens: 8_000,
            cached_tokens: None,
            output_tokens,
        });
        let answer = Answer {
            first: Some(ms(first)),
            last: Some(ms(last)),
            usage,
            outputs: 1,
        };
        assert_eq!(
            slo.met(8_000, &answer, ms(last)),
            expected,
            "{first} {last} {output_tokens}"
        );
    }

    #[test]
    fn both_targets_must_be_met_and_short_answers_have_one() {
        check(&FIXED, (1_000, 3_000, 21), true);
        check(&FIXED, (1_001, 3_000, 21), false);
        check(&FIXED, (1_000, 3_001, 21), false);
        check(&FIXED, (1_000, 9_000, 15), true);
        check(&FIXED, (1_000, 9_000, 16), false);
    }

    #[test]
    fn a_long_prompt_may_take_longer_by_its_own_prefill() {
        let slo = Slo::of(Profile::LLAMA_70B_8XH100);
        let prefill = Profile::LLAMA_70B_8XH100.prefill_seconds(8_000, 0);
        let limit = 1_000 + (3_000.0 * prefill) as u64;
        check(&slo, (limit, limit, 1), true);
        check(&slo, (limit + 1, limit + 1, 1), false);
    }

    #[test]
    fn a_whole_answer_is_judged_by_its_end() {
        let usage = Some(Usage {
            prompt_tokens: 1,
            cached_tokens: None,
            output_tokens: 10,
        });
        let answer = Answer {
            usage,
            ..Answer::default()
        };
        assert!(FIXED.met(1, &answer, ms(2_000)) && !FIXED.met(1, &answer, ms(2_001)));
    }
}
