use governance_core::sanitize::{UnknownFields, body};
use inference_wire::json::Document;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config::{Config, File};

fn model(extra: &Value) -> Model {
    let mut model = json!({"name": "demo", "context_tokens": 1000, "max_output_tokens": 200,
        "default_max_tokens": 50});
    for (name, value) in extra.as_object().expect("an object") {
        model[name] = value.clone();
    }
    let file: File = serde_json::from_value(json!({"models": [model]})).expect("a configuration");
    let config = Config::check(file).expect("a valid configuration");
    Model::clone(config.models.find("demo").expect("the model"))
}

fn size(route: &Route, model: &Model, body: &Value) -> Result<RequestSize, Refused> {
    let text = body.to_string();
    let document = Document::parse(text.as_bytes()).expect("JSON");
    let checked = body::check(route, &document, UnknownFields::Drop).expect("a valid body");
    RequestSize::of(route, model, &checked)
}

#[test]
fn bounds_follow_the_caller_the_model_and_the_context() {
    let model = model(&json!({}));
    let chat = |extra: Value| {
        let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in extra.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    for (extra, bound, clamped, output) in [
        (json!({}), 50, None, 50),
        (json!({"max_tokens": 10}), 10, None, 10),
        (json!({"max_tokens": 900}), 200, Some(200), 200),
        (json!({"max_completion_tokens": 20, "n": 3}), 20, None, 60),
    ] {
        let size = size(&Route::ChatCompletions, &model, &chat(extra.clone())).expect("it fits");
        assert_eq!(
            (size.bound, size.clamped(), size.output()),
            (bound, clamped, output),
            "{extra}"
        );
    }
}

#[test]
fn independent_prompts_count_each() {
    let model = model(&json!({}));
    let body =
        json!({"model": "demo", "prompt": ["one", "two", "three"], "max_tokens": 10, "n": 2});
    let size = size(&Route::Completions, &model, &body).expect("it fits");
    assert_eq!((size.choices, size.output()), (6, 60));
}

#[test]
fn media_cost_what_the_context_allows() {
    let model = model(&json!({}));
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]});
    assert_eq!(
        size(&Route::ChatCompletions, &model, &body)
            .expect("it fits")
            .most,
        1000
    );
}

#[test]
fn routes_that_generate_nothing_have_no_bound() {
    let model = model(&json!({}));
    let body = json!({"model": "demo", "input": "hello"});
    let size = size(&Route::Embeddings, &model, &body).expect("it fits");
    assert_eq!((size.bound, size.output(), size.clamped()), (0, 0, None));
}

#[test]
fn lowering_a_bound_leaves_something_or_says_no() {
    let model = model(&json!({}));
    let body = json!({"model": "demo", "prompt": "hi", "max_tokens": 10});
    let mut size = size(&Route::Completions, &model, &body).expect("it fits");
    assert!(!size.lower_bound(0) && !size.lower_bound(10) && !size.lower_bound(11));
    assert!(size.lower_bound(4));
    assert_eq!(size.clamped(), Some(4));
}

proptest! {
    /// Whatever tokens of 1 to 128 bytes a tokenizer makes, the largest prompt covers them and a
    /// prompt that fits is not refused.
    #[test]
    fn no_tokenizer_falls_outside_the_bounds(lengths in prop::collection::vec(1usize..=128, 0..60)) {
        let model = model(&json!({"context_tokens": 100, "max_output_tokens": 10, "default_max_tokens": 10}));
        let text = "x".repeat(lengths.iter().sum());
        let body = json!({"model": "demo", "prompt": text, "max_tokens": 1});
        let size = size(&Route::Completions, &model, &body);
        // 60 tokens fit a context of 100.
        let size = size.expect("a prompt that may fit is not refused");
        prop_assert!(size.most >= lengths.len() as u64);
        prop_assert!(size.estimated <= size.most);
    }
}
