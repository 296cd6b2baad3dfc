use super::*;

fn facts(route: &Route, body: &str, domain: &str) -> Facts {
    Facts::read(route, body.as_bytes(), domain).expect("valid JSON")
}

fn chat(turns: &[&str]) -> String {
    let turns: Vec<String> = turns
        .iter()
        .map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#))
        .collect();
    format!(
        r#"{{"model":"m","stream":true,"messages":[{}]}}"#,
        turns.join(",")
    )
}

#[test]
fn model_and_stream_are_read_from_the_top_level_only() {
    for (body, model, stream) in [
        (r#"{"model":"m","stream":true}"#, "m", true),
        (r#"{"mod\u0065l":"m\u0041","stream":false}"#, "mA", false),
        (r#"{"messages":[{"model":"x","stream":true}]}"#, "", false),
        (r#"{"model":7,"stream":"yes"}"#, "", false),
        ("[]", "", false),
    ] {
        let facts = facts(&Route::ChatCompletions, body, "d");
        assert_eq!((&*facts.model, facts.stream), (model, stream), "{body}");
    }
}

#[test]
fn a_conversation_that_goes_on_keeps_its_blocks() {
    let (first, second, third) = ("a".repeat(700), "b".repeat(900), "c".repeat(300));
    let short = facts(&Route::ChatCompletions, &chat(&[&first, &second]), "d").blocks;
    let long = facts(
        &Route::ChatCompletions,
        &chat(&[&first, &second, &third]),
        "d",
    )
    .blocks;
    assert!(short.len() >= 6, "{}", short.len());
    assert!(long.len() > short.len());
    assert_eq!(long[..short.len()], short);
}

#[test]
fn cache_domains_and_models_share_no_block() {
    let body = chat(&["a".repeat(700).as_str()]);
    let other_model = body.replace(r#""model":"m""#, r#""model":"n""#);
    let of = |body: &str, domain| facts(&Route::ChatCompletions, body, domain).blocks[0];
    assert_ne!(of(&body, "d").hash, of(&body, "e").hash);
    assert_ne!(of(&body, "d").hash, of(&other_model, "d").hash);
}

#[test]
fn token_ids_are_counted_exactly() {
    let ids: Vec<String> = (0..40).map(|id| id.to_string()).collect();
    let body = format!(r#"{{"model":"m","prompt":[{}]}}"#, ids.join(","));
    let blocks = facts(&Route::Completions, &body, "d").blocks;
    let ends: Vec<u32> = blocks.iter().map(|block| block.end_tokens).collect();
    assert_eq!(ends, [16, 32]);
}

#[test]
fn what_two_parsers_could_read_differently_is_refused() {
    for body in [r#"{"model":"a","model":"b"}"#, "{", "", "{} {}"] {
        assert!(
            Facts::read(&Route::Completions, body.as_bytes(), "d").is_err(),
            "{body}"
        );
    }
}
