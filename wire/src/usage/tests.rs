#![allow(clippy::needless_raw_string_hashes, reason = "expect-test writes them")]

use std::fmt::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::sse::Reader;

macro_rules! fixture {
    ($path:literal) => {
        &include_bytes!(concat!("../../tests/fixtures/", $path))[..]
    };
}

fn usage(prompt_tokens: u64, cached_tokens: Option<u64>, output_tokens: u64) -> Usage {
    Usage {
        prompt_tokens,
        cached_tokens,
        output_tokens,
    }
}

/// Calls `f` with each event's fact, for the whole stream.
fn facts(route: &Route, stream: &[u8], mut f: impl FnMut(&[u8], &StreamFact)) -> Meter {
    let mut reader = Reader::new();
    let mut meter = Meter::new();
    reader.push(stream);
    while let Some(event) = reader.next_event().expect("short lines") {
        let fact = stream_fact(route, event.name, event.data);
        meter.observe(&fact);
        f(event.data, &fact);
    }
    meter
}

/// One line for each event, one for the meter.
fn check(route: &Route, stream: &[u8], expected: &Expect) {
    let mut lines = String::new();
    let meter = facts(route, stream, |data, fact| {
        writeln!(lines, "{}", line(data, fact)).expect("strings take everything");
    });
    let flags = [
        ("generated", meter.generated()),
        ("finished", meter.finished()),
        ("done", meter.done()),
        ("failed", meter.failed()),
        ("unreported", meter.has_unreported_output()),
    ];
    lines.push('=');
    lines.extend(meter.usage().map(|usage| format!(" {}", counts(usage))));
    write!(lines, " estimate {}", meter.estimated_output_tokens())
        .expect("strings take everything");
    lines.extend(
        flags
            .iter()
            .filter(|flag| flag.1)
            .map(|flag| format!(" {}", flag.0)),
    );
    lines.push('\n');
    expected.assert_eq(&lines);
}

fn line(data: &[u8], fact: &StreamFact) -> String {
    let mut words = Vec::new();
    words.extend(fact.usage.map(counts));
    words.extend(
        fact.usage_choice
            .map(|choice| format!("of choice {choice}")),
    );
    words.extend(fact.generated.then(|| "generated".to_owned()));
    if fact.outputs > 0 {
        words.push(format!(
            "{} output {} bytes",
            fact.outputs, fact.output_bytes
        ));
    }
    words.extend(fact.finished.then(|| "finished".to_owned()));
    words.extend(fact.usage_only.then(|| "usage-only".to_owned()));
    words.extend(fact.done.then(|| "done".to_owned()));
    let text = |span: &Range<usize>| String::from_utf8_lossy(&data[span.clone()]).into_owned();
    words.extend(
        fact.error
            .as_ref()
            .map(|error| format!("error {:?} {}", error.status, text(&error.span))),
    );
    words.extend(
        fact.usage_member
            .as_ref()
            .map(|span| format!("cut {}", text(span))),
    );
    words.join(", ")
}

fn counts(usage: Usage) -> String {
    let cached = usage
        .cached_tokens
        .map_or("?".to_owned(), |cached| cached.to_string());
    format!("{}({cached})+{}", usage.prompt_tokens, usage.output_tokens)
}

#[test]
fn chat_streams_of_vllm() {
    let route = &Route::ChatCompletions;
    check(
        route,
        fixture!("vllm-0.32.0/chat-stream.body"),
        &expect![[r#"
        generated
        generated, 1 output 2 bytes
        generated, 1 output 2 bytes
        generated, 1 output 2 bytes
        generated, 1 output 2 bytes
        generated, 1 output 2 bytes
        generated, 1 output 2 bytes, finished
        done
        = estimate 6 generated finished done unreported
    "#]],
    );
    check(
        route,
        fixture!("vllm-0.32.0/chat-stream-usage.body"),
        &expect![[r#"
            generated
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes, finished
            92(64)+6, usage-only, cut ,"usage":{"prompt_tokens":92,"total_tokens":98,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":64,"created_cache_tokens":0}}
            done
            = 92(64)+6 estimate 6 generated finished done
        "#]],
    );
    check(
        route,
        fixture!("vllm-0.32.0/chat-stream-usage-continuous.body"),
        &expect![[r#"
            92(?)+0, of choice 0, generated, cut ,"usage":{"prompt_tokens":92,"total_tokens":92,"completion_tokens":0,"completion_tokens_details":null}
            92(?)+1, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":93,"completion_tokens":1,"completion_tokens_details":null}
            92(?)+2, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":94,"completion_tokens":2,"completion_tokens_details":null}
            92(?)+3, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":95,"completion_tokens":3,"completion_tokens_details":null}
            92(?)+4, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":96,"completion_tokens":4,"completion_tokens_details":null}
            92(?)+5, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":97,"completion_tokens":5,"completion_tokens_details":null}
            92(?)+6, of choice 0, generated, 1 output 2 bytes, finished, cut ,"usage":{"prompt_tokens":92,"total_tokens":98,"completion_tokens":6,"completion_tokens_details":null}
            92(64)+6, usage-only, cut ,"usage":{"prompt_tokens":92,"total_tokens":98,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":64,"created_cache_tokens":0}}
            done
            = 92(64)+6 estimate 6 generated finished done
        "#]],
    );
    check(
        route,
        fixture!("vllm-0.32.0/chat-stream-token-ids.body"),
        &expect![[r#"
            generated
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes, finished
            done
            = estimate 3 generated finished done unreported
        "#]],
    );
}

#[test]
fn chat_streams_of_sglang() {
    let route = &Route::ChatCompletions;
    check(
        route,
        fixture!("sglang-0.5.23/chat-stream-usage.body"),
        &expect![[r#"
            generated
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, 1 output 2 bytes
            generated, finished
            92(64)+5, usage-only, cut ,"usage":{"prompt_tokens":92,"total_tokens":97,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":64},"reasoning_tokens":0,"completion_tokens_details":null}
            done
            = 92(64)+5 estimate 5 generated finished done
        "#]],
    );
    check(
        route,
        fixture!("sglang-0.5.23/chat-stream-usage-continuous.body"),
        &expect![[r#"
            generated
            92(64)+1, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":93,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":64},"reasoning_tokens":0,"completion_tokens_details":null}
            92(64)+2, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":94,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":64},"reasoning_tokens":0,"completion_tokens_details":null}
            92(64)+3, of choice 0, generated, 1 output 2 bytes, cut ,"usage":{"prompt_tokens":92,"total_tokens":95,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64},"reasoning_tokens":0,"completion_tokens_details":null}
            generated, finished
            92(64)+3, usage-only, cut ,"usage":{"prompt_tokens":92,"total_tokens":95,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64},"reasoning_tokens":0,"completion_tokens_details":null}
            done
            = 92(64)+3 estimate 3 generated finished done
        "#]],
    );
}

#[test]
fn completion_streams() {
    let route = &Route::Completions;
    check(
        route,
        fixture!("vllm-0.32.0/completions-stream-usage.body"),
        &expect![[r#"
            generated, 1 output 0 bytes
            generated, 1 output 0 bytes
            generated, 1 output 0 bytes
            generated, 1 output 0 bytes, finished
            4(0)+4, usage-only, cut ,"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}
            done
            = 4(0)+4 estimate 4 generated finished done
        "#]],
    );
    check(
        route,
        fixture!("sglang-0.5.23/completions-stream-usage.body"),
        &expect![[r#"
            generated, 1 output 0 bytes, cut ,"usage":null
            generated, 1 output 0 bytes, cut ,"usage":null
            generated, 1 output 9 bytes, finished, cut ,"usage":null
            4(0)+3, usage-only, cut ,"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0},"reasoning_tokens":0}
            done
            = 4(0)+3 estimate 3 generated finished done
        "#]],
    );
    check(
        route,
        fixture!("vllm-0.32.0/completions-stream-killed.body"),
        &expect![[r#"
            generated, 1 output 2 bytes
            error Some(500) {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}
            done
            = estimate 1 generated done failed unreported
        "#]],
    );
    check(
        route,
        fixture!("vllm-0.32.0/completions-stream-sigterm.body"),
        &expect![[r#"
            generated, 1 output 0 bytes, finished
            done
            = estimate 1 generated finished done unreported
        "#]],
    );
}

#[test]
fn message_streams() {
    let route = &Route::Messages;
    check(
        route,
        fixture!("vllm-0.32.0/messages-stream.body"),
        &expect![[r#"
            15(?)+0, generated
            generated
            generated, 1 output 3 bytes
            generated, 1 output 4 bytes
            generated, 1 output 3 bytes
            generated, 1 output 4 bytes
            generated
            15(0)+4, generated, finished
            done
            = 15(0)+4 estimate 4 generated finished done
        "#]],
    );
    let cached = br#"event: message_start
data: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":10,"cache_read_input_tokens":50,"cache_creation_input_tokens":5,"output_tokens":1}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"usage"}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"usage\":{\"input_tokens\":9}}"}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":""}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}

event: error
data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}

"#;
    check(
        route,
        cached,
        &expect![[r#"
            65(50)+1, generated

            generated
            generated, 1 output 5 bytes
            generated, 1 output 32 bytes
            generated, 1 output 0 bytes
            0(?)+7, generated, finished
            error None {"type":"overloaded_error","message":"Overloaded"}
            = 65(50)+7 estimate 7 generated finished failed
        "#]],
    );
}

#[test]
fn response_streams() {
    let completed = br#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","instructions":"\"usage\":{}","error":null,"usage":null}}

event: response.in_progress
data: {"type":"response.in_progress","response":{"id":"resp_1","usage":null}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"type":"message","content":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"response.failed","logprobs":[]}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","delta":"{\"usage\":{\"input_tokens\":1}}"}

event: response.output_text.done
data: {"type":"response.output_text.done","text":"response.failed"}

event: response.incomplete
data: {"type":"response.incomplete","response":{"id":"resp_1","status":"incomplete","error":null,"output":[{"content":[{"text":"\"usage\""}]}],"usage":{"input_tokens":15,"input_tokens_details":{"cached_tokens":4,"input_tokens_per_turn":[]},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":19}}}

"#;
    check(
        &Route::Responses,
        completed,
        &expect![[r#"


            generated
            generated, 1 output 15 bytes
            generated, 1 output 32 bytes
            generated
            15(4)+4, generated, finished, done
            = 15(4)+4 estimate 4 generated finished done
        "#]],
    );
    let failed = br#"data: {"type":"response.created","response":{"usage":null}}

data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"engine died"},"usage":null}}

"#;
    check(
        &Route::Responses,
        failed,
        &expect![[r#"

        done, error None {"code":"server_error","message":"engine died"}
        = estimate 0 done failed
    "#]],
    );
    let error = br#"event: error
data: {"type":"error","code":500,"message":"engine died","param":null}

"#;
    check(
        &Route::Responses,
        error,
        &expect![[r#"
        done, error Some(500) {"type":"error","code":500,"message":"engine died","param":null}
        = estimate 0 done failed
    "#]],
    );
}

#[test]
fn whole_answers() {
    let chat = &Route::ChatCompletions;
    let text = &Route::Completions;
    for (name, route, body, expected) in [
        ("miss", chat, fixture!("vllm-0.32.0/chat-first.body"), Some(usage(92, Some(0), 8))),
        ("hit", chat, fixture!("vllm-0.32.0/chat-repeat-hit.body"), Some(usage(92, Some(64), 8))),
        ("n=2", chat, fixture!("vllm-0.32.0/chat-n2.body"), Some(usage(92, Some(64), 8))),
        ("logprobs", chat, fixture!("vllm-0.32.0/chat-logprobs.body"), Some(usage(92, Some(64), 3))),
        ("token ids", chat, fixture!("vllm-0.32.0/chat-token-ids.body"), Some(usage(92, Some(64), 3))),
        ("text", text, fixture!("vllm-0.32.0/completions-text.body"), Some(usage(4, Some(0), 5))),
        ("batch", text, fixture!("vllm-0.32.0/completions-batch.body"), Some(usage(7, Some(0), 6))),
        ("ids", text, fixture!("vllm-0.32.0/completions-tokens.body"), Some(usage(5, Some(0), 5))),
        ("messages", &Route::Messages, fixture!("vllm-0.32.0/messages.body"), Some(usage(15, Some(0), 4))),
        ("responses", &Route::Responses, fixture!("vllm-0.32.0/responses.body"), Some(usage(15, Some(0), 4))),
        ("sglang miss", chat, fixture!("sglang-0.5.23/chat-first.body"), Some(usage(92, Some(0), 8))),
        ("sglang hit", chat, fixture!("sglang-0.5.23/chat-repeat-hit.body"), Some(usage(92, Some(64), 8))),
        ("sglang text", text, fixture!("sglang-0.5.23/completions-text.body"), Some(usage(4, Some(0), 5))),
        ("error", chat, fixture!("vllm-0.32.0/err-unknown-model.body"), None),
        ("sglang error", chat, fixture!("sglang-0.5.23/err-bad-temperature.body"), None),
        ("tokenize", &Route::Tokenize, fixture!("vllm-0.32.0/tokenize-chat.body"), None),
        (
            "embeddings",
            &Route::Embeddings,
            br#"{"data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":6,"total_tokens":6,"completion_tokens":0}}"#,
            Some(usage(6, None, 0)),
        ),
        ("rerank", &Route::Rerank, br#"{"usage":{"total_tokens":56},"results":[]}"#, Some(usage(56, None, 0))),
        (
            "error with usage",
            chat,
            br#" {"error":{"message":"died","usage":{"prompt_tokens":1}},"usage":{"prompt_tokens":9,"completion_tokens":3}}"#,
            Some(usage(9, None, 3)),
        ),
        ("zeros", chat, br#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#, Some(usage(0, None, 0))),
        ("null", chat, br#"{"usage":null}"#, None),
        ("empty", chat, br#"{"usage":{}}"#, None),
        ("negative", chat, br#"{"usage":{"prompt_tokens":-1,"completion_tokens":2}}"#, Some(usage(0, None, 2))),
        ("huge", chat, br#"{"usage":{"prompt_tokens":99999999999999999999,"completion_tokens":2}}"#, Some(usage(0, None, 2))),
        ("cut", chat, br#"{"usage":{"prompt_tokens":12,"completion_tokens":2"#, None),
        ("not JSON", chat, b"upstream died", None),
        ("nothing", chat, b"", None),
        ("list", chat, br#"[{"usage":{"prompt_tokens":1}}]"#, None),
    ] {
        assert_eq!(from_body(route, body), expected, "{name}");
    }
}

#[test]
fn generated_text_passes_for_nothing_else() {
    let fake = r#"\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1},\"error\":{\"code\":500},\"model\":\"tiny"#;
    for (route, data) in [
        (
            Route::ChatCompletions,
            format!(
                r#"{{"model":"tiny","choices":[{{"index":0,"delta":{{"content":"{fake}"}},"finish_reason":null}}]}}"#
            ),
        ),
        (
            Route::ChatCompletions,
            format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"function":{{"arguments":"{fake}","usage":{{"prompt_tokens":3}}}}}}]}}}}]}}"#
            ),
        ),
        (
            Route::ChatCompletions,
            format!(
                r#"{{"{fake}":1,"choices":[{{"delta":{{"content":"a\\"}},"logprobs":{{"error":1,"finish_reason":"stop"}}}}]}}"#
            ),
        ),
        (
            Route::Completions,
            format!(
                r#"{{"choices":[{{"text":"{fake}","usage":{{"prompt_tokens":3}},"finish_reason":null}}]}}"#
            ),
        ),
        (
            Route::Messages,
            format!(
                r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"{fake}","usage":{{"input_tokens":1}}}}}}"#
            ),
        ),
        (
            Route::Responses,
            format!(
                r#"{{"type":"response.output_text.delta","delta":"{fake}","item":{{"usage":{{"input_tokens":1}}}}}}"#
            ),
        ),
    ] {
        let fact = stream_fact(&route, None, data.as_bytes());
        assert_eq!(
            (fact.usage, fact.usage_member, fact.error),
            (None, None, None),
            "{data}"
        );
        assert!(
            fact.generated && !fact.finished && !fact.done && fact.outputs == 1,
            "{data}"
        );
    }
    let done = stream_fact(
        &Route::ChatCompletions,
        None,
        br#"{"choices":[{"delta":{"content":"[DONE]"}}]}"#,
    );
    assert!(!done.done);
}

#[test]
fn cutting_usage_leaves_json_without_it() {
    for (data, expected) in [
        (r#"{"a":1,"usage":{"prompt_tokens":1}}"#, r#"{"a":1}"#),
        (
            r#"{"a":1,"usage":{"prompt_tokens":1},"b":2}"#,
            r#"{"a":1,"b":2}"#,
        ),
        (r#"{"usage":{"prompt_tokens":1},"b":2}"#, r#"{"b":2}"#),
        (r#"{"usage":null}"#, "{}"),
        (r#"{ "usage" : null , "b" : 2 }"#, r#"{  "b" : 2 }"#),
        (
            r#"{ "a" : 1 , "usage" : { } , "b" : 2 }"#,
            r#"{ "a" : 1  , "b" : 2 }"#,
        ),
    ] {
        let span = stream_fact(&Route::ChatCompletions, None, data.as_bytes()).usage_member;
        let span = span.expect("usage is there");
        let cut = [&data[..span.start], &data[span.end..]].concat();
        assert_eq!(cut, expected);
    }
    for route in [Route::Messages, Route::Responses] {
        let fact = stream_fact(
            &route,
            None,
            br#"{"type":"message_delta","usage":{"output_tokens":1}}"#,
        );
        assert_eq!(fact.usage_member, None);
    }
}

/// The index of a choice, its text, and usage as prompt and output tokens.
type Chunk = (u32, &'static str, Option<(u64, u64)>);

/// Feeds chat chunks; without text a chunk has no choices.
fn metered(chunks: &[Chunk]) -> Meter {
    let mut meter = Meter::new();
    for (index, text, usage) in chunks {
        let usage = usage.map_or(String::new(), |(prompt, output)| {
            format!(r#","usage":{{"prompt_tokens":{prompt},"completion_tokens":{output}}}"#)
        });
        let choices = if text.is_empty() {
            String::new()
        } else {
            format!(r#"{{"index":{index},"delta":{{"content":"{text}"}}}}"#)
        };
        let data = format!(r#"{{"choices":[{choices}]{usage}}}"#);
        meter.observe(&stream_fact(&Route::ChatCompletions, None, data.as_bytes()));
    }
    meter
}

#[test]
fn running_usage_of_several_choices_adds_up() {
    let mut chunks = vec![
        (0, "a", Some((9, 1))),
        (2, "b", Some((9, 1))),
        (0, "c", Some((9, 2))),
        (1, "d", Some((9, 1))),
        (2, "e", Some((9, 3))),
    ];
    assert_eq!(metered(&chunks).usage(), Some(usage(9, None, 6)));
    chunks.push((0, "", Some((9, 7))));
    assert_eq!(metered(&chunks).usage(), Some(usage(9, None, 7)));
    let many: Vec<_> = (0..1000).map(|index| (index, "a", Some((9, 1)))).collect();
    assert!(
        metered(&many)
            .usage()
            .is_some_and(|usage| usage.output_tokens <= 1000)
    );
}

#[test]
fn zeros_are_a_report_and_missing_usage_is_none() {
    assert_eq!(
        metered(&[(0, "", Some((0, 0)))]).usage(),
        Some(usage(0, None, 0))
    );
    let without = metered(&[(0, "a", None), (0, "bcdefgh", None)]);
    assert_eq!(without.usage(), None);
    assert_eq!(without.estimated_output_tokens(), 2);
    assert_eq!(
        metered(&[(0, "twelve bytes", None)]).estimated_output_tokens(),
        3
    );
}

#[test]
fn output_after_the_last_report_is_noticed() {
    assert!(!metered(&[(0, "a", Some((9, 1)))]).has_unreported_output());
    let more = metered(&[
        (0, "a", Some((9, 1))),
        (0, "b", None),
        (0, "eight by", None),
    ]);
    assert!(more.has_unreported_output());
    assert_eq!(more.estimated_output_tokens(), 1 + 3);
}

#[test]
fn error_objects_are_found_in_every_shape() {
    let sglang = fixture!("sglang-0.5.23/err-bad-temperature.body");
    let sglang = std::str::from_utf8(sglang).expect("text");
    for (route, data, status) in [
        (Route::ChatCompletions, sglang, Some(400)),
        (
            Route::Completions,
            r#"{"error":{"message":"x","code":503}}"#,
            Some(503),
        ),
        (
            Route::Completions,
            r#"{"error":{"code":"rate_limited"}}"#,
            None,
        ),
        (Route::Completions, r#"{"error":{"code":7}}"#, None),
        (Route::ChatCompletions, r#"{"error":"Unauthorized"}"#, None),
        (
            Route::Messages,
            r#"{"type":"error","error":{"type":"x"}}"#,
            None,
        ),
        (Route::Responses, r#"{"type":"error","code":"500"}"#, None),
    ] {
        let error = stream_fact(&route, None, data.as_bytes()).error;
        assert_eq!(error.map(|error| error.status), Some(status), "{data}");
    }
    for data in [
        r#"{"error":null,"choices":[]}"#,
        r#"{"object":"chat.completion.chunk","code":500}"#,
    ] {
        assert_eq!(
            stream_fact(&Route::ChatCompletions, None, data.as_bytes()).error,
            None,
            "{data}"
        );
    }
}

#[test]
fn reports_that_are_cut_off_are_none() {
    let whole = r#"{"type":"message_delta","usage":{"input_tokens":12,"output_tokens":34}}"#;
    for length in 0..whole.len() - 1 {
        let fact = stream_fact(&Route::Messages, None, &whole.as_bytes()[..length]);
        assert_eq!(fact.usage, None, "{length}");
    }
}

#[test]
fn the_text_of_an_error_is_not_output() {
    let data = br#"{"error":{"message":"x","code":500},"choices":[{"delta":{"content":"internal error"}}]}"#;
    let mut meter = Meter::new();
    meter.observe(&stream_fact(&Route::ChatCompletions, None, data));
    assert!(meter.failed());
    assert_eq!(meter.estimated_output_tokens(), 0);
}

const ROUTES: [Route; 5] = [
    Route::ChatCompletions,
    Route::Completions,
    Route::Embeddings,
    Route::Messages,
    Route::Responses,
];

fn chunk() -> impl Strategy<Value = Vec<u8>> {
    let streams = [
        fixture!("vllm-0.32.0/chat-stream-usage-continuous.body"),
        fixture!("vllm-0.32.0/messages-stream.body"),
        fixture!("sglang-0.5.23/completions-stream-usage.body"),
        fixture!("vllm-0.32.0/completions-stream-killed.body"),
        fixture!("vllm-0.32.0/responses.body"),
    ];
    let lines = streams.concat();
    let lines: Vec<Vec<u8>> = lines
        .split(|&byte| byte == b'\n')
        .filter(|line| line.len() > 20)
        .map(|line| line.strip_prefix(b"data: ").unwrap_or(line).to_vec())
        .collect();
    prop::sample::select(lines)
}

proptest! {
    #[test]
    fn damaged_chunks_do_no_harm(
        chunk in chunk(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        route in prop::sample::select(ROUTES.to_vec()),
    ) {
        let mut data = chunk;
        for (index, byte) in damage {
            let at = index.index(data.len());
            data[at] = byte;
        }
        data.truncate(cut.index(data.len()) + 1);
        let fact = stream_fact(&route, None, &data);
        let spans = [fact.usage_member, fact.error.map(|error| error.span)];
        for span in spans.into_iter().flatten() {
            prop_assert!(data.get(span).is_some());
        }
        from_body(&route, &data);
    }

    #[test]
    fn chat_chunks_read_as_a_full_parse_reads_them(
        contents in prop::collection::vec(prop_oneof![Just(None), any::<String>().prop_map(Some)], 0..3),
        counts in prop::option::of((any::<u32>(), any::<u32>(), prop::option::of(any::<u32>()))),
        reason in prop::option::of("[a-z\"\\\\]{1,8}"),
        extra in "[a-z\"{}:,\\[\\]]{0,12}",
    ) {
        let choices: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(index, content)| serde_json::json!({"index": index, "delta": {"content": content}, "finish_reason": reason}))
            .collect();
        let usage = counts.map(|(prompt, output, cached)| serde_json::json!({
            "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 1,
            "prompt_tokens_details": cached.map(|cached| serde_json::json!({"cached_tokens": cached})),
        }));
        let chunk = serde_json::json!({"id": extra, "choices": choices, (format!("x{extra}")): extra, "usage": usage});
        for text in [chunk.to_string(), serde_json::to_string_pretty(&chunk).expect("values print")] {
            let fact = stream_fact(&Route::ChatCompletions, None, text.as_bytes());
            let expected = counts.map(|(prompt, output, cached)| Usage {
                prompt_tokens: prompt.into(),
                cached_tokens: cached.map(u64::from),
                output_tokens: output.into(),
            });
            prop_assert_eq!(fact.usage, expected);
            prop_assert_eq!(fact.generated, !contents.is_empty());
            prop_assert_eq!(fact.outputs as usize, contents.iter().flatten().count());
            prop_assert_eq!(fact.finished, reason.is_some() && !contents.is_empty());
            prop_assert_eq!(fact.usage_only, contents.is_empty() && counts.is_some());
            prop_assert_eq!(fact.error, None);
            let span = fact.usage_member.expect("usage is there, if only as null");
            let rest = [&text[..span.start], &text[span.end..]].concat();
            let mut expected = chunk.clone();
            expected.as_object_mut().expect("an object").remove("usage");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&rest).ok(), Some(expected));
        }
    }
}
