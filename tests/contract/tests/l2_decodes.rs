//! L2's half of the contract: the golden bytes become the same contexts, whoever wrote them.

use std::path::Path;

use contract_tests::{ISSUED_AT, SHARED_KEYS, cases, ring};
use governance_context::{LIFETIME_S, PoolName, Refusal, ReplayGuard, SKEW_S};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(format!("{name}.jws"));
    std::fs::read_to_string(&path)
        .expect(name)
        .trim()
        .to_owned()
}

fn pool() -> PoolName {
    PoolName::new("main").expect("a name")
}

#[test]
fn the_golden_tokens_become_contexts() {
    for case in cases() {
        let verifier = ring(case.l2_keys).verifier(pool());
        for now in [
            ISSUED_AT - SKEW_S,
            ISSUED_AT,
            ISSUED_AT + LIFETIME_S + SKEW_S,
        ] {
            assert_eq!(
                verifier.verify(&golden(case.name), now, case.body),
                Ok(case.context.clone()),
                "{}",
                case.name
            );
        }
    }
}

#[test]
fn a_golden_token_is_good_for_one_pool_time_body_and_use() {
    for case in cases() {
        let token = golden(case.name);
        let keys = ring(case.l2_keys);
        let refusal = |pool: &str, now, body: Option<&[u8]>| {
            keys.verifier(PoolName::new(pool).unwrap())
                .verify(&token, now, body)
                .err()
        };
        assert_eq!(
            refusal("other", ISSUED_AT, case.body),
            Some(Refusal::WrongAudience)
        );
        assert_eq!(
            refusal("main", ISSUED_AT + LIFETIME_S + SKEW_S + 1, case.body),
            Some(Refusal::Expired)
        );
        assert_eq!(
            refusal("main", ISSUED_AT - SKEW_S - 1, case.body),
            Some(Refusal::NotYet)
        );
        let expected = if case.body.is_some() {
            Refusal::BodyDigest
        } else {
            Refusal::MissingClaim("bod")
        };
        assert_eq!(
            refusal("main", ISSUED_AT, Some(b"another body")),
            Some(expected)
        );

        let mut guard = ReplayGuard::new(16);
        assert_eq!(guard.enter(case.context.attempt, ISSUED_AT), Ok(()));
        assert_eq!(
            guard.enter(case.context.attempt, ISSUED_AT + 1),
            Err(Refusal::Replayed)
        );
    }
}

/// `foreign.jws` was written by hand: another order, spaces, escapes, claims and header members we do not know.
#[test]
fn a_token_written_by_somebody_else_is_read_the_same() {
    let full = cases()
        .into_iter()
        .find(|case| case.name == "full")
        .unwrap();
    let verifier = ring(SHARED_KEYS).verifier(pool());
    assert_eq!(
        verifier.verify(&golden("foreign"), ISSUED_AT, full.body),
        Ok(full.context)
    );
}

#[test]
fn any_jwt_library_can_check_the_golden_tokens() {
    let secret: Vec<u8> = [
        0x0f, 0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78, 0x87, 0x96, 0xa5, 0xb4, 0xc3, 0xd2, 0xe1,
        0xf0,
    ]
    .repeat(2);
    let mut validation = Validation::new(Algorithm::HS256);
    validation.set_audience(&["main"]);
    validation.set_issuer(&["headpond-l1"]);
    validation.validate_exp = false; // it would compare with the real clock
    for name in ["full", "minimal", "extreme", "signed-before-rotation"] {
        let key = DecodingKey::from_secret(&secret).unwrap();
        let token = jsonwebtoken::decode::<Value>(golden(name), &key, &validation).expect(name);
        assert_eq!(token.header.kid.as_deref(), Some("2026-11"));
        assert_eq!(token.claims["exp"], ISSUED_AT + LIFETIME_S);
    }
}
