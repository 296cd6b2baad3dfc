//! `/v1/messages`, as the engines serve it natively.

use std::fmt::Write;

use super::{Delta, Events, Json};
use crate::engine::plan::{Finish, Reply, Totals};

fn usage(t: Totals) -> String {
    format!(
        "{{\"input_tokens\":{},\"output_tokens\":{},\"cache_creation_input_tokens\":{},\
         \"cache_read_input_tokens\":{}}}",
        t.prompt, t.output, t.newly_cached, t.cached
    )
}

fn stop_reason(reply: &Reply, finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "max_tokens",
        Finish::Stop if reply.outputs[0].stop.is_some() => "stop_sequence",
        Finish::Stop | Finish::Abort => "end_turn",
    }
}

pub(super) fn begin(reply: &Reply, totals: Totals, events: &mut Events) {
    events.named("message_start", |s| {
        let _ = write!(
            s,
            "{{\"type\":\"message_start\",\"message\":{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\
             \"content\":[],\"model\":{},\"stop_reason\":null,\"stop_sequence\":null,\"usage\":\
             {{\"input_tokens\":{},\"output_tokens\":0}}}}}}",
            Json(&reply.id),
            Json(&reply.ask.model),
            totals.prompt
        );
    });
    events.named("content_block_start", |s| {
        s.push_str(
            "{\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}",
        );
    });
}

pub(super) fn delta(delta: &Delta<'_>, events: &mut Events) {
    if delta.text.is_empty() {
        return;
    }
    events.named("content_block_delta", |s| {
        let _ = write!(
            s,
            "{{\"type\":\"content_block_delta\",\"delta\":{{\"type\":\"text_delta\",\"text\":{}}},\"index\":0}}",
            Json(delta.text)
        );
    });
}

pub(super) fn end(reply: &Reply, totals: Totals, finish: Finish, events: &mut Events) {
    events.named("content_block_stop", |s| {
        s.push_str("{\"type\":\"content_block_stop\",\"index\":0}");
    });
    let stop = reply.outputs[0]
        .stop
        .as_deref()
        .map_or("null".to_owned(), |s| Json(s).to_string());
    events.named("message_delta", |s| {
        let _ = write!(
            s,
            "{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"{}\",\"stop_sequence\":{stop}}},\
             \"usage\":{}}}",
            stop_reason(reply, finish),
            usage(totals)
        );
    });
    events.named("message_stop", |s| {
        s.push_str("{\"type\":\"message_stop\"}");
    });
}

pub(super) fn whole(reply: &Reply, totals: Totals) -> String {
    let output = &reply.outputs[0];
    format!(
        "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"content\":[{{\"type\":\"text\",\"text\":{}}}],\
         \"model\":{},\"stop_reason\":\"{}\",\"usage\":{}}}",
        Json(&reply.id),
        Json(&output.text),
        Json(&reply.ask.model),
        stop_reason(reply, output.finish),
        usage(totals)
    )
}
