use super::*;

fn text(problem: Problem) -> (StatusCode, HeaderMap, serde_json::Value) {
    let json = serde_json::from_str(&problem.json()).expect("valid JSON");
    let (head, _) = problem.into_response().into_parts();
    (head.status, head.headers, json)
}

#[test]
fn a_refusal_names_its_code_the_work_done_and_when_to_come_back() {
    let (status, headers, json) = text(
        Problem::new(Code::QueueFull, "the queue is full").retry_after(Duration::from_millis(1200)),
    );
    assert_eq!(status, 429);
    assert_eq!(headers["x-headpond-reason"], "queue_full");
    assert_eq!(headers["x-headpond-work"], "none");
    assert_eq!(headers["retry-after"], "2");
    assert_eq!(headers["retry-after-ms"], "1200");
    assert_eq!(
        json,
        serde_json::json!({"error": {"message": "the queue is full", "type": "rate_limit_error",
            "param": null, "code": "queue_full"}})
    );
}

#[test]
fn every_code_has_the_status_of_the_catalogue() {
    for (code, status) in [
        (Code::QueueFull, 429),
        (Code::QueueExpired, 429),
        (Code::NoEndpoint, 503),
        (Code::ShuttingDown, 503),
        (Code::UpstreamError, 502),
        (Code::UpstreamTimeout, 504),
        (Code::ContextInvalid, 401),
        (Code::InvalidRequest, 400),
        (Code::DuplicateKey, 400),
        (Code::InvalidJson, 400),
        (Code::RequestTooLarge, 413),
        (Code::NotFound, 404),
        (Code::ModelNotFound, 404),
        (Code::MethodNotAllowed, 405),
    ] {
        assert_eq!(code.status(), status, "{}", code.as_str());
    }
}

#[test]
fn usage_of_a_failed_engine_travels_in_the_error() {
    let mut problem =
        Problem::new(Code::UpstreamError, "an engine failed").with_work(Work::Partial);
    problem.usage = Some(Bytes::from_static(br#"{"prompt_tokens":5}"#));
    let (_, headers, json) = text(problem);
    assert_eq!(headers["x-headpond-work"], "partial");
    assert_eq!(json["usage"]["prompt_tokens"], 5);
}

#[test]
fn internal_headers_of_engines_do_not_leave() {
    let mut upstream = HeaderMap::new();
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("server", "uvicorn"),
        ("location", "http://10.0.0.7:8000/"),
        ("x-served-by", "pod-7"),
        ("set-cookie", "a=b"),
        ("retry-after", "3"),
    ] {
        upstream.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    let passed = passed_headers(upstream);
    let mut kept: Vec<_> = passed.keys().map(HeaderName::as_str).collect();
    kept.sort_unstable();
    assert_eq!(kept, ["content-type", "retry-after"]);
}
