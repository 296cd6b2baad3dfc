use std::collections::BTreeSet;

use expect_test::{expect, expect_file};
use governance_context::MicroWtu;
use inference_wire::route::{Family, Route};

use super::*;

/// Regenerate with `UPDATE_EXPECT=1 cargo test -p governance-core the_page`.
#[test]
fn the_page_about_errors_is_current() {
    expect_file!["../../../../docs/errors.md"].assert_eq(&page());
}

#[test]
fn codes_are_unique_and_found_by_their_text() {
    let texts: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(texts.len(), Code::ALL.len());
    for code in Code::ALL {
        assert_eq!(Code::parse(code.as_str()), Some(code));
    }
    assert_eq!(Code::parse("Queue_Full"), None);
}

#[test]
fn the_codes_of_the_scheduler_are_listed() {
    for code in [
        "queue_full",
        "queue_wait",
        "shed",
        "over_quota",
        "queue_expired",
        "displaced",
        "no_endpoint",
        "shutting_down",
        "upstream_error",
        "upstream_timeout",
        "context_invalid",
        "client_closed",
    ] {
        assert!(Code::parse(code).is_some(), "{code}");
    }
}

#[test]
fn a_policy_refusal_is_never_a_server_error() {
    let policy = [
        "invalid_api_key",
        "forbidden",
        "model_not_found",
        "rate_limit_exceeded",
        "insufficient_quota",
        "no_price",
        "queue_full",
        "queue_wait",
        "shed",
        "over_quota",
        "queue_expired",
        "displaced",
    ];
    for code in policy {
        let status = Code::parse(code).expect(code).status();
        assert!((400..500).contains(&status), "{code} is {status}");
    }
}

#[test]
fn every_text_says_what_happened_and_what_to_do() {
    for code in Code::ALL {
        let fact = code.fact();
        assert!(
            !fact.meaning.ends_with('.') && fact.meaning.len() > 15,
            "{code}: {}",
            fact.meaning
        );
        assert!(
            fact.how.ends_with('.') && fact.how.len() > 15,
            "{code}: {}",
            fact.how
        );
        assert!(!fact.how.contains("  "), "{code}: a line break went wrong");
    }
}

#[test]
fn headers_tell_clients_whether_to_wait() {
    let check = |answer: Answer, expected: &[(&str, &str)]| {
        let headers = answer.headers();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        assert_eq!(headers, expected);
    };
    check(
        Answer::new(Code::RateLimitExceeded).retry_after_ms(1150),
        &[
            ("x-headpond-reason", "rate_limit_exceeded"),
            ("retry-after", "2"),
            ("retry-after-ms", "1150"),
            ("x-should-retry", "true"),
        ],
    );
    check(
        Answer::new(Code::InsufficientQuota).retry_after_ms(3_600_000),
        &[
            ("x-headpond-reason", "insufficient_quota"),
            ("retry-after", "3600"),
            ("retry-after-ms", "3600000"),
            ("x-should-retry", "false"),
        ],
    );
    check(
        Answer::new(Code::InsufficientQuota)
            .retry(Retry::Soon)
            .retry_after_ms(5_000),
        &[
            ("x-headpond-reason", "insufficient_quota"),
            ("retry-after", "5"),
            ("retry-after-ms", "5000"),
            ("x-should-retry", "true"),
        ],
    );
    check(
        Answer::new(Code::RateLimitExceeded)
            .retry(Retry::Never)
            .retry_after_ms(5_000),
        &[
            ("x-headpond-reason", "rate_limit_exceeded"),
            ("x-should-retry", "false"),
        ],
    );
    check(
        Code::InProgress.into(),
        &[
            ("x-headpond-reason", "in_progress"),
            ("x-should-retry", "false"),
        ],
    );
    check(
        Code::InvalidValue.into(),
        &[("x-headpond-reason", "invalid_value")],
    );
    check(
        Answer::new(Code::InvalidApiKey).retry_after_ms(5),
        &[("x-headpond-reason", "invalid_api_key")],
    );
    check(
        Code::UpstreamError.into(),
        &[
            ("x-headpond-reason", "upstream_error"),
            ("x-should-retry", "true"),
        ],
    );
}

#[test]
fn delays_read_as_clients_expect_them() {
    for (ms, shown) in [
        (20, "20ms"),
        (999, "999ms"),
        (1000, "1.0s"),
        (1150, "1.2s"),
        (1200, "1.2s"),
        (59_999, "60.0s"),
        (360_000, "6m0s"),
    ] {
        let message = Answer::new(Code::RateLimitExceeded)
            .retry_after_ms(ms)
            .message();
        assert!(
            message.contains(&format!("try again in {shown}.")),
            "{message}"
        );
    }
}

#[test]
fn an_openai_error_has_its_four_members() {
    let answer = Answer::new(Code::InvalidValue)
        .param("max_tokens")
        .what("`max_tokens` must be an integer between 1 and 10000000, not \"5\"");
    let body = String::from_utf8(answer.body(Family::OpenAi, "r1")).unwrap();
    expect![[r#"{"error":{"message":"`max_tokens` must be an integer between 1 and 10000000, not \"5\". Correct the field that `param` names.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}"#]]
        .assert_eq(&body);
}

#[test]
fn an_anthropic_error_carries_the_request_id() {
    let answer = Answer::new(Code::ModelNotFound).param("model");
    let body = String::from_utf8(answer.body(Family::Anthropic, "r1")).unwrap();
    expect![[r#"{"type":"error","error":{"type":"not_found_error","message":"model: The model does not exist or the key may not use it. Use one of the models that `GET /v1/models` lists, or ask an administrator of the account for access."},"request_id":"r1"}"#]]
        .assert_eq(&body);
}

#[test]
fn an_exhausted_quota_names_the_account_and_its_numbers() {
    let facts = QuotaFacts {
        account: "acme/web".to_owned(),
        window: "month".to_owned(),
        limit: MicroWtu(10_000_000),
        used: MicroWtu(9_500_000),
        held: MicroWtu(250_000),
        resets_at: Some("2026-12-01T00:00:00Z".to_owned()),
    };
    let answer = Answer::new(Code::InsufficientQuota)
        .quota(facts)
        .retry_after_ms(86_400_000);
    let body = String::from_utf8(answer.body(Family::OpenAi, "r1")).unwrap();
    expect![[r#"{"error":{"message":"An account that pays for the request has not enough quota left. Account `acme/web` has used 9.5 of 10 WTU (0.25 held by requests that are not settled), window month, resets at 2026-12-01T00:00:00Z. Ask for fewer output tokens, wait for the reset, or ask an administrator of the account for more quota.","type":"insufficient_quota","param":null,"code":"insufficient_quota","quota":{"account":"acme/web","window":"month","limit":10000000,"used":9500000,"held":250000,"resets_at":"2026-12-01T00:00:00Z"}}}"#]]
        .assert_eq(&body);
}

#[test]
fn in_a_stream_every_family_gets_its_own_event() {
    let event = |route| {
        let event = Answer::new(Code::UpstreamError).event(&route, "r1");
        String::from_utf8(event).unwrap()
    };
    expect![[r#"
        data: {"error":{"message":"The engine failed. Try again; `x-headpond-work` says whether anything was computed.","type":"server_error","param":null,"code":"upstream_error"}}

    "#]].assert_eq(&event(Route::ChatCompletions));
    expect![[r#"
        event: error
        data: {"type":"error","error":{"type":"api_error","message":"The engine failed. Try again; `x-headpond-work` says whether anything was computed."},"request_id":"r1"}

    "#]].assert_eq(&event(Route::Messages));
    expect![[r#"
        event: response.failed
        data: {"type":"response.failed","response":{"id":"r1","object":"response","status":"failed","error":{"code":"upstream_error","message":"The engine failed. Try again; `x-headpond-work` says whether anything was computed."}}}

    "#]].assert_eq(&event(Route::Responses));
}
