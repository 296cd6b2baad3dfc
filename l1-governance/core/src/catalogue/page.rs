//! The page about errors, generated from the catalogue.

use std::fmt::Write as _;

use super::code::{Code, Fixer, Retry};

/// `docs/errors.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Generated from the catalogue in `l1-governance/core/src/catalogue`; do not edit by hand.\n\n\
         Every error carries its code in the header `x-headpond-reason` and, for OpenAI clients, in `error.code`. \
         The request id in `x-request-id` finds its decision record: `headpond why ID`.\n\n\
         | code | HTTP | OpenAI type | Anthropic type | retry |\n\
         |---|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let fact = code.fact();
        let retry = match fact.retry {
            Retry::Soon if code == Code::RateLimitExceeded => {
                "yes (`retry-after` when known), but not what needs more tokens than a whole window grants (`x-should-retry: false`)"
            }
            Retry::Never => "no",
            Retry::AtReset => {
                "after the reset, and clients must not wait (`x-should-retry: false`); where others only hold what is missing, as `retry-after` says"
            }
            Retry::Soon => "yes (`retry-after` when known)",
        };
        let _ = writeln!(
            page,
            "| [`{code}`](#{code}) | {} | `{}` | `{}` | {retry} |",
            fact.status, fact.openai_type, fact.anthropic_type
        );
    }
    for code in Code::ALL {
        let fact = code.fact();
        let fixer = match fact.fixer {
            Fixer::Caller => "the caller",
            Fixer::AccountAdmin => "an administrator of the account",
            Fixer::Platform => "the platform team",
            Fixer::Time => "nobody has to; it passes",
        };
        let _ = write!(
            page,
            "\n## {code}\n\n{}.\n\n- **Who can fix it:** {fixer}\n- **How:** {}\n",
            fact.meaning, fact.how
        );
    }
    page
}
