//! What the choice of an endpoint needs to know of a request body, read by span.

use std::sync::Arc;

use inference_wire::json::{Document, JsonError, Value};
use inference_wire::prompt::{self, Piece};
use inference_wire::route::Route;
use scheduler_core::residency::{Block, BlockHasher, Chunking, Seed};

#[cfg(test)]
mod tests;

/// Tokens per block when a prompt is given as token ids; divides the block sizes that engines use.
const TOKENS_PER_BLOCK: u16 = 16;

/// Facts of one request body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Facts {
    /// Empty if the request names none.
    pub(crate) model: Arc<str>,
    pub(crate) stream: bool,
    pub(crate) blocks: Vec<Block>,
}

impl Facts {
    /// Reads a body. Prompts of different cache domains never share a block.
    pub(crate) fn read(route: &Route, body: &[u8], cache_domain: &str) -> Result<Self, JsonError> {
        let document = Document::parse(body)?;
        let root = document.root();
        let model = root
            .get("model")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let stream = root.get("stream").and_then(Value::as_bool);
        let seed = Seed::new(&model, None, cache_domain);
        let mut hasher = None;
        prompt::pieces(route, root, &mut |piece| hash(&mut hasher, seed, piece));
        Ok(Self {
            model: Arc::from(&*model),
            stream: stream.unwrap_or(false),
            blocks: hasher.map(BlockHasher::finish).unwrap_or_default(),
        })
    }
}

/// The first piece decides whether blocks are cut from text or from token ids.
fn hash(hasher: &mut Option<BlockHasher>, seed: Seed, piece: Piece<'_>) {
    let chunking = match piece {
        Piece::Tokens(_) => Chunking::Tokens {
            size: TOKENS_PER_BLOCK,
        },
        Piece::Text(_) | Piece::Media(_) | Piece::Boundary => Chunking::default(),
    };
    let hasher = hasher.get_or_insert_with(|| BlockHasher::new(seed, chunking));
    match piece {
        Piece::Text(text) | Piece::Media(text) => hasher.text(text),
        Piece::Tokens(ids) => ids.for_each(|id| hasher.tokens(&[id])),
        Piece::Boundary => hasher.boundary(),
    }
}
