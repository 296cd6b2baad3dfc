//! The lists: which fields a route knows, which only L1 may write, and where a caller's own data begins.

use governance_context::names;
use inference_wire::route::Route;

#[cfg(test)]
mod tests;

/// Reserved fields without `_` and `-`, in lower case: `cacheSalt` and `cache-salt` are `cache_salt` too. Sorted.
const RESERVED: &[&str] = &[
    "accesstoken",
    "apibase",
    "apikey",
    "apitype",
    "apiversion",
    "authorization",
    "awsaccesskeyid",
    "awssecretaccesskey",
    "awssessiontoken",
    "basemodel",
    "baseurl",
    "bootstraphost",
    "bootstrappairkey",
    "bootstrapport",
    "bootstraproom",
    "cachesalt",
    "customlogitprocessor",
    "customparams",
    "dataparallelrank",
    "disaggprefilldprank",
    "ectransferparams",
    "extrabody",
    "extraheaders",
    "extrakey",
    "extraquery",
    "kvtransferparams",
    "litellmparams",
    "logitsprocessors",
    "lorapath",
    "lorarequest",
    "mmprocessorkwargs",
    "nvext",
    "organization",
    "priority",
    "requestid",
    "returnhiddenstates",
    "rid",
    "routeddprank",
    "sessionparams",
    "vllmxargs",
];

/// Prefixes of credential fields, after `-` became `_`.
const RESERVED_PREFIXES: &[&str] = &["aws_", "azure_", "vertex_", "litellm_", "headpond_"];

/// Who the caller is and how urgent it is: decided from the key, so a caller's word for it is taken out silently,
/// also where unknown fields are refused. Only at the top level, where they have this meaning. Sorted.
const ABOUT_THE_CALLER: &[&str] = &[
    "customer",
    "customer_id",
    "end_user",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "tags",
    "user",
];

/// Known to every route that samples. Sorted.
const SAMPLING: &[&str] = &[
    "allowed_token_ids",
    "bad_words",
    "ebnf",
    "frequency_penalty",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "ignore_eos",
    "include_stop_str_in_output",
    "length_penalty",
    "logit_bias",
    "min_p",
    "min_tokens",
    "no_stop_trim",
    "presence_penalty",
    "prompt_logprobs",
    "regex",
    "repetition_penalty",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "temperature",
    "thinking_token_budget",
    "top_k",
    "top_p",
    "truncate_prompt_tokens",
];

const CHAT: &[&str] = &[
    "add_generation_prompt",
    "add_special_tokens",
    "audio",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "function_call",
    "functions",
    "include_reasoning",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "prediction",
    "reasoning",
    "reasoning_effort",
    "response_format",
    "separate_reasoning",
    "store",
    "stream",
    "stream_options",
    "stream_reasoning",
    "tool_choice",
    "tools",
    "top_logprobs",
    "verbosity",
    "web_search_options",
];

const COMPLETIONS: &[&str] = &[
    "add_special_tokens",
    "best_of",
    "echo",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "prompt",
    "response_format",
    "stream",
    "stream_options",
    "suffix",
];

const EMBEDDINGS: &[&str] = &[
    "add_special_tokens",
    "dimensions",
    "encoding_format",
    "input",
    "model",
    "truncate_prompt_tokens",
];

const RESPONSES: &[&str] = &[
    "background",
    "conversation",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "store",
    "stream",
    "stream_options",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
];

const MESSAGES: &[&str] = &[
    "chat_template_kwargs",
    "context_management",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "output_config",
    "output_format",
    "stop_sequences",
    "stream",
    "system",
    "thinking",
    "tool_choice",
    "tools",
];

const RERANK: &[&str] = &[
    "documents",
    "max_chunks_per_doc",
    "model",
    "query",
    "return_documents",
    "top_n",
    "truncate_prompt_tokens",
];

const TOKENIZE: &[&str] = &[
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "messages",
    "model",
    "prompt",
    "return_token_strs",
    "tools",
];

const DETOKENIZE: &[&str] = &["model", "skip_special_tokens", "tokens"];

/// Below these top-level fields, these members hold data of the caller's own shape (JSON schemas, arguments of tool
/// calls) which engines hand on and never interpret: a tool may well have a parameter named `priority`.
const OPAQUE: &[(&str, &[&str])] = &[
    ("functions", &["parameters"]),
    ("input", &["arguments", "input"]),
    ("messages", &["arguments", "input"]),
    ("output_config", &["schema"]),
    ("output_format", &["schema"]),
    ("response_format", &["schema"]),
    ("structured_outputs", &["json"]),
    ("text", &["schema"]),
    ("tools", &["input_schema", "parameters"]),
];

/// Whether only L1 may write this field, in any spelling an engine or a layer before it could take for it.
pub(super) fn is_reserved(key: &str) -> bool {
    const LONGEST: usize = 24;
    if !key.is_ascii() {
        return false;
    }
    let mut folded = [0_u8; LONGEST];
    let mut length = 0;
    for byte in key.bytes().filter(|byte| !matches!(byte, b'_' | b'-')) {
        if length == LONGEST {
            break;
        }
        folded[length] = byte.to_ascii_lowercase();
        length += 1;
    }
    let folded = &folded[..length];
    RESERVED
        .binary_search_by(|reserved| reserved.as_bytes().cmp(folded))
        .is_ok()
        || ends_with_credentials(key)
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| starts_with(key, prefix))
        || names::is_reserved_header(key)
        || names::is_credential_header(key)
}

/// Whether the field says who the caller is.
pub(super) fn is_about_the_caller(key: &str) -> bool {
    ABOUT_THE_CALLER.binary_search(&key).is_ok()
}

/// Whether the route's engines know the field.
pub(super) fn is_known(route: &Route, key: &str) -> bool {
    let (own, sampling): (&[&str], &[&str]) = match route {
        Route::ChatCompletions => (CHAT, SAMPLING),
        Route::Completions => (COMPLETIONS, SAMPLING),
        Route::Responses => (RESPONSES, SAMPLING),
        Route::Messages | Route::CountTokens => (MESSAGES, SAMPLING),
        Route::Embeddings => (EMBEDDINGS, &[]),
        Route::Rerank => (RERANK, &[]),
        Route::Tokenize => (TOKENIZE, &[]),
        Route::Detokenize => (DETOKENIZE, &[]),
        Route::Models | Route::Model(_) => (&[], &[]),
    };
    own.binary_search(&key).is_ok() || sampling.binary_search(&key).is_ok()
}

/// Whether what stands under this key, somewhere below that top-level field, is the caller's own data.
pub(super) fn is_opaque(top: &str, key: &str) -> bool {
    OPAQUE
        .iter()
        .any(|(field, keys)| *field == top && keys.contains(&key))
}

/// The fields that limit the output; the first is written when the caller sent none.
pub(super) fn output_limits(route: &Route) -> &'static [&'static str] {
    match route {
        Route::ChatCompletions => &["max_tokens", "max_completion_tokens"],
        Route::Completions | Route::Messages => &["max_tokens"],
        Route::Responses => &["max_output_tokens"],
        Route::Embeddings
        | Route::CountTokens
        | Route::Rerank
        | Route::Tokenize
        | Route::Detokenize
        | Route::Models
        | Route::Model(_) => &[],
    }
}

fn ends_with_credentials(key: &str) -> bool {
    const ENDING: &str = "credentials";
    key.len() >= ENDING.len()
        && key.is_char_boundary(key.len() - ENDING.len())
        && key[key.len() - ENDING.len()..].eq_ignore_ascii_case(ENDING)
}

fn starts_with(key: &str, prefix: &str) -> bool {
    let fold = |byte: u8| {
        if byte == b'-' {
            b'_'
        } else {
            byte.to_ascii_lowercase()
        }
    };
    key.len() >= prefix.len()
        && key
            .bytes()
            .zip(prefix.bytes())
            .all(|(byte, wanted)| fold(byte) == wanted)
}

/// Every reserved field in one spelling, for tests.
#[cfg(test)]
pub(super) fn reserved() -> impl Iterator<Item = &'static str> {
    RESERVED.iter().copied()
}
