use proptest::prelude::*;

use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        })
        .collect::<Vec<_>>()
        .into_iter()
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

fn shown(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines
}

/// Every name a caller might spoof, with the aliases of other gateways and engines.
fn spoofed() -> Vec<String> {
    let listed = names::reserved_headers().chain(names::credential_headers());
    let mut all: Vec<String> = listed
        .map(|name| {
            if name.ends_with('-') {
                format!("{name}anything")
            } else {
                name.to_owned()
            }
        })
        .collect();
    let aliases = [
        "x-headpond-context",
        "x-gateway-inference-objective",
        "x-llm-d-inference-objective",
        "x-gateway-inference-fairness-id",
        "x-llm-d-inference-fairness-id",
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
        "x-gateway-model-name-rewrite",
        "x-llm-d-model-name-rewrite",
        "x-llm-d-slo-ttft-ms",
        "x-slo-tpot-ms",
        "x-envoy-original-dst-host",
        "x-envoy-decorator-operation",
        "x-prefiller-host-port",
        "x-prefiller-url",
        "x-encoder-hosts-ports",
        "x-data-parallel-rank",
        "x-data-parallel-host-port",
        "x-kv-cache-hit",
        "x-smg-target-worker",
        "x-aibrix-routing-strategy",
        "x-dynamo-worker",
        "x-target-endpoint",
        "x-conformance-test-served-endpoint",
        "x-session-id",
        "x-request-id",
        "x-priority",
        "priority",
        "x-user-id",
        "x-tenant-id",
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "via",
        "host",
        "content-length",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "accept-encoding",
        "x-unknown",
    ];
    all.extend(aliases.map(str::to_owned));
    all
}

fn mixed(name: &str) -> String {
    let odd = |(index, c): (usize, char)| {
        if index % 2 == 1 {
            c.to_ascii_uppercase()
        } else {
            c
        }
    };
    name.chars().enumerate().map(odd).collect()
}

#[test]
fn no_spoofed_header_goes_on_in_any_spelling_or_number() {
    let mut tried = 0;
    for name in spoofed() {
        for spelling in [
            name.clone(),
            name.to_uppercase(),
            mixed(&name),
            name.replace('-', "_"),
        ] {
            for copies in 1..=3 {
                let mut sent = headers(&[
                    ("accept", "application/json"),
                    ("content-type", "application/json"),
                ]);
                for copy in 0..copies {
                    let name = HeaderName::from_bytes(spelling.as_bytes()).unwrap();
                    sent.append(
                        name,
                        HeaderValue::from_str(&format!("spoof{copy}")).unwrap(),
                    );
                }
                let clean = request(&sent);
                assert_eq!(
                    shown(&clean),
                    ["accept: application/json", "content-type: application/json"],
                    "{spelling}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 800, "{tried}");
}

#[test]
fn what_clients_need_goes_on_as_it_was() {
    let sent = headers(&[
        ("accept", "text/event-stream"),
        ("anthropic-beta", "a"),
        ("anthropic-beta", "b"),
        ("anthropic-version", "2023-06-01"),
        ("idempotency-key", "k"),
        ("openai-organization", "org"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("user-agent", "openai-python"),
    ]);
    assert_eq!(shown(&request(&sent)), shown(&sent));
}

#[test]
fn only_lists_keep_their_copies() {
    let sent = headers(&[
        ("content-type", "application/json"),
        ("content-type", "text/plain"),
        ("accept", "a"),
        ("accept", "b"),
    ]);
    assert_eq!(
        shown(&request(&sent)),
        ["accept: a", "accept: b", "content-type: application/json"]
    );
}

#[test]
fn what_connection_names_stays_behind() {
    let sent = headers(&[
        ("connection", "close, User-Agent"),
        ("connection", "accept"),
        ("user-agent", "x"),
        ("accept", "y"),
    ]);
    assert!(request(&sent).is_empty());
}

#[test]
fn an_answer_shows_nothing_of_the_engine() {
    let received = headers(&[
        ("content-type", "text/event-stream"),
        ("retry-after", "3"),
        ("server", "uvicorn"),
        ("x-upstream-url", "http://10.0.0.7:8000"),
        ("set-cookie", "sid=1"),
        ("authorization", "Bearer leaked"),
        ("x-headpond-reason", "spoofed"),
        ("location", "http://internal/"),
    ]);
    assert_eq!(
        shown(&answer(&received)),
        ["content-type: text/event-stream", "retry-after: 3"]
    );
}

type Ids<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);

#[test]
fn a_client_request_id_is_one_short_visible_text() {
    let longest = "x".repeat(128);
    let too_long = "x".repeat(129);
    let cases: [Ids<'_>; 7] = [
        (&[], None),
        (&[("x-request-id", "my-req-123")], Some("my-req-123")),
        (&[("x-request-id", &longest)], Some(&longest)),
        (&[("x-request-id", &too_long)], None),
        (&[("x-request-id", "")], None),
        (&[("x-request-id", "a b")], None),
        (&[("x-request-id", "a"), ("x-request-id", "a")], None),
    ];
    for (sent, expected) in cases {
        assert_eq!(client_request_id(&headers(sent)), expected, "{sent:?}");
    }
    let mut binary = HeaderMap::new();
    binary.insert(
        "x-request-id",
        HeaderValue::from_bytes(b"\xff\xfe").unwrap(),
    );
    assert_eq!(client_request_id(&binary), None);
}

#[test]
fn a_key_is_taken_from_three_headers_and_never_from_the_url() {
    use CredentialRefusal::{Conflict, InQuery, Malformed, Missing};
    type Case<'a> = (
        &'a [(&'a str, &'a str)],
        &'a str,
        Result<&'a str, CredentialRefusal>,
    );
    let cases: &[Case] = &[
        (&[], "", Err(Missing)),
        (&[("authorization", "Bearer k1")], "", Ok("k1")),
        (&[("authorization", "bearer  k1 ")], "", Ok("k1")),
        (&[("x-api-key", "k1")], "", Ok("k1")),
        (&[("api-key", "k1")], "", Ok("k1")),
        (
            &[
                ("authorization", "Bearer k1"),
                ("x-api-key", "k1"),
                ("api-key", "k1"),
            ],
            "",
            Ok("k1"),
        ),
        (
            &[("authorization", "Bearer k1"), ("x-api-key", "k2")],
            "",
            Err(Conflict),
        ),
        (
            &[
                ("authorization", "Bearer k1"),
                ("authorization", "Bearer k2"),
            ],
            "",
            Err(Conflict),
        ),
        (&[("x-api-key", "k1"), ("api-key", "k2")], "", Err(Conflict)),
        (&[("authorization", "Basic azE6")], "", Err(Malformed)),
        (
            &[("authorization", "Basic azE6"), ("x-api-key", "k1")],
            "",
            Err(Malformed),
        ),
        (&[("authorization", "Bearer")], "", Err(Malformed)),
        (&[("authorization", "Bearer ")], "", Err(Malformed)),
        (&[("authorization", "Bearer a b")], "", Err(Malformed)),
        (&[("authorization", "k1")], "", Err(Malformed)),
        (&[("x-api-key", "")], "", Err(Malformed)),
        (&[("x-goog-api-key", "k1")], "", Err(Missing)),
        (&[("cookie", "key=k1")], "", Err(Missing)),
        (&[("proxy-authorization", "Bearer k1")], "", Err(Missing)),
        (&[("x-api-key", "k1")], "beta=true", Ok("k1")),
        (&[("x-api-key", "k1")], "monkey=1&keyboard=2", Ok("k1")),
        (&[], "key=k1", Err(InQuery)),
        (&[("x-api-key", "k1")], "key=k1", Err(InQuery)),
        (&[("x-api-key", "k1")], "beta=true&API_KEY=k1", Err(InQuery)),
        (&[("x-api-key", "k1")], "a=1;access_token=k1", Err(InQuery)),
        (&[("x-api-key", "k1")], "api%5Fkey=k1", Err(InQuery)),
        (&[("x-api-key", "k1")], "%6Bey=k1", Err(InQuery)),
        (
            &[("x-api-key", "k1")],
            "authorization=Bearer+k1",
            Err(InQuery),
        ),
        (&[("x-api-key", "k1")], "x-api-key", Err(InQuery)),
    ];
    for (sent, query, expected) in cases {
        let query = Some(*query).filter(|query| !query.is_empty());
        assert_eq!(
            credential(&headers(sent), query).map(Credential::reveal),
            *expected,
            "{sent:?} {query:?}"
        );
    }
}

#[test]
fn a_credential_is_never_shown() {
    let headers = headers(&[("x-api-key", "canary")]);
    assert_eq!(
        format!("{:?}", credential(&headers, None)),
        "Ok(Credential(..))"
    );
}

proptest! {
    #[test]
    fn only_listed_names_ever_go_on(sent in prop::collection::vec(("[a-zA-Z_-]{1,24}", "[ -~]{0,10}"), 0..20)) {
        let pairs: Vec<(&str, &str)> = sent.iter().map(|(name, value)| (name.as_str(), value.trim())).collect();
        for name in request(&headers(&pairs)).keys() {
            prop_assert!(REQUEST.contains(&name.as_str()) || name.as_str().starts_with("openai-"), "{name}");
        }
    }

    #[test]
    fn no_query_panics(query in "\\PC{0,40}", escapes in "[%0-9a-f&;=]{0,40}") {
        query_has_secret(&query);
        query_has_secret(&escapes);
    }
}
