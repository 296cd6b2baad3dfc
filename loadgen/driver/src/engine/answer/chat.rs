//! `/v1/chat/completions`.

use std::fmt::Write;

use super::{
    Delta, Events, Json, finish_json, finish_name, ids_json, prompt_ids_json, stop_json, usage,
};
use crate::engine::{
    ask::{Delivery, StreamUsage},
    plan::{Reply, Totals},
};

pub(super) fn stream_usage(reply: &Reply) -> StreamUsage {
    match reply.ask.delivery {
        Delivery::Whole => StreamUsage::None,
        Delivery::Stream { usage } => usage,
    }
}

pub(super) fn begin(reply: &Reply, choice: usize, totals: Totals, events: &mut Events) {
    let head = &reply.chunk_head;
    let sglang = reply.vocabulary.is_sglang();
    let running = stream_usage(reply) == StreamUsage::Every;
    events.data(|s| {
        s.push_str(head);
        if sglang {
            let _ = write!(
                s,
                "{{\"index\":{choice},\"delta\":{{\"reasoning_content\":null,\"role\":\"assistant\",\
                 \"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}}]}}"
            );
            return;
        }
        let _ = write!(
            s,
            "{{\"index\":{choice},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
             \"finish_reason\":null}}]"
        );
        if running {
            let none_yet = Totals { output: 0, ..totals };
            let _ = write!(s, ",\"usage\":{}", usage::running(reply, none_yet));
        }
        let prompt = prompt_ids_json(reply, choice);
        let _ = write!(s, ",\"prompt_token_ids\":{prompt},\"prompt_text\":null}}");
    });
}

pub(super) fn delta(reply: &Reply, delta: &Delta<'_>, events: &mut Events) {
    if reply.vocabulary.is_sglang() {
        return sglang_delta(reply, delta, events);
    }
    let head = &reply.chunk_head;
    let when = stream_usage(reply);
    events.data(|s| {
        s.push_str(head);
        let _ = write!(
            s,
            "{{\"index\":{},\"delta\":{{\"content\":{}}},\"logprobs\":null,\"finish_reason\":{}",
            delta.choice,
            Json(delta.text),
            finish_json(delta.finish)
        );
        if delta.finish.is_some() {
            let _ = write!(
                s,
                ",\"stop_reason\":{}",
                stop_json(reply, delta.choice, delta.finish)
            );
        }
        let _ = write!(s, ",\"token_ids\":{}}}]", ids_json(reply, delta.text));
        if when == StreamUsage::Every {
            let _ = write!(s, ",\"usage\":{}", usage::running(reply, delta.totals));
        }
        if delta.finish.is_some() && when == StreamUsage::None {
            let _ = write!(s, ",\"system_fingerprint\":\"{}\"", reply.fingerprint);
        }
        s.push('}');
    });
}

/// SGLang ends a choice with a chunk of its own.
fn sglang_delta(reply: &Reply, delta: &Delta<'_>, events: &mut Events) {
    let head = &reply.chunk_head;
    if !delta.text.is_empty() || delta.finish.is_none() {
        events.data(|s| {
            let _ = write!(
                s,
                "{head}{{\"index\":{},\"delta\":{{\"reasoning_content\":null,\"content\":{}}},\"logprobs\":null,\
                 \"finish_reason\":null,\"matched_stop\":null}}]",
                delta.choice,
                Json(delta.text)
            );
            if stream_usage(reply) == StreamUsage::Every {
                let _ = write!(s, ",\"usage\":{}", usage::running(reply, delta.totals));
            }
            s.push('}');
        });
    }
    if delta.finish.is_some() {
        events.data(|s| {
            let _ = write!(
                s,
                "{head}{{\"index\":{},\"delta\":{{\"reasoning_content\":null}},\"logprobs\":null,\
                 \"finish_reason\":{},\"matched_stop\":{}}}]}}",
                delta.choice,
                finish_json(delta.finish),
                stop_json(reply, delta.choice, delta.finish)
            );
        });
    }
}

pub(super) fn end(reply: &Reply, totals: Totals, events: &mut Events) {
    usage_chunk(reply, totals, events);
    events.done();
}

/// The chunk without choices that carries the usage of a stream.
pub(super) fn usage_chunk(reply: &Reply, totals: Totals, events: &mut Events) {
    if stream_usage(reply) == StreamUsage::None {
        return;
    }
    let head = &reply.chunk_head;
    events.data(|s| {
        let _ = write!(s, "{head}],\"usage\":{}", usage::last(reply, totals));
        if !reply.vocabulary.is_sglang() {
            let _ = write!(s, ",\"system_fingerprint\":\"{}\"", reply.fingerprint);
        }
        s.push('}');
    });
}

pub(super) fn whole(reply: &Reply, totals: Totals) -> String {
    let mut s = super::head(
        &reply.id,
        "chat.completion",
        reply.created,
        &reply.ask.model,
    );
    for (i, output) in reply.outputs.iter().enumerate() {
        if i > 0 {
            s.push(',');
        }
        let (text, finish) = (Json(&output.text), finish_name(output.finish));
        let (stop, logprobs) = (
            stop_json(reply, i, Some(output.finish)),
            logprobs(reply, &output.text),
        );
        let _ = if reply.vocabulary.is_sglang() {
            write!(
                s,
                "{{\"index\":{i},\"message\":{{\"role\":\"assistant\",\"content\":{text},\
                 \"reasoning_content\":null}},\"logprobs\":{logprobs},\"finish_reason\":\"{finish}\",\
                 \"matched_stop\":{stop}}}"
            )
        } else {
            let ids = ids_json(reply, &output.text);
            write!(
                s,
                "{{\"index\":{i},\"message\":{{\"role\":\"assistant\",\"content\":{text},\"refusal\":null,\
                 \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null}},\
                 \"logprobs\":{logprobs},\"finish_reason\":\"{finish}\",\"stop_reason\":{stop},\
                 \"token_ids\":{ids},\"routed_experts\":null}}"
            )
        };
    }
    let usage = usage::whole(reply, totals);
    let _ = if reply.vocabulary.is_sglang() {
        write!(s, "],\"usage\":{usage},{}}}", sglang_metadata(totals))
    } else {
        write!(
            s,
            "],\"service_tier\":null,\"system_fingerprint\":\"{}\",\"usage\":{usage},\"prompt_logprobs\":null,\
             \"prompt_token_ids\":{},\"prompt_text\":null,\"kv_transfer_params\":null,\
             \"ec_transfer_params\":null,\"metrics\":null}}",
            reply.fingerprint,
            prompt_ids_json(reply, 0)
        )
    };
    s
}

pub(super) fn sglang_metadata(totals: Totals) -> String {
    format!(
        "\"metadata\":{{\"weight_version\":\"default\",\"weight_versions\":[{{\"version\":\"default\",\
         \"start\":0,\"end\":{}}}]}}",
        totals.output
    )
}

/// Log-probabilities are made up; only their shape is real.
fn logprobs(reply: &Reply, text: &str) -> String {
    let Some(top) = reply.ask.logprobs else {
        return "null".to_owned();
    };
    let entry = |token: &str, rank: u32| {
        let bytes: Vec<String> = token.bytes().map(|b| b.to_string()).collect();
        format!(
            "\"token\":{},\"logprob\":-{}.5,\"bytes\":[{}]",
            Json(token),
            rank,
            bytes.join(",")
        )
    };
    let mut content = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = engine_model::token::token_end(text, at);
        let token = &text[at..end];
        let others: Vec<String> = (0..top)
            .map(|rank| format!("{{{}}}", entry(token, rank)))
            .collect();
        content.push(format!(
            "{{{},\"top_logprobs\":[{}]}}",
            entry(token, 0),
            others.join(",")
        ));
        at = end;
    }
    format!("{{\"content\":[{}]}}", content.join(","))
}
