//! What is asked of the system: requests of every API, with prompts that no cache holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// About 19 tokens of the tiny model.
const SENTENCE: &str =
    "The parser reads options from the command line and the reader returns each argument. ";

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The calls that generate, by path.
pub(crate) const GENERATING: [&str; 4] = [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"];

/// A prompt of about so many tokens that begins like no other, in this run or an earlier one.
pub(crate) fn prompt(tokens: usize) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(
        "{number} {}. {}",
        since.as_nanos(),
        SENTENCE.repeat(tokens / 19)
    )
}

/// A request for so many tokens, in the words of the API at `path`.
pub(crate) fn body(path: &str, prompt: &str, output: u32) -> Value {
    let message = json!([{ "role": "user", "content": prompt }]);
    let mut body = json!({ "model": "tiny", "temperature": 0 });
    match path {
        "/v1/completions" => body["prompt"] = prompt.into(),
        "/v1/responses" => body["input"] = prompt.into(),
        _ => body["messages"] = message,
    }
    let limit = if path == "/v1/responses" {
        "max_output_tokens"
    } else {
        "max_tokens"
    };
    body[limit] = output.into();
    if matches!(path, CHAT | "/v1/completions") {
        // A model with random weights ends wherever it likes.
        body["ignore_eos"] = true.into();
    }
    body
}

/// The same, streamed.
pub(crate) fn streamed(path: &str, prompt: &str, output: u32) -> Value {
    let mut body = body(path, prompt, output);
    body["stream"] = true.into();
    body
}
