use super::*;
use crate::json::Document;

/// The pieces as text: `|` for a boundary, `#` before token ids, `@` before media.
fn check(route: &Route, body: &str, expected: &str) {
    let document = Document::parse(body.as_bytes()).expect("valid");
    let mut seen = Vec::new();
    pieces(route, document.root(), &mut |piece| {
        seen.push(match piece {
            Piece::Text(raw) => String::from_utf8_lossy(raw).into_owned(),
            Piece::Tokens(ids) => format!("#{:?}", ids.collect::<Vec<_>>()),
            Piece::Media(raw) => format!("@{}", String::from_utf8_lossy(raw)),
            Piece::Boundary => "|".to_owned(),
        });
    });
    assert_eq!(seen.join(" "), expected, "{body}");
}

#[test]
fn chat_is_tools_then_turns() {
    let route = &Route::ChatCompletions;
    for (body, expected) in [
        (
            r#"{"messages":[{"role":"user","content":"a\n\"b"}]}"#,
            r#"user a\n\"b |"#,
        ),
        (
            r#"{"messages":[{"content":"s","role":"system"},{"role":"user","content":"q"}],"tools":[{"type":"function"}]}"#,
            r#"{"type":"function"} | system s | user q |"#,
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}]}"#,
            r#"user a @{"type":"image_url","image_url":{"url":"u"}} |"#,
        ),
        (
            r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}"#,
            r#"assistant {"id":"1","function":{"name":"f"}} | tool 1 r |"#,
        ),
        (r#"{"messages":[]}"#, ""),
        (r#"{"messages":7}"#, ""),
        (r#"{"messages":[7,null,"x"]}"#, "| | |"),
        ("[]", ""),
    ] {
        check(route, body, expected);
    }
}

#[test]
fn other_calls_have_their_own_order() {
    for (route, body, expected) in [
        (
            Route::Messages,
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"r"}]},{"type":"text","text":"q","cache_control":{"type":"ephemeral"}}]}],"system":[{"type":"text","text":"s"}]}"#,
            "s | user r q |",
        ),
        (
            Route::CountTokens,
            r#"{"system":"s","messages":[{"role":"user","content":"q"}]}"#,
            "s | user q |",
        ),
        (
            Route::Responses,
            r#"{"instructions":"s","input":"q"}"#,
            "s | q |",
        ),
        (
            Route::Responses,
            r#"{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"q"}]},{"type":"function_call_output","call_id":"c","output":"o"}]}"#,
            "user q | c o |",
        ),
        (Route::Completions, r#"{"prompt":"p"}"#, "p |"),
        (Route::Completions, r#"{"prompt":["p","q"]}"#, "p | q |"),
        (Route::Completions, r#"{"prompt":[1, 2,3]}"#, "#[1, 2, 3] |"),
        (
            Route::Completions,
            r#"{"prompt":[[1],[2,3]]}"#,
            "#[1] | #[2, 3] |",
        ),
        (
            Route::Completions,
            r#"{"prompt":[1,-2,1.5,99999999999]}"#,
            "#[1] |",
        ),
        (Route::Embeddings, r#"{"input":["a","b"]}"#, "a | b |"),
        (
            Route::Rerank,
            r#"{"documents":["a","b"],"query":"q"}"#,
            "q | a | b |",
        ),
        (Route::Tokenize, r#"{"prompt":"p"}"#, "p |"),
        (
            Route::Tokenize,
            r#"{"messages":[{"role":"user","content":"q"}]}"#,
            "user q |",
        ),
        (Route::Models, "{}", ""),
    ] {
        check(&route, body, expected);
    }
}

#[test]
fn a_longer_conversation_begins_with_the_pieces_of_the_shorter_one() {
    let pieces_of = |body: &str| {
        let document = Document::parse(body.as_bytes()).expect("valid");
        let mut seen = Vec::new();
        pieces(&Route::ChatCompletions, document.root(), &mut |piece| {
            seen.push(format!("{piece:?}"));
        });
        seen
    };
    let turn = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"}"#;
    let short = pieces_of(&format!(r#"{{"messages":[{turn}],"max_tokens":1}}"#));
    let long = pieces_of(&format!(
        r#"{{"model":"m","messages":[{turn},{{"role":"user","content":"c"}}]}}"#
    ));
    assert!(long.len() > short.len() && long.starts_with(&short));
}

#[test]
fn sizes_count_bytes_of_text_not_of_json() {
    let size = |route: &Route, body: &str| {
        Size::of(
            route,
            Document::parse(body.as_bytes()).expect("valid").root(),
        )
    };
    let chat = size(
        &Route::ChatCompletions,
        r#"{"messages":[{"role":"user","content":"\u65e5\n\ud83d\ude00"},{"role":"user","content":[{"type":"input_audio"}]}]}"#,
    );
    let expected = Size {
        text_bytes: 4 + 8 + 4,
        token_ids: 0,
        turns: 2,
        media: 1,
    };
    assert_eq!(chat, expected);
    assert_eq!(chat.estimated_tokens(4000), 4 + 16);
    assert_eq!(chat.most_tokens(), 16 + 16);
    for (route, body, text_bytes) in [
        (
            Route::ChatCompletions,
            r#"{"messages":[],"documents":[{"type":"text","title":"t"}]}"#,
            29,
        ),
        (
            Route::ChatCompletions,
            r#"{"messages":[],"chat_template_kwargs":{"date_string":"long"}}"#,
            22,
        ),
        (
            Route::Messages,
            r#"{"messages":[],"chat_template_kwargs":{"a":[1]}}"#,
            9,
        ),
        (
            Route::Completions,
            r#"{"prompt":"p","documents":["not read"]}"#,
            1,
        ),
    ] {
        assert_eq!(size(&route, body).text_bytes, text_bytes, "{body}");
    }
    let ids = size(&Route::Completions, r#"{"prompt":[[1,2],[3]]}"#);
    assert_eq!((ids.token_ids, ids.turns, ids.text_bytes), (3, 2, 0));
}

#[test]
fn recorded_prompts_have_no_more_tokens_than_the_bound() {
    for (route, body, tokens) in [
        (
            Route::ChatCompletions,
            &include_bytes!("../../tests/fixtures/vllm-0.32.0/chat-first.request.json")[..],
            92,
        ),
        (
            Route::Messages,
            include_bytes!("../../tests/fixtures/vllm-0.32.0/messages.request.json"),
            15,
        ),
        (
            Route::Responses,
            include_bytes!("../../tests/fixtures/vllm-0.32.0/responses.request.json"),
            15,
        ),
        (
            Route::Completions,
            include_bytes!("../../tests/fixtures/vllm-0.32.0/completions-tokens.request.json"),
            5,
        ),
    ] {
        let document = Document::parse(body).expect("valid");
        let size = Size::of(&route, document.root());
        assert!(size.most_tokens() >= tokens, "{size:?}");
    }
}
