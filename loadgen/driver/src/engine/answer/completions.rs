//! `/v1/completions`.

use std::fmt::Write;

use engine_model::token::detokenize;

use super::{
    Delta, Events, Json,
    chat::{sglang_metadata, stream_usage, usage_chunk},
    finish_json, finish_name, ids_json, prompt_ids_json, stop_json, usage,
};
use crate::engine::{
    ask::StreamUsage,
    plan::{Reply, Totals},
};

pub(super) fn delta(reply: &Reply, delta: &Delta<'_>, events: &mut Events) {
    let (head, when) = (&reply.chunk_head, stream_usage(reply));
    let stop = stop_json(reply, delta.choice, delta.finish);
    events.data(|s| {
        let _ = write!(
            s,
            "{head}{{\"index\":{},\"text\":{},\"logprobs\":null,\"finish_reason\":{}",
            delta.choice,
            Json(delta.text),
            finish_json(delta.finish)
        );
        let running = || usage::running(reply, delta.totals);
        if reply.vocabulary.is_sglang() {
            let usage = if when == StreamUsage::Every {
                running()
            } else {
                "null".to_owned()
            };
            let _ = write!(s, ",\"matched_stop\":{stop}}}],\"usage\":{usage}}}");
            return;
        }
        let ids = ids_json(reply, delta.text);
        let _ = write!(
            s,
            ",\"stop_reason\":{stop},\"prompt_token_ids\":null,\"token_ids\":{ids}}}]"
        );
        if when == StreamUsage::Every {
            let _ = write!(s, ",\"usage\":{}", running());
        }
        if delta.finish.is_some() && when == StreamUsage::None {
            let _ = write!(s, ",\"system_fingerprint\":\"{}\"", reply.fingerprint);
        }
        s.push('}');
    });
}

pub(super) fn end(reply: &Reply, totals: Totals, events: &mut Events) {
    usage_chunk(reply, totals, events);
    events.done();
}

pub(super) fn whole(reply: &Reply, totals: Totals) -> String {
    let mut s = reply.chunk_head.clone();
    for (i, output) in reply.outputs.iter().enumerate() {
        if i > 0 {
            s.push(',');
        }
        let prompt = if reply.ask.echo {
            detokenize(&reply.ask.prompts[output.prompt])
        } else {
            String::new()
        };
        let text = format!("{prompt}{}", output.text);
        let (text, finish) = (Json(&text), finish_name(output.finish));
        let stop = stop_json(reply, i, Some(output.finish));
        let _ = if reply.vocabulary.is_sglang() {
            write!(
                s,
                "{{\"index\":{i},\"text\":{text},\"logprobs\":null,\"finish_reason\":\"{finish}\",\
                 \"matched_stop\":{stop}}}"
            )
        } else {
            let (ids, prompt_ids) = (ids_json(reply, &output.text), prompt_ids_json(reply, i));
            write!(
                s,
                "{{\"index\":{i},\"text\":{text},\"logprobs\":null,\"finish_reason\":\"{finish}\",\
                 \"stop_reason\":{stop},\"token_ids\":{ids},\"prompt_logprobs\":null,\
                 \"prompt_token_ids\":{prompt_ids},\"routed_experts\":null}}"
            )
        };
    }
    let usage = usage::whole(reply, totals);
    let _ = if reply.vocabulary.is_sglang() {
        write!(s, "],\"usage\":{usage},{}}}", sglang_metadata(totals))
    } else {
        write!(
            s,
            "],\"service_tier\":null,\"system_fingerprint\":\"{}\",\"usage\":{usage},\
             \"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}}",
            reply.fingerprint
        )
    };
    s
}
