//! Recorded streams, event by event.
#![allow(clippy::needless_raw_string_hashes, reason = "expect-test writes them")]

use std::fmt::Write;

use expect_test::{Expect, expect};

use super::*;

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
