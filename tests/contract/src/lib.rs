//! Contexts with fixed contents, the keys they are signed with, and the tokens they must become.
//!
//! The files in `golden/` are the contract between releases: a change of their bytes is a change of the format and
//! needs a new version of it. `UPDATE_EXPECT=1 cargo test -p contract-tests` writes them.

use governance_context::{
    AttemptId, Band, CacheDomain, Context, FairnessId, KeyRing, MicroWtu, ObjectiveName, PathHash,
    PolicyVersion, PoolName, RequestId, Targets, TenantId, TtlSource,
};

/// When every token was issued.
pub const ISSUED_AT: u64 = 1_790_000_000;

/// The keys of L1: a shared secret, and the one before it.
pub const SHARED_KEYS: &str = include_str!("../golden/shared.keys");
/// The same secrets after one more rotation: what was current is previous.
pub const ROTATED_KEYS: &str = include_str!("../golden/rotated.keys");
/// L1's half of an Ed25519 key.
pub const PRIVATE_KEYS: &str = include_str!("../golden/private.keys");
/// L2's half of it.
pub const PUBLIC_KEYS: &str = include_str!("../golden/public.keys");

/// One context and how it is signed.
#[derive(Debug)]
pub struct Case {
    /// The name of its golden files.
    pub name: &'static str,
    /// The key file L1 signs with.
    pub l1_keys: &'static str,
    /// The key file L2 verifies with.
    pub l2_keys: &'static str,
    /// What L1 decided.
    pub context: Context,
    /// The body the token is bound to.
    pub body: Option<&'static [u8]>,
}

/// Every golden case.
///
/// # Panics
/// If a fixed name is not valid, which the first test would show.
pub fn cases() -> Vec<Case> {
    let body: &[u8] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"né\"}]}".as_bytes();
    let case = |name, context, body| Case {
        name,
        l1_keys: SHARED_KEYS,
        l2_keys: SHARED_KEYS,
        context,
        body,
    };
    vec![
        case("full", full(), Some(body)),
        case("minimal", minimal(), None),
        case("extreme", extreme(), Some(b"")),
        case("told-whose-ttl", told_whose_ttl(), None),
        Case {
            l2_keys: ROTATED_KEYS,
            ..case("signed-before-rotation", full(), Some(body))
        },
        Case {
            l1_keys: PRIVATE_KEYS,
            l2_keys: PUBLIC_KEYS,
            ..case("ed25519", full(), Some(body))
        },
    ]
}

/// The keys in a file.
///
/// # Panics
/// If the file is not a key file.
pub fn ring(file: &str) -> KeyRing {
    KeyRing::parse(file).expect("a golden key file is valid")
}

fn full() -> Context {
    Context {
        pool: name("main", PoolName::new),
        attempt: AttemptId::new(ISSUED_AT * 1000, [0xa1; 10]),
        request: RequestId::new(ISSUED_AT * 1000, [0xb2; 10]),
        tenant: name("acme", TenantId::new),
        account_path: PathHash::of(["acme", "web", "ada", "hp-0123456789ab"]),
        fairness: name("acme/web", FairnessId::new),
        weight: 3,
        band: Band(10),
        objective: Some(name("interactive", ObjectiveName::new)),
        ttl_ms: 30_000,
        ttl_by: TtlSource::Unsaid,
        targets: Targets {
            ttft_ms: Some(800),
            tpot_ms: Some(50),
        },
        prompt_tokens: 1_234,
        output_bound: 512,
        held: MicroWtu(2_258_000),
        cache_domain: name("acme", CacheDomain::new),
        policy_version: name("v7-3f2a", PolicyVersion::new),
    }
}

fn minimal() -> Context {
    Context {
        objective: None,
        targets: Targets::default(),
        band: Band(0),
        weight: 1,
        held: MicroWtu::ZERO,
        ..full()
    }
}

fn told_whose_ttl() -> Context {
    Context {
        ttl_by: TtlSource::Gateway,
        ..minimal()
    }
}

fn extreme() -> Context {
    Context {
        tenant: name("a\"b\\c</script>&'~", TenantId::new),
        weight: u32::MAX,
        band: Band(i32::MIN),
        ttl_ms: u64::MAX,
        targets: Targets {
            ttft_ms: Some(u32::MAX),
            tpot_ms: None,
        },
        prompt_tokens: u64::MAX,
        output_bound: 0,
        held: MicroWtu::MAX,
        ..full()
    }
}

fn name<T, E: std::fmt::Debug>(text: &str, parse: impl FnOnce(String) -> Result<T, E>) -> T {
    parse(text.to_owned()).expect("a golden name is valid")
}
