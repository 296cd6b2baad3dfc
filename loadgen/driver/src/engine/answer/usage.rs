//! Usage objects.

use crate::engine::{
    ask::Family,
    config::CacheReport,
    plan::{Reply, Totals},
};

fn counts(t: Totals) -> String {
    format!(
        "\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{}",
        t.prompt,
        t.prompt + t.output,
        t.output
    )
}

/// In a whole body.
pub(in crate::engine) fn whole(reply: &Reply, t: Totals) -> String {
    if reply.vocabulary.is_sglang() {
        return sglang(reply, t, ",\"completion_tokens_details\":null");
    }
    let created = match reply.ask.family {
        Family::Completions => "null".to_owned(),
        Family::Chat | Family::Messages | Family::Responses => t.newly_cached.to_string(),
    };
    let details = match reply.cache_report {
        CacheReport::Off => "null".to_owned(),
        CacheReport::On => format!(
            "{{\"cached_tokens\":{},\"created_cache_tokens\":{created},\"multimodal_tokens\":null}}",
            t.cached
        ),
    };
    format!(
        "{{{},\"prompt_tokens_details\":{details},\"completion_tokens_details\":null}}",
        counts(t)
    )
}

/// In the last chunk of a stream.
pub(super) fn last(reply: &Reply, t: Totals) -> String {
    let completions = reply.ask.family == Family::Completions;
    if reply.vocabulary.is_sglang() {
        let tail = if completions {
            ""
        } else {
            ",\"completion_tokens_details\":null"
        };
        return sglang(reply, t, tail);
    }
    let created = if completions {
        String::new()
    } else {
        format!(",\"created_cache_tokens\":{}", t.newly_cached)
    };
    let details = match reply.cache_report {
        CacheReport::Off => String::new(),
        CacheReport::On => {
            format!(
                ",\"prompt_tokens_details\":{{\"cached_tokens\":{}{created}}}",
                t.cached
            )
        }
    };
    format!("{{{}{details}}}", counts(t))
}

/// In every other chunk, if asked for.
pub(super) fn running(reply: &Reply, t: Totals) -> String {
    if reply.vocabulary.is_sglang() {
        return sglang(reply, t, ",\"completion_tokens_details\":null");
    }
    format!("{{{},\"completion_tokens_details\":null}}", counts(t))
}

fn sglang(reply: &Reply, t: Totals, tail: &str) -> String {
    let details = match reply.cache_report {
        CacheReport::Off => "null".to_owned(),
        CacheReport::On => format!("{{\"cached_tokens\":{}}}", t.cached),
    };
    format!(
        "{{{},\"prompt_tokens_details\":{details},\"reasoning_tokens\":0{tail}}}",
        counts(t)
    )
}
