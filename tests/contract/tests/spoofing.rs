//! A request full of pretence goes the whole way: what L1 sends and what L2 believes show no trace of it.

use contract_tests::{ISSUED_AT, PRIVATE_KEYS, ROTATED_KEYS, SHARED_KEYS, cases, ring};
use governance_context::{Band, CacheDomain, Context, PoolName, Refusal, names};
use governance_core::sanitize::body::check;
use governance_core::sanitize::{
    CacheKey, CheckedBody, Engine, EngineFields, UnknownFields, headers,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use inference_wire::json::Document;
use inference_wire::route::Route;

/// Stands in every value an attacker sends.
const MARK: &str = "SPOOF";

const BODY_FIELDS: &[&str] = &[
    "priority",
    "prio\\u0072ity",
    "PRIORITY",
    "cache_salt",
    "cacheSalt",
    "extra_key",
    "nvext",
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
    "aws_session_token",
    "vertex_credentials",
    "azure_ad_token",
    "x-headpond-context",
    "x-gateway-inference-fairness-id",
];

/// `@` is where the spoofed members stand.
const PLACES: &[&str] = &[
    r#"{@"model":"m","messages":[]}"#,
    r#"{"model":"m","messages":[{@"role":"user","content":"x"}]}"#,
    r#"{"model":"m","messages":[],"extra_body":{@"a":1}}"#,
    r#"{"model":"m","messages":[],"stream":true,"stream_options":{@"include_usage":true}}"#,
    r#"{"model":"m","messages":[],"tools":[{@"type":"function","function":{"name":"f"}}]}"#,
    r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{@"name":"f"}}]}"#,
    r#"{"model":"m","messages":[],"metadata":{@"a":"b"}}"#,
];

fn full() -> Context {
    cases()
        .into_iter()
        .find(|case| case.name == "full")
        .expect("a golden case")
        .context
}

fn spoofed_headers() -> HeaderMap {
    let listed = names::reserved_headers().chain(names::credential_headers());
    let others = [
        "x-priority",
        "x-user-id",
        "x-session-id",
        "x-forwarded-for",
        "forwarded",
        "host",
        "te",
        "trailer",
    ];
    let mut headers = HeaderMap::new();
    for name in listed.chain(others) {
        let name = if name.ends_with('-') {
            format!("{name}any")
        } else {
            name.to_owned()
        };
        for spelling in [name.to_uppercase(), name.replace('-', "_")] {
            for copy in ["1", "2"] {
                let name = HeaderName::from_bytes(spelling.as_bytes()).expect("a header name");
                headers.append(
                    name,
                    HeaderValue::from_str(&format!("{MARK}{copy}")).expect("a header value"),
                );
            }
        }
    }
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers
}

/// What L1 puts on the wire for a caller's request.
fn through_l1(sent: &HeaderMap, body: &str, context: &Context) -> (HeaderMap, Vec<u8>) {
    let document = Document::parse(body.as_bytes()).expect(body);
    let checked: CheckedBody =
        check(&Route::ChatCompletions, &document, UnknownFields::Pass).expect(body);
    let salt = CacheKey::new(b"cache secret").salt(&context.cache_domain);
    let fields = EngineFields {
        engine: Engine::Vllm,
        model: "served",
        output_bound: Some(context.output_bound),
        priority: Some(context.band),
        cache_salt: Some(&salt),
    };
    let body = checked.engine_body(&Route::ChatCompletions, &document, &fields);
    let token = ring(SHARED_KEYS)
        .signer()
        .expect("a shared secret signs")
        .sign(context, ISSUED_AT, Some(&body));
    let mut headers = headers::request(sent);
    headers.insert(
        names::CONTEXT,
        HeaderValue::from_str(&token).expect("a token is visible ASCII"),
    );
    (headers, body)
}

#[test]
fn nothing_spoofed_survives_l1_and_l2_believes_only_l1() {
    let context = full();
    let verifier = ring(SHARED_KEYS).verifier(PoolName::new("main").expect("a name"));
    let sent = spoofed_headers();
    let mut tried = 0;
    for place in PLACES {
        for field in BODY_FIELDS {
            for value in [
                format!("\"{MARK}\""),
                format!("{{\"priority\":\"{MARK}\"}}"),
                format!("[\"{MARK}\"]"),
            ] {
                let spoofed = place.replace('@', &format!("\"{field}\":{value},"));
                let (headers, body) = through_l1(&sent, &spoofed, &context);
                let on_the_wire = format!("{headers:?} {}", String::from_utf8_lossy(&body));
                assert!(!on_the_wire.contains(MARK), "{on_the_wire}");

                let tokens: Vec<_> = headers.get_all(names::CONTEXT).iter().collect();
                assert_eq!(tokens.len(), 1, "L2 refuses two copies");
                let token = tokens[0].to_str().expect("visible ASCII");
                assert_eq!(
                    verifier.verify(token, ISSUED_AT, Some(&body)).as_ref(),
                    Ok(&context)
                );
                let reserved = headers
                    .keys()
                    .filter(|name| names::is_reserved_header(name.as_str()));
                assert_eq!(reserved.count(), 1, "only the token");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, PLACES.len() * BODY_FIELDS.len() * 3);
}

#[test]
fn a_token_of_somebody_else_is_not_believed() {
    let context = full();
    let body = b"{}";
    let verifier = ring(SHARED_KEYS).verifier(PoolName::new("main").expect("a name"));
    let by = |keys: &str, context: &Context| {
        ring(keys)
            .signer()
            .expect("keys that sign")
            .sign(context, ISSUED_AT, Some(body))
    };
    let other_pool = Context {
        pool: PoolName::new("other").expect("a name"),
        ..context.clone()
    };
    let cases = [
        (
            "another secret",
            by(ROTATED_KEYS, &context),
            Refusal::UnknownKey,
        ),
        (
            "another kind of key",
            by(PRIVATE_KEYS, &context),
            Refusal::UnknownKey,
        ),
        (
            "another pool",
            by(SHARED_KEYS, &other_pool),
            Refusal::WrongAudience,
        ),
    ];
    for (name, token, expected) in cases {
        assert_eq!(
            verifier.verify(&token, ISSUED_AT, Some(body)),
            Err(expected),
            "{name}"
        );
    }
}

#[test]
fn a_context_cannot_be_lifted_onto_another_body() {
    let (headers, body) = through_l1(&HeaderMap::new(), r#"{"model":"m","messages":[]}"#, &full());
    let token = headers[names::CONTEXT].to_str().expect("visible ASCII");
    let verifier = ring(SHARED_KEYS).verifier(PoolName::new("main").expect("a name"));
    let mut changed = body.clone();
    changed.push(b' ');
    assert!(verifier.verify(token, ISSUED_AT, Some(&body)).is_ok());
    assert_eq!(
        verifier.verify(token, ISSUED_AT, Some(&changed)),
        Err(Refusal::BodyDigest)
    );
}

#[test]
fn two_tenants_share_no_cache_salt_and_no_priority() {
    let acme = full();
    let evil = Context {
        cache_domain: CacheDomain::new("evil").expect("a name"),
        band: Band(-5),
        ..full()
    };
    let plain = r#"{"model":"m","messages":[]}"#;
    let (_, of_acme) = through_l1(&HeaderMap::new(), plain, &acme);
    let stolen = CacheKey::new(b"cache secret").salt(&acme.cache_domain);
    let attack = format!(r#"{{"model":"m","cache_salt":"{stolen}","priority":-99,"messages":[]}}"#);
    let (_, of_evil) = through_l1(&HeaderMap::new(), &attack, &evil);
    let read = |body: &[u8], key: &str| {
        let document = Document::parse(body).expect("valid JSON");
        document
            .root()
            .get(key)
            .map(|value| value.raw().to_owned())
            .expect(key)
    };
    assert_eq!(read(&of_acme, "cache_salt"), format!("\"{stolen}\""));
    assert_ne!(read(&of_evil, "cache_salt"), read(&of_acme, "cache_salt"));
    assert_eq!(
        (read(&of_acme, "priority"), read(&of_evil, "priority")),
        ("-10".to_owned(), "5".to_owned())
    );
}
