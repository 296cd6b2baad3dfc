//! What must hold for any bytes. Each function panics if it does not; none of them needs valid input.

mod context_token;
mod json_spans;
mod metrics_page;
mod mutate;
mod sse;

pub use context_token::{context_token, signed_token};
pub use json_spans::json_spans;
pub use metrics_page::metrics_page;
pub use mutate::Mutator;
pub use sse::sse;

use inference_wire::route::Route;

/// Every route that has a body to read.
const ROUTES: [Route; 9] = [
    Route::ChatCompletions,
    Route::Completions,
    Route::Embeddings,
    Route::Responses,
    Route::Messages,
    Route::CountTokens,
    Route::Rerank,
    Route::Tokenize,
    Route::Detokenize,
];

/// A number that depends on every byte: decisions about an input that need no bytes of their own.
fn digest(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |digest, &byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
