//! How long a prompt is, as far as that can be said without its model's tokenizer.

use super::{Piece, pieces};
use crate::json::{Value, unescaped_len};
use crate::route::Route;

/// Tokens a chat template puts around one turn: role markers, separators, the opening of the answer.
const TEMPLATE_TOKENS_PER_TURN: u64 = 8;
/// What a chat template may print anywhere in a prompt, beside the turns and the tools.
const TEMPLATE_ARGUMENTS: [&str; 2] = ["documents", "chat_template_kwargs"];

/// Counts taken from a request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// UTF-8 bytes of text.
    pub text_bytes: u64,
    /// Prompt tokens given as ids: exact.
    pub token_ids: u64,
    /// Messages and other parts that a template wraps, or independent prompts.
    pub turns: u64,
    /// Images, sounds, files. What they cost depends on the model.
    pub media: u64,
}

impl Size {
    /// Measures a request body.
    pub fn of(route: &Route, root: Value<'_>) -> Self {
        let mut size = Self::default();
        pieces(route, root, &mut |piece| match piece {
            Piece::Text(raw) => size.text_bytes += unescaped_len(raw) as u64,
            Piece::Tokens(ids) => size.token_ids += ids.count() as u64,
            Piece::Media(_) => size.media += 1,
            Piece::Boundary => size.turns += 1,
        });
        if has_template(route) {
            let arguments = TEMPLATE_ARGUMENTS.iter().filter_map(|key| root.get(key));
            size.text_bytes += arguments.map(|value| value.raw().len() as u64).sum::<u64>();
        }
        size
    }

    /// A guess at the prompt tokens, media left out. `bytes_per_token_milli` is learned per model; 4,000 fits English
    /// and a vocabulary of common size.
    pub fn estimated_tokens(&self, bytes_per_token_milli: u64) -> u64 {
        let text = self
            .text_bytes
            .saturating_mul(1000)
            .div_ceil(bytes_per_token_milli.max(1));
        text.saturating_add(self.token_ids)
            .saturating_add(self.turns * TEMPLATE_TOKENS_PER_TURN)
    }

    /// No prompt without media has more tokens than this: byte-level vocabularies (vLLM's and SGLang's common models)
    /// spend at most one token on a byte.
    pub fn most_tokens(&self) -> u64 {
        self.text_bytes
            .saturating_add(self.token_ids)
            .saturating_add(self.turns * TEMPLATE_TOKENS_PER_TURN)
    }
}

/// Whether an engine renders the request with the chat template of its model.
fn has_template(route: &Route) -> bool {
    match route {
        Route::ChatCompletions
        | Route::Responses
        | Route::Messages
        | Route::CountTokens
        | Route::Tokenize => true,
        Route::Completions
        | Route::Embeddings
        | Route::Rerank
        | Route::Detokenize
        | Route::Models
        | Route::Model(_) => false,
    }
}
