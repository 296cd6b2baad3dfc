//! The body half of the spoof matrix: every reserved field at every place an engine reads, in every spelling.

use super::*;

/// The reserved fields as their engines spell them.
const FIELDS: &[&str] = &[
    "priority",
    "nvext",
    "cache_salt",
    "extra_key",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "data_parallel_rank",
    "routed_dp_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "rid",
    "request_id",
    "session_params",
    "return_hidden_states",
    "lora_path",
    "lora_request",
    "mm_processor_kwargs",
    "custom_params",
    "extra_body",
    "litellm_params",
    "api_key",
    "api_base",
    "base_url",
    "organization",
    "aws_access_key_id",
    "aws_region_name",
    "vertex_project",
    "azure_ad_token",
    "google_credentials",
    "credentials",
    "authorization",
    "custom_logit_processor",
    "logits_processors",
    "extra_headers",
    "x-headpond-context",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-destination-endpoint",
    "x_headpond_priority",
];

/// Places where the field is put for `@`; what must be left of the body is the place without it.
const PLACES: &[&str] = &[
    r#"{@"model":"m","messages":[]}"#,
    r#"{"model":"m","messages":[{@"role":"user","content":"hi"}]}"#,
    r#"{"model":"m","messages":[{"role":"user","content":[{@"type":"text","text":"hi"}]}]}"#,
    r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{@"url":"data:"}}]}]}"#,
    r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{@"id":"1","function":{"name":"f","arguments":"{}"}}]}]}"#,
    r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{@"name":"f","arguments":"{}"}}]}]}"#,
    r#"{"model":"m","messages":[],"stream":true,"stream_options":{@"include_usage":true}}"#,
    r#"{"model":"m","messages":[],"tools":[{@"type":"function"}]}"#,
    r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{@"name":"f","parameters":{}}}]}"#,
    r#"{"model":"m","messages":[],"tool_choice":{@"type":"function"}}"#,
    r#"{"model":"m","messages":[],"metadata":{@"a":"b"}}"#,
    r#"{"model":"m","messages":[],"response_format":{@"type":"json_object"}}"#,
    r#"{"model":"m","messages":[],"response_format":{"type":"json_schema","json_schema":{@"name":"x"}}}"#,
    r#"{"model":"m","messages":[],"chat_template_kwargs":{@"enable_thinking":false}}"#,
    r#"{"model":"m","messages":[],"structured_outputs":{@"choice":["a"]}}"#,
    r#"{"model":"m","messages":[],"documents":[{@"text":"x"}]}"#,
    r#"{"model":"m","messages":[],"logit_bias":{@"5":1}}"#,
];

/// What an attacker may set the field to.
const VALUES: &[&str] = &["-1", "\"x\"", "null", r#"{"priority":1}"#, "[1,{\"a\":2}]"];

fn spellings(field: &str) -> Vec<String> {
    let escaped: Vec<String> = field.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
    let last_escaped = format!(
        "{}\\u{:04X}",
        &field[..field.len() - 1],
        field.as_bytes()[field.len() - 1]
    );
    vec![
        field.to_owned(),
        field.to_uppercase(),
        field.replace('_', "-"),
        format!("{}{}", field[..1].to_uppercase(), &field[1..]),
        escaped.concat(),
        last_escaped,
    ]
}

#[test]
fn no_spoofed_field_reaches_an_engine() {
    let mut tried = 0;
    for field in FIELDS {
        for spelling in spellings(field) {
            for place in PLACES {
                let clean = place.replace('@', "");
                for value in VALUES {
                    let body = place.replace('@', &format!(r#""{spelling}":{value}, "#));
                    for unknown in [
                        UnknownFields::Drop,
                        UnknownFields::Reject,
                        UnknownFields::Pass,
                    ] {
                        assert_eq!(
                            cleaned_as(&CHAT, unknown, &body).expect(&body),
                            clean,
                            "{body}"
                        );
                        tried += 1;
                    }
                }
            }
        }
    }
    assert!(tried > 50_000, "{tried}");
}

#[test]
fn every_field_of_the_matrix_is_tried_on_every_route() {
    let routes = [
        (Route::Completions, r#"{@"model":"m","prompt":"x"}"#),
        (Route::Embeddings, r#"{@"model":"m","input":"x"}"#),
        (
            Route::Responses,
            r#"{@"model":"m","input":[{"role":"user","content":"x"}]}"#,
        ),
        (
            Route::Responses,
            r#"{"model":"m","input":[{@"role":"user","content":"x"}]}"#,
        ),
        (
            Route::Responses,
            r#"{"model":"m","input":"x","tools":[{@"type":"mcp"}]}"#,
        ),
        (
            Route::Messages,
            r#"{@"model":"m","max_tokens":5,"messages":[]}"#,
        ),
        (
            Route::Messages,
            r#"{"model":"m","max_tokens":5,"messages":[],"tools":[{@"name":"f","input_schema":{}}]}"#,
        ),
        (
            Route::Messages,
            r#"{"model":"m","max_tokens":5,"messages":[],"system":[{@"type":"text","text":"x"}]}"#,
        ),
        (
            Route::Messages,
            r#"{"model":"m","max_tokens":5,"messages":[],"metadata":{@"user_id":"u"}}"#,
        ),
        (Route::CountTokens, r#"{@"model":"m","messages":[]}"#),
        (
            Route::Rerank,
            r#"{@"model":"m","query":"q","documents":["d"]}"#,
        ),
        (Route::Tokenize, r#"{@"model":"m","prompt":"x"}"#),
        (Route::Detokenize, r#"{@"model":"m","tokens":[]}"#),
    ];
    for (route, place) in routes {
        let clean = place.replace('@', "");
        for field in FIELDS {
            for spelling in spellings(field) {
                let body = place.replace('@', &format!(r#""{spelling}":1,"#));
                assert_eq!(
                    cleaned_as(&route, UnknownFields::Pass, &body).expect(&body),
                    clean,
                    "{body}"
                );
            }
        }
    }
}

#[test]
fn a_reserved_field_that_stands_twice_is_refused() {
    for field in FIELDS {
        for twin in spellings(field)
            .into_iter()
            .filter(|twin| twin.contains("\\u"))
        {
            let body = format!(r#"{{"model":"m","{field}":1,"{twin}":2}}"#);
            assert_eq!(
                checked(&CHAT, &body).expect_err(&body).answer().code,
                Code::DuplicateKey
            );
        }
    }
}

#[test]
fn a_field_hidden_in_extra_body_goes_with_it() {
    let body = r#"{"model":"m","extra_body":{"priority":1,"extra_body":{"cache_salt":"x"}},"messages":[]}"#;
    assert_eq!(cleaned(body), r#"{"model":"m","messages":[]}"#);
}

#[test]
fn many_spoofed_fields_at_once_leave_a_valid_body() {
    let fields: Vec<String> = FIELDS
        .iter()
        .map(|field| format!(r#""{field}":{{"a":1}}"#))
        .collect();
    let all = fields.join(" , ");
    for (body, expected) in [
        (format!(r#"{{{all},"model":"m"}}"#), r#"{"model":"m"}"#),
        (format!(r#"{{"model":"m",{all}}}"#), r#"{"model":"m"}"#),
        (
            format!(r#"{{"model":"m","messages":[{{{all}}}]}}"#),
            r#"{"model":"m","messages":[{}]}"#,
        ),
    ] {
        assert_eq!(cleaned(&body), expected);
    }
}

#[test]
fn the_callers_own_data_is_left_alone() {
    let bodies = [
        r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"ticket","parameters":{"type":"object","properties":{"priority":{"type":"string"},"request_id":{}},"required":["priority"]}}}]}"#,
        r#"{"model":"m","messages":[],"functions":[{"name":"f","parameters":{"properties":{"api_key":{}}}}]}"#,
        r#"{"model":"m","messages":[],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"properties":{"organization":{}}}}}}"#,
        r#"{"model":"m","messages":[],"structured_outputs":{"json":{"properties":{"priority":{}}}}}"#,
        r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"priority\":1}"}}]}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"\"priority\": 1, \"extra_body\": {}"}]}"#,
    ];
    for body in bodies {
        assert_eq!(cleaned(body), body);
    }
    let tool_use = r#"{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"priority":1}}]}],"tools":[{"name":"f","input_schema":{"properties":{"priority":{}}}}]}"#;
    assert_eq!(
        cleaned_as(&Route::Messages, UnknownFields::Drop, tool_use).unwrap(),
        tool_use
    );
}

#[test]
fn the_places_of_own_data_are_no_way_in_elsewhere() {
    for key in [
        "parameters",
        "input",
        "arguments",
        "schema",
        "json",
        "input_schema",
    ] {
        for body in [
            format!(r#"{{"model":"m","metadata":{{"{key}":{{"priority":1}}}}}}"#),
            format!(r#"{{"model":"m","stream_options":{{"{key}":{{"priority":1}}}}}}"#),
            format!(r#"{{"model":"m","chat_template_kwargs":{{"{key}":{{"priority":1}}}}}}"#),
        ] {
            assert_eq!(cleaned(&body), body.replace(r#""priority":1"#, ""));
        }
        let top = format!(r#"{{"model":"m","{key}":{{"priority":1}}}}"#);
        let passed = cleaned_as(&CHAT, UnknownFields::Pass, &top).unwrap();
        assert_eq!(passed, top.replace(r#""priority":1"#, ""));
    }
}
