use super::*;
use crate::sse::Reader;

macro_rules! fixture {
    ($path:literal) => {
        &include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/",
            $path
        ))[..]
    };
}

mod properties;
mod streams;

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
