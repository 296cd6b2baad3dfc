//! How much a request may turn out to be: three figures for its prompt, one bound for its output.

use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::sanitize::CheckedBody;
use inference_wire::route::Route;

use crate::config::Model;
use crate::respond::Refused;

#[cfg(test)]
mod tests;

/// Bytes per token of ordinary text, in thousandths: what an estimate assumes.
const USUAL_MILLI_BYTES: u64 = 4000;

/// The size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestSize {
    /// Prompt tokens it cannot exceed.
    pub(super) most: u64,
    /// Prompt tokens it probably has.
    pub(super) estimated: u64,
    /// Outputs generated.
    pub(super) choices: u32,
    /// Output tokens per choice the engine is held to.
    pub(super) bound: u64,
    /// The bound the caller asked for, or would have got without asking.
    pub(super) asked: u64,
}

impl RequestSize {
    /// Sizes a request, or refuses one that cannot fit the model's context whatever its tokenizer.
    pub(super) fn of(route: &Route, model: &Model, checked: &CheckedBody) -> Result<Self, Refused> {
        let prompt = checked.prompt;
        let prompts = match route {
            Route::Completions | Route::Embeddings | Route::Rerank => prompt.turns.max(1),
            Route::ChatCompletions
            | Route::Responses
            | Route::Messages
            | Route::CountTokens
            | Route::Tokenize
            | Route::Detokenize
            | Route::Models
            | Route::Model(_) => 1,
        };
        let context = model.context_tokens;
        let text = |milli_bytes: u64| prompt.text_bytes.saturating_mul(1000).div_ceil(milli_bytes);
        let least = (prompt.text_bytes.saturating_mul(1000) / model.milli_bytes_per_token_ceiling)
            .saturating_add(prompt.token_ids);
        if least > context.saturating_mul(prompts) {
            let what = format!(
                "The model's context is {context} tokens, and the prompt has at least {least}"
            );
            return Err(too_long(what, "messages", route));
        }
        if let Some(asked) = checked.max_tokens.filter(|asked| *asked > context) {
            let what = format!(
                "The model's context is {context} tokens, and {asked} output tokens were asked for"
            );
            return Err(too_long(what, "max_tokens", route));
        }
        let template = checked
            .prompt
            .turns
            .saturating_mul(8)
            .saturating_add(prompt.token_ids);
        let at_most = text(model.milli_bytes_per_token_floor).saturating_add(template);
        let whole = context.saturating_mul(prompts);
        let most = if prompt.media > 0 {
            whole
        } else {
            at_most.min(whole)
        };
        let left = if prompts == 1 {
            context.saturating_sub(least).max(1)
        } else {
            context
        };
        let asked = checked
            .max_tokens
            .unwrap_or(model.default_max_tokens.min(left));
        let bound = if route.generates() {
            asked.min(model.max_output_tokens).min(left)
        } else {
            0
        };
        Ok(Self {
            most,
            estimated: prompt.estimated_tokens(USUAL_MILLI_BYTES).min(most),
            choices: u32::try_from(checked.choices).unwrap_or(u32::MAX),
            bound,
            asked: if route.generates() { asked } else { 0 },
        })
    }

    /// Output tokens over all choices.
    pub(super) fn output(&self) -> u64 {
        self.bound.saturating_mul(u64::from(self.choices))
    }

    /// The bound, if it is lower than what was asked for.
    pub(super) fn clamped(&self) -> Option<u64> {
        (self.bound < self.asked).then_some(self.bound)
    }

    /// Lowers the bound; whether it became lower and something is left.
    pub(super) fn lower_bound(&mut self, bound: u64) -> bool {
        let lowers = bound > 0 && bound < self.bound;
        if lowers {
            self.bound = bound;
        }
        lowers
    }
}

fn too_long(what: String, param: &'static str, route: &Route) -> Refused {
    let param = match (param, route) {
        ("messages", Route::Completions) => "prompt",
        ("messages", Route::Embeddings | Route::Responses) => "input",
        ("max_tokens", Route::Responses) => "max_output_tokens",
        (param, _) => param,
    };
    Fault::new(Code::ContextLengthExceeded)
        .what(what)
        .param(param)
        .into()
}
