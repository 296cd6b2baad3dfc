//! `/v1/responses`.

use std::fmt::Write;

use super::{Delta, Events, Json};
use crate::engine::plan::{Finish, Reply, Totals};

/// Position in the sequence of events, and the text so far.
#[derive(Default)]
pub(in crate::engine) struct Stream {
    sequence: u32,
    text: String,
}

impl Stream {
    /// One event of type `kind` with `members` after it.
    fn event(&mut self, events: &mut Events, kind: &str, members: &str) {
        let sequence = self.sequence;
        self.sequence += 1;
        events.named(kind, |s| {
            let _ = write!(
                s,
                "{{\"type\":\"{kind}\",\"sequence_number\":{sequence},{members}}}"
            );
        });
    }

    pub(super) fn begin(&mut self, reply: &Reply, events: &mut Events) {
        let response = format!("\"response\":{}", body(reply, "in_progress", &[], None));
        self.event(events, "response.created", &response);
        self.event(events, "response.in_progress", &response);
        let item = item(reply, "in_progress", "[]");
        self.event(
            events,
            "response.output_item.added",
            &format!("\"output_index\":0,\"item\":{item}"),
        );
        let part = format!("{},\"part\":{}", place(reply), part(""));
        self.event(events, "response.content_part.added", &part);
    }

    pub(super) fn delta(&mut self, reply: &Reply, delta: &Delta<'_>, events: &mut Events) {
        if delta.text.is_empty() {
            return;
        }
        self.text.push_str(delta.text);
        let members = format!(
            "{},\"delta\":{},\"logprobs\":[]",
            place(reply),
            Json(delta.text)
        );
        self.event(events, "response.output_text.delta", &members);
    }

    pub(super) fn end(
        &mut self,
        reply: &Reply,
        totals: Totals,
        finish: Finish,
        events: &mut Events,
    ) {
        let text = std::mem::take(&mut self.text);
        let done = format!("{},\"text\":{},\"logprobs\":[]", place(reply), Json(&text));
        self.event(events, "response.output_text.done", &done);
        let part_done = format!("{},\"part\":{}", place(reply), part(&text));
        self.event(events, "response.content_part.done", &part_done);
        let item = item(reply, "completed", &format!("[{}]", part(&text)));
        self.event(
            events,
            "response.output_item.done",
            &format!("\"output_index\":0,\"item\":{item}"),
        );
        let status = if finish == Finish::Length {
            "incomplete"
        } else {
            "completed"
        };
        let response = format!(
            "\"response\":{}",
            body(reply, status, &[item], Some(totals))
        );
        // The real server names the event so whatever the status is.
        self.event(events, "response.completed", &response);
    }
}

/// Where in the response a part of the text belongs.
fn place(reply: &Reply) -> String {
    format!(
        "\"item_id\":\"msg_{}\",\"output_index\":0,\"content_index\":0",
        item_number(reply)
    )
}

fn item_number(reply: &Reply) -> &str {
    reply.id.trim_start_matches("resp_")
}

fn part(text: &str) -> String {
    format!(
        "{{\"annotations\":[],\"text\":{},\"type\":\"output_text\",\"logprobs\":null}}",
        Json(text)
    )
}

fn item(reply: &Reply, status: &str, content: &str) -> String {
    format!(
        "{{\"id\":\"msg_{}\",\"content\":{content},\"role\":\"assistant\",\"status\":\"{status}\",\
         \"type\":\"message\",\"phase\":null}}",
        item_number(reply)
    )
}

fn usage(t: Totals) -> String {
    format!(
        "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},\"cache_write_tokens\":{},\
         \"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]}},\"output_tokens\":{},\
         \"output_tokens_details\":{{\"reasoning_tokens\":0,\"tool_output_tokens\":0,\
         \"output_tokens_per_turn\":[],\"tool_output_tokens_per_turn\":[]}},\"total_tokens\":{}}}",
        t.prompt,
        t.cached,
        t.newly_cached,
        t.output,
        t.prompt + t.output
    )
}

fn body(reply: &Reply, status: &str, output: &[String], totals: Option<Totals>) -> String {
    let incomplete = if status == "incomplete" {
        "{\"reason\":\"max_output_tokens\"}"
    } else {
        "null"
    };
    let max = reply
        .ask
        .max_tokens
        .map_or("null".to_owned(), |n| n.to_string());
    format!(
        "{{\"id\":{},\"created_at\":{},\"incomplete_details\":{incomplete},\"instructions\":null,\
         \"metadata\":null,\"model\":{},\"object\":\"response\",\"output\":[{}],\"parallel_tool_calls\":true,\
         \"temperature\":{:?},\"tool_choice\":\"none\",\"tools\":[],\"top_p\":{:?},\"background\":false,\
         \"max_output_tokens\":{max},\"max_tool_calls\":null,\"previous_response_id\":null,\"prompt\":null,\
         \"reasoning\":null,\"service_tier\":\"auto\",\"status\":\"{status}\",\"text\":null,\
         \"top_logprobs\":null,\"truncation\":\"disabled\",\"usage\":{},\"user\":null,\
         \"presence_penalty\":0.0,\"frequency_penalty\":0.0,\"kv_transfer_params\":null,\
         \"ec_transfer_params\":null,\"input_messages\":null,\"output_messages\":null}}",
        Json(&reply.id),
        reply.created,
        Json(&reply.ask.model),
        output.join(","),
        reply.ask.temperature,
        reply.ask.top_p,
        totals.map_or("null".to_owned(), usage)
    )
}

pub(super) fn whole(reply: &Reply, totals: Totals) -> String {
    let output = &reply.outputs[0];
    let status = if output.finish == Finish::Length {
        "incomplete"
    } else {
        "completed"
    };
    let item = item(reply, "completed", &format!("[{}]", part(&output.text)));
    body(reply, status, &[item], Some(totals))
}
