use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::context::{Targets, TtlSource};
use crate::ids::{
    AttemptId, CacheDomain, FairnessId, ObjectiveName, PathHash, PolicyVersion, RequestId, TenantId,
};
use crate::key::KeyRing;
use crate::units::{Band, MicroWtu};

const PRIVATE: &str = include_str!("../../tests/fixtures/ed25519.pem");
const PUBLIC: &str = include_str!("../../tests/fixtures/ed25519.pub.pem");
const NOW: u64 = 1_790_000_000;
const SECRET: [u8; 32] = [7; 32];
const OLD_SECRET: [u8; 32] = [8; 32];

fn kid(text: &str) -> KeyId {
    KeyId::new(text).unwrap()
}

fn context() -> Context {
    Context {
        pool: PoolName::new("main").unwrap(),
        attempt: AttemptId::new(NOW * 1000, [1; 10]),
        request: RequestId::new(NOW * 1000, [2; 10]),
        tenant: TenantId::new("acme").unwrap(),
        account_path: PathHash::of(["acme", "web", "ada", "key1"]),
        fairness: FairnessId::new("acme/web").unwrap(),
        weight: 3,
        band: Band(-1),
        objective: Some(ObjectiveName::new("batch").unwrap()),
        ttl_ms: 60_000,
        ttl_by: TtlSource::Objective,
        targets: Targets {
            ttft_ms: Some(800),
            tpot_ms: None,
        },
        prompt_tokens: 1200,
        output_bound: 256,
        held: MicroWtu(9_007_199_254_740_993),
        cache_domain: CacheDomain::new("acme").unwrap(),
        policy_version: PolicyVersion::new("sha256:12ab").unwrap(),
    }
}

/// Shared secrets `new` and `old`, and the public half of `ed`.
fn verifier() -> Verifier {
    let keys = [
        (kid("new"), Key::shared(&SECRET).unwrap()),
        (kid("old"), Key::shared(&OLD_SECRET).unwrap()),
        (kid("ed"), Key::ed25519_pem(PUBLIC).unwrap()),
    ];
    Verifier::new(keys, PoolName::new("main").unwrap())
}

fn signer() -> Signer {
    Signer::new(kid("new"), &Key::shared(&SECRET).unwrap()).unwrap()
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// A token with any header and claims, signed by HMAC with any secret.
fn forge(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let message = format!("{}.{}", encode(header), encode(claims));
    let key = EncodingKey::from_secret(secret).unwrap();
    let signature = crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
    format!("{message}.{signature}")
}

fn honest_header() -> Value {
    json!({"alg": "HS256", "kid": "new", "typ": "JWT"})
}

fn honest_claims() -> Value {
    let token = signer().sign(&context(), NOW, Some(b"body"));
    let claims = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

/// The honest claims after a change.
fn claims_with(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Value {
    let mut claims = honest_claims();
    change(claims.as_object_mut().unwrap());
    claims
}

fn set(name: &str, value: Value) -> Value {
    claims_with(|claims| {
        claims.insert(name.to_owned(), value);
    })
}

fn refusal_of(claims: &Value) -> Option<Refusal> {
    verifier()
        .verify(
            &forge(&honest_header(), claims, &SECRET),
            NOW,
            Some(b"body"),
        )
        .err()
}

#[test]
fn a_signed_context_comes_back_as_it_was() {
    let ed = Signer::new(kid("ed"), &Key::ed25519_pem(PRIVATE).unwrap()).unwrap();
    let old = Signer::new(kid("old"), &Key::shared(&OLD_SECRET).unwrap()).unwrap();
    for signer in [signer(), ed, old] {
        for body in [None, Some(&b""[..]), Some(&b"{}"[..])] {
            let token = signer.sign(&context(), NOW, body);
            assert_eq!(
                verifier().verify(&token, NOW, body),
                Ok(context()),
                "{signer:?}"
            );
        }
    }
}

#[test]
fn a_private_key_verifies_what_it_signed() {
    let ring = KeyRing::single(kid("ed"), Key::ed25519_pem(PRIVATE).unwrap());
    let token = ring.signer().unwrap().sign(&context(), NOW, None);
    assert_eq!(
        ring.verifier(context().pool).verify(&token, NOW, None),
        Ok(context())
    );
}

#[test]
fn the_forgery_helper_makes_honest_tokens_too() {
    assert_eq!(refusal_of(&honest_claims()), None);
}

#[test]
fn forged_headers_are_refused() {
    let public_key = DecodingKey::from_ed_pem(PUBLIC.as_bytes()).unwrap();
    let public_bytes = public_key.try_get_as_bytes().unwrap();
    let claims = honest_claims();
    let cases: [(&str, Value, &[u8], Refusal); 18] = [
        (
            "a list for an object",
            json!(["HS256", "new", null]),
            &SECRET,
            Refusal::Malformed,
        ),
        (
            "alg none",
            json!({"alg": "none", "kid": "new"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "alg NONE",
            json!({"alg": "NONE", "kid": "new"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "alg empty",
            json!({"alg": "", "kid": "new"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "alg lower case",
            json!({"alg": "hs256", "kid": "new"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "HS512",
            json!({"alg": "HS512", "kid": "new"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "RS256",
            json!({"alg": "RS256", "kid": "ed"}),
            PUBLIC.as_bytes(),
            Refusal::Algorithm,
        ),
        (
            "ES256",
            json!({"alg": "ES256", "kid": "ed"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "HMAC with the public PEM",
            json!({"alg": "HS256", "kid": "ed"}),
            PUBLIC.as_bytes(),
            Refusal::Algorithm,
        ),
        (
            "HMAC with the public bytes",
            json!({"alg": "HS256", "kid": "ed"}),
            public_bytes,
            Refusal::Algorithm,
        ),
        (
            "EdDSA over a shared secret",
            json!({"alg": "EdDSA", "kid": "new"}),
            &SECRET,
            Refusal::Algorithm,
        ),
        (
            "EdDSA, an HMAC as signature",
            json!({"alg": "EdDSA", "kid": "ed"}),
            public_bytes,
            Refusal::BadSignature,
        ),
        (
            "no kid",
            json!({"alg": "HS256"}),
            &SECRET,
            Refusal::UnknownKey,
        ),
        (
            "another kid",
            json!({"alg": "HS256", "kid": "newer"}),
            &SECRET,
            Refusal::UnknownKey,
        ),
        (
            "the kid of another secret",
            json!({"alg": "HS256", "kid": "old"}),
            &SECRET,
            Refusal::BadSignature,
        ),
        ("no alg", json!({"kid": "new"}), &SECRET, Refusal::Malformed),
        (
            "critical extension",
            json!({"alg": "HS256", "kid": "new", "crit": ["b64"]}),
            &SECRET,
            Refusal::Malformed,
        ),
        (
            "key in the header",
            json!({"alg": "EdDSA", "jwk": {"kty": "OKP"}}),
            &SECRET,
            Refusal::UnknownKey,
        ),
    ];
    for (name, header, secret, expected) in cases {
        let token = forge(&header, &claims, secret);
        assert_eq!(
            verifier().verify(&token, NOW, Some(b"body")),
            Err(expected),
            "{name}"
        );
    }
}

#[test]
fn broken_tokens_are_refused() {
    let honest = signer().sign(&context(), NOW, None);
    let parts: Vec<&str> = honest.split('.').collect();
    let unsigned = format!("{}.{}.", encode(&json!({"alg": "none"})), parts[1]);
    let (head, tail) = honest.split_at(honest.len() - 1);
    // 43 characters carry 258 bits: the last one has two spare bits, which must not make a second spelling.
    let respelled: Vec<String> = ["A", "B", "C", "D"]
        .iter()
        .map(|last| format!("{head}{last}"))
        .collect();
    let cases = [
        ("empty", String::new(), Refusal::Malformed),
        ("one part", parts[0].to_owned(), Refusal::Malformed),
        (
            "two parts",
            format!("{}.{}", parts[0], parts[1]),
            Refusal::Malformed,
        ),
        (
            "four parts",
            format!("{honest}.{}", parts[2]),
            Refusal::BadSignature,
        ),
        ("unsigned", unsigned, Refusal::Algorithm),
        (
            "no signature",
            format!("{}.{}.", parts[0], parts[1]),
            Refusal::BadSignature,
        ),
        ("signature cut", head.to_owned(), Refusal::BadSignature),
        (
            "signature padded",
            format!("{honest}="),
            Refusal::BadSignature,
        ),
        (
            "claims padded",
            format!("{}.{}=.{}", parts[0], parts[1], parts[2]),
            Refusal::BadSignature,
        ),
        (
            "header is not base64",
            format!("!!.{}.{}", parts[1], parts[2]),
            Refusal::Malformed,
        ),
        (
            "header is not JSON",
            format!("AAAA.{}.{}", parts[1], parts[2]),
            Refusal::Malformed,
        ),
        ("a space in front", format!(" {honest}"), Refusal::Malformed),
        (
            "too long",
            "a".repeat(MAX_TOKEN_BYTES + 1),
            Refusal::Oversized,
        ),
    ];
    for (name, token, expected) in cases {
        assert_eq!(
            verifier().verify(&token, NOW, None),
            Err(expected),
            "{name}"
        );
    }
    let accepted = respelled
        .iter()
        .filter(|token| verifier().verify(token, NOW, None).is_ok())
        .count();
    assert!(
        accepted <= 1,
        "one signature has one spelling (last character was {tail})"
    );
}

#[test]
fn a_token_is_for_one_pool_issuer_version_and_time() {
    let cases = [
        (
            "another pool",
            set("aud", json!("other")),
            Some(Refusal::WrongAudience),
        ),
        (
            "a list of pools",
            set("aud", json!(["main"])),
            Some(Refusal::Malformed),
        ),
        (
            "another issuer",
            set("iss", json!("headpond-l2")),
            Some(Refusal::WrongIssuer),
        ),
        ("version 2", set("v", json!(2)), Some(Refusal::WrongVersion)),
        ("version 0", set("v", json!(0)), Some(Refusal::WrongVersion)),
        (
            "version 2 with another shape",
            claims_with(|claims| {
                claims.insert("v".to_owned(), json!(2));
                claims.insert("in".to_owned(), json!({"text": 5}));
            }),
            Some(Refusal::WrongVersion),
        ),
        (
            "expired",
            set("exp", json!(NOW - SKEW_S - 1)),
            Some(Refusal::Expired),
        ),
        (
            "expired within the skew",
            set("exp", json!(NOW - SKEW_S)),
            None,
        ),
        (
            "issued in the future",
            set("iat", json!(NOW + SKEW_S + 1)),
            Some(Refusal::NotYet),
        ),
        (
            "issued in the future within the skew",
            set("iat", json!(NOW + SKEW_S)),
            None,
        ),
        (
            "times at the end of the number range",
            set("exp", json!(u64::MAX)),
            None,
        ),
        (
            "negative time",
            set("exp", json!(-1)),
            Some(Refusal::Malformed),
        ),
        (
            "time with a fraction",
            set("iat", json!(1.5)),
            Some(Refusal::Malformed),
        ),
        ("unknown claims", set("future", json!({"a": [1, 2]})), None),
    ];
    for (name, claims, expected) in cases {
        assert_eq!(refusal_of(&claims), expected, "{name}");
    }
}

#[test]
fn a_token_cannot_grant_itself_a_longer_life() {
    let claims = set("exp", json!(NOW + 10_000));
    let token = forge(&honest_header(), &claims, &SECRET);
    let last = NOW + LIFETIME_S + SKEW_S;
    assert!(verifier().verify(&token, last, None).is_ok());
    assert_eq!(
        verifier().verify(&token, last + 1, None),
        Err(Refusal::Expired)
    );
}

#[test]
fn every_mandatory_claim_is_missed_by_name_and_null_is_missing() {
    let mandatory = [
        "v", "iss", "aud", "iat", "exp", "jti", "rid", "ten", "acc", "fid", "wgt", "pri", "ttl",
        "in", "out", "wtu", "dom", "cfg", "bod",
    ];
    for name in mandatory {
        let without = claims_with(|claims| {
            claims.remove(name).expect("the honest token has it");
        });
        assert_eq!(refusal_of(&without), Some(Refusal::MissingClaim(name)));
        assert_eq!(
            refusal_of(&set(name, Value::Null)),
            Some(Refusal::MissingClaim(name))
        );
    }
    for name in ["obj", "tgt"] {
        let without = claims_with(|claims| {
            claims.remove(name);
        });
        assert_eq!(refusal_of(&without), None, "{name} is optional");
    }
}

#[test]
fn a_claim_of_the_wrong_type_or_out_of_range_is_malformed() {
    let cases = [
        ("jti", json!("not-a-uuid")),
        ("rid", json!(7)),
        ("ten", json!("a b")),
        ("ten", json!("")),
        ("ten", json!("x".repeat(129))),
        ("acc", json!("12")),
        ("wgt", json!(-1)),
        ("wgt", json!("3")),
        ("pri", json!(3_000_000_000_u64)),
        ("ttl", json!(1e300)),
        ("tgt", json!("soon")),
        ("in", json!(-5)),
        ("wtu", json!(1.5)),
        ("bod", json!(5)),
    ];
    for (name, value) in cases {
        assert_eq!(
            refusal_of(&set(name, value.clone())),
            Some(Refusal::Malformed),
            "{name} = {value}"
        );
    }
}

#[test]
fn a_claim_that_stands_twice_is_malformed() {
    let claims = honest_claims()
        .to_string()
        .replacen('{', r#"{"ten":"evil","#, 1);
    let message = format!(
        "{}.{}",
        encode(&honest_header()),
        URL_SAFE_NO_PAD.encode(claims)
    );
    let key = EncodingKey::from_secret(&SECRET).unwrap();
    let token = format!(
        "{message}.{}",
        crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap()
    );
    assert_eq!(
        verifier().verify(&token, NOW, None),
        Err(Refusal::Malformed)
    );
}

#[test]
fn a_token_is_good_for_exactly_its_body() {
    let token = signer().sign(&context(), NOW, Some(b"{\"a\":1}"));
    for (body, expected) in [
        (&b"{\"a\":1}"[..], None),
        (b"{\"a\":2}", Some(Refusal::BodyDigest)),
        (b"{\"a\":1} ", Some(Refusal::BodyDigest)),
        (b"", Some(Refusal::BodyDigest)),
    ] {
        assert_eq!(verifier().verify(&token, NOW, Some(body)).err(), expected);
    }
    let without = signer().sign(&context(), NOW, None);
    assert_eq!(
        verifier().verify(&without, NOW, Some(b"")),
        Err(Refusal::MissingClaim("bod"))
    );
}

#[test]
fn the_longest_token_we_write_is_not_too_long() {
    let longest = || "\"".repeat(crate::MAX_ID_BYTES); // quotes double when they are escaped
    let context = Context {
        pool: PoolName::new(longest()).unwrap(),
        tenant: TenantId::new(longest()).unwrap(),
        fairness: FairnessId::new(longest()).unwrap(),
        objective: Some(ObjectiveName::new(longest()).unwrap()),
        cache_domain: CacheDomain::new(longest()).unwrap(),
        policy_version: PolicyVersion::new(longest()).unwrap(),
        weight: u32::MAX,
        band: Band(i32::MIN),
        ttl_ms: u64::MAX,
        ttl_by: TtlSource::Objective,
        targets: Targets {
            ttft_ms: Some(u32::MAX),
            tpot_ms: Some(u32::MAX),
        },
        prompt_tokens: u64::MAX,
        output_bound: u64::MAX,
        held: MicroWtu::MAX,
        ..context()
    };
    let kid = kid(&longest());
    let ring = KeyRing::single(kid, Key::ed25519_pem(PRIVATE).unwrap());
    let token = ring.signer().unwrap().sign(&context, u64::MAX, Some(b""));
    assert!(token.len() <= MAX_TOKEN_BYTES, "{}", token.len());
    assert_eq!(
        ring.verifier(context.pool.clone())
            .verify(&token, u64::MAX, Some(b"")),
        Ok(context)
    );
}

proptest! {
    #[test]
    fn no_flipped_bit_is_accepted(at in 0usize..2000, bit in 0u8..8) {
        let mut token = signer().sign(&context(), NOW, None).into_bytes();
        let at = at % token.len();
        token[at] ^= 1 << bit;
        if let Ok(token) = String::from_utf8(token) {
            prop_assert!(verifier().verify(&token, NOW, None).is_err());
        }
    }

    #[test]
    fn no_text_panics(token in "\\PC{0,200}", dotted in "[A-Za-z0-9_.-]{0,400}") {
        prop_assert!(verifier().verify(&token, NOW, None).is_err());
        prop_assert!(verifier().verify(&dotted, NOW, None).is_err());
    }

    #[test]
    fn signed_claims_of_any_shape_never_panic(name in "[a-z]{1,3}", number in any::<i64>(), text in "\\PC{0,20}") {
        for value in [json!(number), json!(text), json!([text]), json!({"a": number})] {
            let token = forge(&honest_header(), &set(&name, value), &SECRET);
            let _ = verifier().verify(&token, NOW, Some(b"body"));
        }
    }
}
