//! Path and method → which API call it is. It does not know hosts, keys or which models exist.

#[cfg(test)]
mod tests;

/// Whose conventions an endpoint follows; decides the shape of errors and the names of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    OpenAi,
    Anthropic,
}

/// An API call the gateway knows. Everything else is refused: unknown routes are not passed through.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    ChatCompletions,
    Completions,
    Embeddings,
    Responses,
    Messages,
    CountTokens,
    Rerank,
    Tokenize,
    Detokenize,
    Models,
    /// One model; the id is percent-decoded and may contain slashes.
    Model(String),
}

/// Recognises a request path, with or without `/v1`; a query is ignored. Paths are compared as they are sent: an
/// escaped or doubled slash is another path, so no two components can disagree about what was meant.
pub fn route(path: &str) -> Option<Route> {
    let call = call(path);
    let route = match call {
        "chat/completions" => Route::ChatCompletions,
        "completions" => Route::Completions,
        "embeddings" => Route::Embeddings,
        "responses" => Route::Responses,
        "messages" => Route::Messages,
        "messages/count_tokens" => Route::CountTokens,
        "rerank" => Route::Rerank,
        "tokenize" => Route::Tokenize,
        "detokenize" => Route::Detokenize,
        "models" => Route::Models,
        _ => Route::Model(percent_decoded(call.strip_prefix("models/")?)?),
    };
    Some(route)
}

/// The family whose error shape answers this path, known or not.
pub fn family(path: &str) -> Family {
    let call = call(path);
    if call == "messages" || call.starts_with("messages/") {
        Family::Anthropic
    } else {
        Family::OpenAi
    }
}

impl Route {
    pub fn family(&self) -> Family {
        match self {
            Self::Messages | Self::CountTokens => Family::Anthropic,
            Self::ChatCompletions
            | Self::Completions
            | Self::Embeddings
            | Self::Responses
            | Self::Rerank
            | Self::Tokenize
            | Self::Detokenize
            | Self::Models
            | Self::Model(_) => Family::OpenAi,
        }
    }

    /// Where engines serve this call. One model is looked up in their list: vLLM has no path of its own for it.
    pub fn upstream_path(&self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Rerank => "/v1/rerank",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::Models | Self::Model(_) => "/v1/models",
        }
    }

    /// A short constant name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Rerank => "rerank",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Models => "models",
            Self::Model(_) => "model",
        }
    }

    /// Whether a model produces output tokens for this call.
    pub fn generates(&self) -> bool {
        matches!(
            self,
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages
        )
    }

    /// Whether the HTTP method fits, upper case as it is on the wire. `HEAD` is answered where `GET` is.
    pub fn allows(&self, method: &str) -> bool {
        self.methods().contains(&method)
    }

    /// The methods for an `Allow` header.
    pub fn methods(&self) -> &'static [&'static str] {
        match self {
            Self::Models | Self::Model(_) => &["GET", "HEAD"],
            Self::ChatCompletions
            | Self::Completions
            | Self::Embeddings
            | Self::Responses
            | Self::Messages
            | Self::CountTokens
            | Self::Rerank
            | Self::Tokenize
            | Self::Detokenize => &["POST"],
        }
    }
}

/// The part of a path that names the call: without query, leading slash and `v1/`.
fn call(path: &str) -> &str {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let path = path.strip_prefix('/').unwrap_or_default();
    path.strip_prefix("v1/").unwrap_or(path)
}

/// `None` for bad escapes, bytes that are not UTF-8, control characters, and nothing at all.
fn percent_decoded(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            decoded.push((high * 16 + low) as u8);
        } else {
            decoded.push(byte);
        }
    }
    let decoded = String::from_utf8(decoded).ok()?;
    (!decoded.is_empty() && !decoded.chars().any(char::is_control)).then_some(decoded)
}
