//! The text of a prompt in the order in which an engine reads it: for hashing prefixes and for estimating sizes. It knows
//! no tokenizer and no chat template.
//!
//! Two requests that begin with the same turns yield the same pieces up to there. The reverse is not promised: the same
//! text escaped in another way is other bytes, which costs a wrong guess and nothing else.

mod size;

#[cfg(test)]
mod tests;

use crate::json::{Elements, Kind, Value};
use crate::route::Route;

pub use size::Size;

/// A part of a prompt.
#[derive(Clone, Debug)]
pub enum Piece<'a> {
    /// Text as it is written inside a JSON string, or JSON that a template puts into the prompt.
    Text(&'a [u8]),
    /// Token ids.
    Tokens(Tokens<'a>),
    /// An image, a sound, a file: its source as written. Its size says nothing about its tokens.
    Media(&'a [u8]),
    /// The end of a message, a tool list or an independent prompt.
    Boundary,
}

/// Token ids of a prompt; what is not a token id is left out.
#[derive(Clone, Debug)]
pub struct Tokens<'a>(Elements<'a>);

impl Iterator for Tokens<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.0
            .find_map(|element| element.as_u64().and_then(|id| u32::try_from(id).ok()))
    }
}

/// Calls `f` with the pieces of a request body, in prompt order.
pub fn pieces<'a>(route: &Route, root: Value<'a>, f: &mut impl FnMut(Piece<'a>)) {
    match route {
        Route::ChatCompletions => conversation(root, &["tools", "functions"], "messages", f),
        Route::Messages | Route::CountTokens => {
            conversation(root, &["tools", "system"], "messages", f);
        }
        Route::Responses => conversation(root, &["tools", "instructions"], "input", f),
        Route::Completions => prompts(root.get("prompt"), f),
        Route::Embeddings => prompts(root.get("input"), f),
        Route::Rerank => {
            prompts(root.get("query"), f);
            prompts(root.get("documents"), f);
        }
        Route::Tokenize if root.get("prompt").is_some() => prompts(root.get("prompt"), f),
        Route::Tokenize => conversation(root, &["tools"], "messages", f),
        Route::Detokenize | Route::Models | Route::Model(_) => {}
    }
}

/// What stands before the turns (chat templates render tools and system text first), then each turn.
fn conversation<'a>(root: Value<'a>, before: &[&str], turns: &str, f: &mut impl FnMut(Piece<'a>)) {
    for value in before.iter().filter_map(|key| root.get(key)) {
        content(value, f);
        f(Piece::Boundary);
    }
    let Some(turns) = root.get(turns) else { return };
    if turns.is_string() {
        content(turns, f);
        f(Piece::Boundary);
    }
    for turn in turns.elements() {
        message(turn, f);
        f(Piece::Boundary);
    }
}

/// The role first, wherever it is written; then everything else that can reach a prompt.
fn message<'a>(turn: Value<'a>, f: &mut impl FnMut(Piece<'a>)) {
    if let Some(role) = turn.get("role") {
        content(role, f);
    }
    for member in turn.members() {
        let leaves_no_text = matches!(
            &*member.key,
            "role" | "type" | "id" | "status" | "cache_control"
        );
        if !leaves_no_text {
            content(member.value, f);
        }
    }
}

/// A string, a list of parts, or JSON that is printed into the prompt.
fn content<'a>(value: Value<'a>, f: &mut impl FnMut(Piece<'a>)) {
    match value.kind() {
        Kind::String => f(Piece::Text(value.raw_str().unwrap_or_default().as_bytes())),
        Kind::Array => value.elements().for_each(|part| content_part(part, f)),
        Kind::Object => f(Piece::Text(value.raw().as_bytes())),
        Kind::Null | Kind::Bool | Kind::Number => {}
    }
}

fn content_part<'a>(part: Value<'a>, f: &mut impl FnMut(Piece<'a>)) {
    let kind = part
        .get("type")
        .and_then(Value::raw_str)
        .unwrap_or_default();
    match kind {
        "text" | "input_text" | "output_text" => content_of(part, "text", f),
        "thinking" => content_of(part, "thinking", f),
        "tool_result" => content_of(part, "content", f),
        "image_url" | "input_image" | "image" | "input_audio" | "audio_url" | "video_url"
        | "file" | "input_file" | "document" => f(Piece::Media(part.raw().as_bytes())),
        _ if part.is_string() => content(part, f),
        // Tools and tool calls are printed whole.
        _ => f(Piece::Text(part.raw().as_bytes())),
    }
}

fn content_of<'a>(part: Value<'a>, key: &str, f: &mut impl FnMut(Piece<'a>)) {
    if let Some(value) = part.get(key) {
        content(value, f);
    }
}

/// A text, token ids, or a list of either; the prompts of a list are independent of each other.
fn prompts<'a>(prompt: Option<Value<'a>>, f: &mut impl FnMut(Piece<'a>)) {
    let Some(prompt) = prompt else { return };
    let is_list = prompt
        .elements()
        .next()
        .is_some_and(|first| first.kind() != Kind::Number);
    if is_list {
        prompt.elements().for_each(|each| prompts(Some(each), f));
        return;
    }
    match prompt.kind() {
        Kind::Array => f(Piece::Tokens(Tokens(prompt.elements()))),
        Kind::Object => content_part(prompt, f),
        Kind::String | Kind::Null | Kind::Bool | Kind::Number => content(prompt, f),
    }
    f(Piece::Boundary);
}
