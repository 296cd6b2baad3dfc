//! A context token from another process.

use governance_context::{
    AttemptId, Band, CacheDomain, Context, FairnessId, Key, KeyId, MicroWtu, PathHash,
    PolicyVersion, PoolName, RequestId, Signer, Targets, TenantId, TtlSource, Verifier,
};

const BODY: &[u8] = br#"{"model":"tiny"}"#;
const ISSUED_AT: u64 = 1_800_000_000;

/// Shows `data` to a verifier: nothing but what was signed is believed, whatever was done to the token.
pub fn context_token(data: &[u8]) {
    let Ok(token) = std::str::from_utf8(data) else {
        return;
    };
    let verifier = Verifier::new([(key_id(), key())], pool());
    for body in [None, Some(BODY), Some(data)] {
        if let Ok(believed) = verifier.verify(token, ISSUED_AT, body) {
            assert_eq!(token, signed_token(), "another token was believed");
            assert_eq!(believed, context());
            assert_ne!(body, Some(data), "another body was believed");
        }
    }
}

/// The only token that [`context_token`] accepts.
pub fn signed_token() -> String {
    let signer = Signer::new(key_id(), &key()).expect("a shared secret signs");
    signer.sign(&context(), ISSUED_AT, Some(BODY))
}

fn key_id() -> KeyId {
    KeyId::new("fuzz").expect("a valid id")
}

fn key() -> Key {
    Key::shared(&[7; 32]).expect("long enough")
}

fn pool() -> PoolName {
    PoolName::new("pool").expect("a valid id")
}

fn context() -> Context {
    Context {
        pool: pool(),
        attempt: AttemptId::new(ISSUED_AT * 1000, [1; 10]),
        request: RequestId::new(ISSUED_AT * 1000, [2; 10]),
        tenant: TenantId::new("tenant").expect("a valid id"),
        account_path: PathHash([3; 16]),
        fairness: FairnessId::new("tenant").expect("a valid id"),
        weight: 1,
        band: Band(0),
        objective: None,
        ttl_ms: 1000,
        ttl_by: TtlSource::Key,
        targets: Targets::default(),
        prompt_tokens: 10,
        output_bound: 20,
        held: MicroWtu(30),
        cache_domain: CacheDomain::new("tenant").expect("a valid id"),
        policy_version: PolicyVersion::new("1").expect("a valid id"),
    }
}
