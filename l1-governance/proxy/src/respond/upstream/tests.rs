use super::*;

#[test]
fn messages_lose_hosts_paths_and_keys_and_keep_their_sense() {
    for (message, left) in [
        (
            "maximum context length is 2048 tokens",
            "maximum context length is 2048 tokens",
        ),
        (
            "cannot reach http://10.0.0.7:8000/v1/chat now",
            "cannot reach [removed] now",
        ),
        (
            "connect to 10.0.0.7:8000 refused",
            "connect to [removed] refused",
        ),
        (
            "connect to [fd00::1]:8000 refused",
            "connect to [removed] refused",
        ),
        (
            "host gpu-3.pool.svc.cluster.local: down",
            "host [removed] down",
        ),
        ("engine-3:8000 refused", "[removed] refused"),
        (
            "File \"/usr/lib/python3/vllm/x.py\", line 3",
            "File [removed] line 3",
        ),
        ("use /v1/messages instead", "use /v1/messages instead"),
        (
            "bad key hp-abcdefghijkm-nnnnnnnnnnnnnnnnnnnn",
            "bad key [removed]",
        ),
        (
            "temperature must be and/or 0.5 at 12:30",
            "temperature must be and/or 0.5 at 12:30",
        ),
    ] {
        assert_eq!(scrub(message), left);
    }
}

#[test]
fn every_shape_of_engine_error_is_read() {
    for (body, message, code) in [
        (
            r#"{"error":{"message":"bad","type":"BadRequestError","param":"max_tokens","code":400}}"#,
            "bad",
            "invalid_request",
        ),
        (
            r#"{"error":{"message":"bad","type":"x_error","param":null,"code":"too_odd"}}"#,
            "bad",
            "too_odd",
        ),
        (
            r#"{"object":"error","message":"flat","code":400}"#,
            "flat",
            "invalid_request",
        ),
        (r#"{"detail":"Not Found"}"#, "Not Found", "invalid_request"),
        (
            r#"{"error":"Unauthorized"}"#,
            "Unauthorized",
            "invalid_request",
        ),
        (
            "<html>",
            "The engine answered 400 without a message",
            "invalid_request",
        ),
    ] {
        let error = EngineError::read(400, &HeaderMap::new(), body.as_bytes());
        assert_eq!((error.message(), error.code()), (message, code), "{body}");
    }
}

#[test]
fn an_engines_code_and_param_survive_in_the_openai_shape() {
    let body =
        br#"{"error":{"message":"bad","type":"BadRequestError","param":"max_tokens","code":"max_tokens_too_large"}}"#;
    let error = EngineError::read(400, &HeaderMap::new(), body);
    let shaped: Value = serde_json::from_slice(&error.body(Family::OpenAi, "r")).expect("JSON");
    assert_eq!(
        shaped,
        serde_json::json!({"error": {"message": "bad", "type": "invalid_request_error",
            "param": "max_tokens", "code": "max_tokens_too_large"}})
    );
}
