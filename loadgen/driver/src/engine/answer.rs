//! Answers in the words of each API: whole bodies and stream events, as text.

use std::{collections::VecDeque, fmt::Write};

use bytes::Bytes;
use engine_model::token;

use super::{
    ask::{Family, TokenIds},
    flight::Progress,
    plan::{Finish, Reply, Totals},
};

mod chat;
mod completions;
mod json;
mod messages;
mod responses;
mod usage;

pub(super) use json::Json;
pub(super) use usage::whole as usage;

/// Events of a stream that were not sent yet, each one chunk.
#[derive(Default)]
pub(super) struct Events {
    ready: VecDeque<Bytes>,
    /// Reused for every event.
    scratch: String,
}

impl Events {
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// `data: ` and what `write` adds.
    fn data(&mut self, write: impl FnOnce(&mut String)) {
        self.scratch.clear();
        self.push(write);
    }

    /// `event: name` and its data.
    fn named(&mut self, name: &str, write: impl FnOnce(&mut String)) {
        self.scratch.clear();
        let _ = writeln!(self.scratch, "event: {name}");
        self.push(write);
    }

    fn push(&mut self, write: impl FnOnce(&mut String)) {
        self.scratch.push_str("data: ");
        write(&mut self.scratch);
        self.scratch.push_str("\n\n");
        self.ready
            .push_back(Bytes::copy_from_slice(self.scratch.as_bytes()));
    }

    pub(super) fn done(&mut self) {
        self.data(|s| s.push_str("[DONE]"));
    }

    /// The error of an engine that failed under a stream.
    pub(super) fn engine_failed(&mut self) {
        self.data(|s| {
            s.push_str(
                "{\"error\": {\"message\": \"EngineCore encountered an issue. See stack trace (above) for the \
                 root cause.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}",
            );
        });
        self.done();
    }
}

/// More of one choice.
pub(super) struct Delta<'a> {
    pub(super) choice: usize,
    pub(super) text: &'a str,
    /// Set in the last one.
    pub(super) finish: Option<Finish>,
    /// Of the choice's prompt and of the choice itself, so far.
    pub(super) totals: Totals,
}

/// Writes the stream of one family.
pub(super) enum Writer {
    Chat,
    Completions,
    Messages,
    Responses(responses::Stream),
}

impl Writer {
    pub(super) fn new(family: Family) -> Self {
        match family {
            Family::Chat => Self::Chat,
            Family::Completions => Self::Completions,
            Family::Messages => Self::Messages,
            Family::Responses => Self::Responses(responses::Stream::default()),
        }
    }

    /// The first token of a choice is there.
    pub(super) fn begin(
        &mut self,
        reply: &Reply,
        choice: usize,
        totals: Totals,
        events: &mut Events,
    ) {
        match self {
            Self::Chat => chat::begin(reply, choice, totals, events),
            Self::Completions => {}
            Self::Messages => messages::begin(reply, totals, events),
            Self::Responses(stream) => stream.begin(reply, events),
        }
    }

    pub(super) fn delta(&mut self, reply: &Reply, delta: &Delta<'_>, events: &mut Events) {
        match self {
            Self::Chat => chat::delta(reply, delta, events),
            Self::Completions => completions::delta(reply, delta, events),
            Self::Messages => messages::delta(delta, events),
            Self::Responses(stream) => stream.delta(reply, delta, events),
        }
    }

    /// All choices are complete.
    pub(super) fn end(
        &mut self,
        reply: &Reply,
        totals: Totals,
        finish: Finish,
        events: &mut Events,
    ) {
        match self {
            Self::Chat => chat::end(reply, totals, events),
            Self::Completions => completions::end(reply, totals, events),
            Self::Messages => messages::end(reply, totals, finish, events),
            Self::Responses(stream) => stream.end(reply, totals, finish, events),
        }
    }
}

/// Members a chunk or body begins with, up to the opening of its choices.
pub(super) fn head(id: &str, object: &str, created: u64, model: &str) -> String {
    format!(
        "{{\"id\":{},\"object\":\"{object}\",\"created\":{created},\"model\":{},\"choices\":[",
        Json(id),
        Json(model)
    )
}

/// The whole body once all choices are complete.
pub(super) fn whole(reply: &Reply, progress: &[Progress]) -> String {
    let totals = reply.totals(progress);
    match reply.ask.family {
        Family::Chat => chat::whole(reply, totals),
        Family::Completions => completions::whole(reply, totals),
        Family::Messages => messages::whole(reply, totals),
        Family::Responses => responses::whole(reply, totals),
    }
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Abort => "abort",
    }
}

/// `"stop"`-like name or `null`.
fn finish_json(finish: Option<Finish>) -> &'static str {
    match finish {
        None => "null",
        Some(Finish::Stop) => "\"stop\"",
        Some(Finish::Length) => "\"length\"",
        Some(Finish::Abort) => "\"abort\"",
    }
}

/// The stop string that ended a choice, or `null`.
fn stop_json(reply: &Reply, choice: usize, finish: Option<Finish>) -> String {
    match &reply.outputs[choice].stop {
        Some(stop) if finish == Some(Finish::Stop) => Json(stop).to_string(),
        _ => "null".to_owned(),
    }
}

/// Ids of `text` as a list, or `null` if nobody asked.
fn ids_json(reply: &Reply, text: &str) -> String {
    if reply.ask.token_ids == TokenIds::Omitted {
        return "null".to_owned();
    }
    let mut tokens = Vec::new();
    token::tokenize(text, &mut tokens);
    list(&tokens)
}

fn prompt_ids_json(reply: &Reply, choice: usize) -> String {
    match reply.ask.token_ids {
        TokenIds::Omitted => "null".to_owned(),
        TokenIds::Returned => list(&reply.ask.prompts[reply.outputs[choice].prompt]),
    }
}

fn list(tokens: &[u32]) -> String {
    let mut text = String::with_capacity(tokens.len() * 8 + 2);
    text.push('[');
    for (i, token) in tokens.iter().enumerate() {
        let _ = write!(text, "{}{token}", if i == 0 { "" } else { "," });
    }
    text.push(']');
    text
}
