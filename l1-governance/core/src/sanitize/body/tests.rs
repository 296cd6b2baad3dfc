mod properties;
mod spoofing;

use expect_test::{Expect, expect};
use governance_context::{Band, CacheDomain};

use super::*;

const CHAT: Route = Route::ChatCompletions;

fn fields(engine: Engine) -> EngineFields<'static> {
    EngineFields {
        engine,
        model: "m",
        output_bound: None,
        priority: None,
        cache_salt: None,
    }
}

/// The body an engine gets when L1 has nothing to add, or the refusal.
fn cleaned_as(route: &Route, unknown: UnknownFields, body: &str) -> Result<String, BodyRefusal> {
    let document = Document::parse(body.as_bytes())?;
    let checked = check(route, &document, unknown)?;
    let cleaned = checked.edits.apply(body.as_bytes());
    Ok(String::from_utf8(cleaned).expect("edits keep UTF-8"))
}

fn cleaned(body: &str) -> String {
    cleaned_as(&CHAT, UnknownFields::Drop, body).expect(body)
}

fn checked(route: &Route, body: &str) -> Result<CheckedBody, BodyRefusal> {
    check(
        route,
        &Document::parse(body.as_bytes())?,
        UnknownFields::Drop,
    )
}

fn written(route: &Route, body: &str, fields: &EngineFields<'_>) -> String {
    let document = Document::parse(body.as_bytes()).unwrap();
    let checked = check(route, &document, UnknownFields::Drop).unwrap();
    String::from_utf8(checked.engine_body(route, &document, fields)).unwrap()
}

#[test]
fn what_is_known_stays_byte_for_byte() {
    let body = r#" {"model" : "m", "seed":12345678901234567890123, "temperature":1.0E+0,
        "messages":[ {"role":"user","content":"\u00e9 é \ud83d\ude00 </s>"} ],"stop":["\n"],"logit_bias":{"5":-1e2} } "#;
    assert_eq!(cleaned(body), body);
}

#[test]
fn unknown_fields_are_dropped_refused_or_passed() {
    let body = r#"{"model":"m","frobnicate":{"a":[1]},"messages":[]}"#;
    let go = |unknown| cleaned_as(&CHAT, unknown, body);
    assert_eq!(
        go(UnknownFields::Drop).unwrap(),
        r#"{"model":"m","messages":[]}"#
    );
    assert_eq!(go(UnknownFields::Pass).unwrap(), body);
    let refusal = go(UnknownFields::Reject).unwrap_err();
    assert_eq!(
        refusal,
        BodyRefusal::Unknown {
            param: "frobnicate".to_owned()
        }
    );
    let answer = refusal.answer();
    assert_eq!(
        (answer.status(), answer.param.as_deref()),
        (400, Some("frobnicate"))
    );
}

#[test]
fn who_the_caller_is_goes_silently_also_where_unknown_fields_are_refused() {
    let body = r#"{"model":"m","user":"boss","tags":["vip"],"service_tier":"priority","customer_id":1,"messages":[]}"#;
    for unknown in [
        UnknownFields::Drop,
        UnknownFields::Reject,
        UnknownFields::Pass,
    ] {
        assert_eq!(
            cleaned_as(&CHAT, unknown, body).unwrap(),
            r#"{"model":"m","messages":[]}"#
        );
    }
}

#[test]
fn a_list_belongs_to_one_route() {
    let cases = [
        (
            Route::Completions,
            r#"{"model":"m","prompt":"x","messages":[]}"#,
            r#"{"model":"m","prompt":"x"}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","prompt":"x","messages":[]}"#,
            r#"{"model":"m","messages":[]}"#,
        ),
        (
            Route::Embeddings,
            r#"{"model":"m","input":["x"],"temperature":1}"#,
            r#"{"model":"m","input":["x"]}"#,
        ),
        (
            Route::Messages,
            r#"{"model":"m","system":"s","n":1,"max_tokens":5}"#,
            r#"{"model":"m","system":"s","max_tokens":5}"#,
        ),
        (
            Route::Responses,
            r#"{"model":"m","input":"x","store":false,"n":2}"#,
            r#"{"model":"m","input":"x","store":false}"#,
        ),
        (
            Route::Rerank,
            r#"{"model":"m","query":"q","documents":["d"],"stream":true}"#,
            r#"{"model":"m","query":"q","documents":["d"]}"#,
        ),
        (
            Route::Tokenize,
            r#"{"model":"m","prompt":"x","seed":1}"#,
            r#"{"model":"m","prompt":"x"}"#,
        ),
        (
            Route::Detokenize,
            r#"{"model":"m","tokens":[1,2],"x":1}"#,
            r#"{"model":"m","tokens":[1,2]}"#,
        ),
    ];
    for (route, body, expected) in cases {
        assert_eq!(
            cleaned_as(&route, UnknownFields::Drop, body).expect(body),
            expected,
            "{route:?}"
        );
    }
}

#[test]
fn facts_are_read_from_every_family() {
    let facts = |route: Route, body: &str| {
        let c = checked(&route, body).expect(body);
        format!(
            "{} {} {:?} {} {} {}",
            c.model, c.stream, c.max_tokens, c.choices, c.include_usage, c.continuous_usage
        )
    };
    let cases = [
        (CHAT, r#"{"model":"m"}"#, "m false None 1 false false"),
        (
            CHAT,
            r#"{"model":"m","stream":true,"max_tokens":7,"n":3}"#,
            "m true Some(7) 3 false false",
        ),
        (
            CHAT,
            r#"{"model":"m","max_tokens":7,"max_completion_tokens":9}"#,
            "m false Some(9) 1 false false",
        ),
        (
            CHAT,
            r#"{"model":"m","max_tokens":null,"n":null,"stream":null,"stream_options":null}"#,
            "m false None 1 false false",
        ),
        (
            CHAT,
            r#"{"model":"m","stream_options":{"include_usage":true}}"#,
            "m false None 1 true false",
        ),
        (
            CHAT,
            r#"{"model":"m","stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
            "m false None 1 true true",
        ),
        (
            CHAT,
            r#"{"model":"m","stream_options":{"continuous_usage_stats":true}}"#,
            "m false None 1 false false",
        ),
        (
            Route::Completions,
            r#"{"model":"m","prompt":"x","best_of":4,"n":2}"#,
            "m false None 4 false false",
        ),
        (
            Route::Completions,
            r#"{"model":"m","prompt":["x","y","z"],"n":2}"#,
            "m false None 6 false false",
        ),
        (
            Route::Completions,
            r#"{"model":"m","prompt":[1,2,3]}"#,
            "m false None 1 false false",
        ),
        (
            Route::Completions,
            r#"{"model":"m","prompt":[[1],[2,3]]}"#,
            "m false None 2 false false",
        ),
        (
            Route::Completions,
            r#"{"model":"m","prompt":[]}"#,
            "m false None 1 false false",
        ),
        (
            Route::Responses,
            r#"{"model":"m","max_output_tokens":12,"max_tokens":99}"#,
            "m false Some(12) 1 false false",
        ),
        (
            Route::Messages,
            r#"{"model":"m","max_tokens":12,"stream":true}"#,
            "m true Some(12) 1 false false",
        ),
        (
            CHAT,
            r#"{"mod\u0065l":"m\u0061x","\u006e":2}"#,
            "max false None 2 false false",
        ),
    ];
    for (route, body, expected) in cases {
        assert_eq!(facts(route, body), expected, "{body}");
    }
}

#[test]
fn values_that_are_wrong_or_absurd_are_named() {
    let many = format!(
        r#"{{"model":"m","prompt":[{}]}}"#,
        vec!["\"x\""; 2049].join(",")
    );
    let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(257));
    let cases = [
        (CHAT, r#"{"model":"m","max_tokens":-1}"#, "max_tokens"),
        (CHAT, r#"{"model":"m","max_tokens":0}"#, "max_tokens"),
        (CHAT, r#"{"model":"m","max_tokens":"5"}"#, "max_tokens"),
        (CHAT, r#"{"model":"m","max_tokens":1.5}"#, "max_tokens"),
        (CHAT, r#"{"model":"m","max_tokens":1e3}"#, "max_tokens"),
        (CHAT, r#"{"model":"m","max_tokens":10000001}"#, "max_tokens"),
        (
            CHAT,
            r#"{"model":"m","max_tokens":99999999999999999999999}"#,
            "max_tokens",
        ),
        (CHAT, r#"{"model":"m","max_tokens":true}"#, "max_tokens"),
        (CHAT, r#"{"model":"m","max_tokens":[5]}"#, "max_tokens"),
        (
            CHAT,
            r#"{"model":"m","max_completion_tokens":-5,"max_tokens":5}"#,
            "max_completion_tokens",
        ),
        (
            Route::Responses,
            r#"{"model":"m","max_output_tokens":"x"}"#,
            "max_output_tokens",
        ),
        (CHAT, r#"{"model":"m","n":0}"#, "n"),
        (CHAT, r#"{"model":"m","n":-1}"#, "n"),
        (CHAT, r#"{"model":"m","n":129}"#, "n"),
        (CHAT, r#"{"model":"m","n":"2"}"#, "n"),
        (
            Route::Completions,
            r#"{"model":"m","prompt":"x","best_of":1000}"#,
            "best_of",
        ),
        (Route::Completions, &many, "prompt"),
        (CHAT, r#"{"model":"m","stream":"true"}"#, "stream"),
        (CHAT, r#"{"model":"m","stream":1}"#, "stream"),
        (
            CHAT,
            r#"{"model":"m","stream_options":[]}"#,
            "stream_options",
        ),
        (
            CHAT,
            r#"{"model":"m","stream_options":{"include_usage":1}}"#,
            "stream_options.include_usage",
        ),
        (
            CHAT,
            r#"{"model":"m","stream_options":{"continuous_usage_stats":"yes"}}"#,
            "stream_options.continuous_usage_stats",
        ),
        (CHAT, r#"{"messages":[]}"#, "model"),
        (CHAT, r#"{"model":null}"#, "model"),
        (CHAT, r#"{"model":""}"#, "model"),
        (CHAT, r#"{"model":5}"#, "model"),
        (CHAT, &long, "model"),
        (
            Route::Responses,
            r#"{"model":"m","background":true}"#,
            "background",
        ),
        (
            Route::Responses,
            r#"{"model":"m","previous_response_id":"resp_1"}"#,
            "previous_response_id",
        ),
        (
            Route::Responses,
            r#"{"model":"m","conversation":"c"}"#,
            "conversation",
        ),
    ];
    for (route, body, param) in cases {
        let answer = checked(&route, body).expect_err(body).answer();
        assert_eq!(
            (answer.code, answer.param.as_deref()),
            (Code::InvalidValue, Some(param)),
            "{body}"
        );
        assert!(
            answer.message().contains(&format!("`{param}`")),
            "{}",
            answer.message()
        );
    }
}

#[test]
fn bodies_that_are_not_one_clear_object_are_refused() {
    let cases = [
        ("", Code::InvalidJson),
        ("[]", Code::InvalidJson),
        ("\"x\"", Code::InvalidJson),
        ("{\"model\":\"m\"", Code::InvalidJson),
        ("{\"model\":\"m\"} x", Code::InvalidJson),
        (r#"{"model":"m","model":"n"}"#, Code::DuplicateKey),
        (r#"{"model":"m","mod\u0065l":"n"}"#, Code::DuplicateKey),
        (
            r#"{"model":"m","messages":[{"role":"a","role":"b"}]}"#,
            Code::DuplicateKey,
        ),
        (
            r#"{"model":"m","priority":1,"prio\u0072ity":1}"#,
            Code::DuplicateKey,
        ),
    ];
    for (body, code) in cases {
        assert_eq!(
            checked(&CHAT, body).expect_err(body).answer().code,
            code,
            "{body}"
        );
    }
}

#[test]
fn refusals_say_where_and_never_show_a_value() {
    let check_message = |body: &str, expected: Expect| {
        expected.assert_eq(&checked(&CHAT, body).unwrap_err().answer().message());
    };
    check_message(
        r#"{"model":"m","max_tokens":"canary"}"#,
        expect![
            "`max_tokens` must be an integer between 1 and 10000000. Correct the field that `param` names."
        ],
    );
    check_message(
        r#"{"model":"m","stop":1,"stop":2}"#,
        expect!["The key `stop` at byte 22 stands twice in one object. Send every key once."],
    );
    check_message(
        "{\"model\":canary}",
        expect!["Invalid JSON at byte 9: expected a value. Send one JSON object in UTF-8."],
    );
    let long = format!(r#"{{"model":"m","{0}":1}}"#, "k\\n".repeat(100));
    let document = Document::parse(long.as_bytes()).unwrap();
    let answer = check_rejecting(&document);
    assert!(answer.len() < 300 && !answer.contains('\n'), "{answer}");
}

fn check_rejecting(document: &Document<'_>) -> String {
    check(&CHAT, document, UnknownFields::Reject)
        .unwrap_err()
        .answer()
        .message()
}

#[test]
fn each_engine_gets_its_own_dialect() {
    let key = CacheKey::new(b"secret");
    let salt = key.salt(&CacheDomain::new("acme").unwrap());
    assert_eq!(salt.len(), 32);
    let body = r#"{"model":"alias","messages":[],"stream":true}"#;
    let all = |engine| {
        let fields = EngineFields {
            engine,
            model: "org/served",
            output_bound: Some(100),
            priority: Some(Band(-2)),
            cache_salt: Some("5a17"),
        };
        written(&CHAT, body, &fields)
    };
    expect![[r#"{"max_tokens":100,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"cache_salt":"5a17","priority":2,"model":"org/served","messages":[],"stream":true}"#]]
        .assert_eq(&all(Engine::Vllm));
    expect![[r#"{"max_tokens":100,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"extra_key":"5a17","priority":-2,"model":"org/served","messages":[],"stream":true}"#]]
        .assert_eq(&all(Engine::Sglang));
    expect![[r#"{"max_tokens":100,"stream_options":{"include_usage":true},"model":"org/served","messages":[],"stream":true}"#]]
        .assert_eq(&all(Engine::OpenAi));
}

#[test]
fn nothing_to_add_means_nothing_changes() {
    let body = r#"{"model":"m","messages":[],"max_tokens":5,"stream":true,
        "stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    let fields = EngineFields {
        output_bound: Some(5),
        ..fields(Engine::Vllm)
    };
    assert_eq!(written(&CHAT, body, &fields), body);
}

#[test]
fn the_output_is_held_to_what_was_reserved() {
    let cases = [
        (CHAT, r#"{"model":"m"}"#, r#"{"max_tokens":50,"model":"m"}"#),
        (
            CHAT,
            r#"{"model":"m","max_tokens":null}"#,
            r#"{"model":"m","max_tokens":50}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","max_tokens":90}"#,
            r#"{"model":"m","max_tokens":50}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","max_tokens":20}"#,
            r#"{"model":"m","max_tokens":20}"#,
        ),
        (
            CHAT,
            r#"{"model":"m","max_completion_tokens":90}"#,
            r#"{"model":"m","max_completion_tokens":50}"#,
        ),
        (
            CHAT,
            r#"{"max_tokens":20,"model":"m","max_completion_tokens":90}"#,
            r#"{"max_tokens":20,"model":"m","max_completion_tokens":50}"#,
        ),
        (
            Route::Completions,
            r#"{"model":"m"}"#,
            r#"{"max_tokens":50,"model":"m"}"#,
        ),
        (
            Route::Responses,
            r#"{"model":"m"}"#,
            r#"{"max_output_tokens":50,"model":"m"}"#,
        ),
        (
            Route::Messages,
            r#"{"model":"m","max_tokens":99}"#,
            r#"{"model":"m","max_tokens":50}"#,
        ),
        (
            Route::Embeddings,
            r#"{"model":"m","input":"x"}"#,
            r#"{"model":"m","input":"x"}"#,
        ),
    ];
    for (route, body, expected) in cases {
        let fields = EngineFields {
            output_bound: Some(50),
            ..fields(Engine::OpenAi)
        };
        assert_eq!(written(&route, body, &fields), expected, "{body}");
    }
}

#[test]
fn usage_is_asked_for_beside_what_the_caller_asked() {
    let cases = [
        (
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":false,"x":1}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true,"x":1}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"priority":1}}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"m","stream":false}"#,
            r#"{"model":"m","stream":false}"#,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(
            written(&CHAT, body, &fields(Engine::OpenAi)),
            expected,
            "{body}"
        );
    }
    let anthropic = r#"{"model":"m","stream":true,"max_tokens":5}"#;
    assert_eq!(
        written(&Route::Messages, anthropic, &fields(Engine::Vllm)),
        anthropic
    );
}

#[test]
fn a_caller_cannot_join_a_cache_or_a_band_by_naming_it() {
    let key = CacheKey::new(b"secret");
    let acme = key.salt(&CacheDomain::new("acme").unwrap());
    let body = format!(
        r#"{{"model":"m","cache_salt":"{acme}","cacheSalt":"{acme}","extra_key":"{acme}","priority":-9}}"#
    );
    let evil = key.salt(&CacheDomain::new("evil").unwrap());
    let fields = EngineFields {
        cache_salt: Some(&evil),
        priority: Some(Band(-1)),
        ..fields(Engine::Vllm)
    };
    assert_eq!(
        written(&CHAT, &body, &fields),
        format!(r#"{{"cache_salt":"{evil}","priority":1,"model":"m"}}"#)
    );
    assert_ne!(acme, evil);
    assert_ne!(
        acme,
        CacheKey::new(b"other").salt(&CacheDomain::new("acme").unwrap())
    );
}

#[test]
fn the_lowest_band_does_not_overflow() {
    let fields = EngineFields {
        priority: Some(Band(i32::MIN)),
        ..fields(Engine::Vllm)
    };
    assert_eq!(
        written(&CHAT, r#"{"model":"m"}"#, &fields),
        r#"{"priority":2147483648,"model":"m"}"#
    );
}

#[test]
fn what_was_removed_is_listed_briefly() {
    let many: Vec<String> = (0..100).map(|n| format!(r#","unknown_{n}":1"#)).collect();
    let many = many.concat();
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","priority":1}}]{many}}}"#);
    let checked = checked(&CHAT, &body).unwrap();
    assert_eq!(checked.removed[..2], ["messages..priority", "unknown_0"]);
    assert_eq!(checked.removed.len(), 32);
    assert_eq!(
        cleaned(&body),
        r#"{"model":"m","messages":[{"role":"user"}]}"#
    );
}
