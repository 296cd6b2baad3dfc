//! Who a request over HTTP is from: the signed context, or what the policy grants without one.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use governance_context::{
    AttemptId, Band, CacheDomain, Context, FairnessId, MicroWtu, PathHash, PolicyVersion, PoolName,
    Refusal, ReplayGuard, RequestId, Targets, TenantId, TtlSource, Verifier, names,
};
use http::HeaderMap;

use crate::answer::{Code, Problem};
use crate::config::Untrusted;

/// Attempts remembered so that none enters twice; at 5,000 requests/s that is the life of a token.
const REPLAY_CAPACITY: usize = 1 << 18;
/// The band's own time to live is never longer.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Judges the contexts of requests over HTTP.
pub(crate) struct Trust {
    /// Swapped when keys are rotated; without one no token is valid.
    verifier: ArcSwapOption<Verifier>,
    /// Locked once per request with a token.
    replay: Mutex<ReplayGuard>,
    untrusted: Untrusted,
    anonymous: Context,
}

/// A request not let in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rejection {
    /// A token that is not accepted.
    Context(Refusal),
    NoContext,
    /// Two copies of a header that must be ours.
    Duplicate(String),
}

/// How much body is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Little,
    /// Much, or nobody says.
    Much,
}

impl Trust {
    pub(crate) fn new(pool: PoolName, untrusted: Untrusted) -> Self {
        Self {
            verifier: ArcSwapOption::empty(),
            replay: Mutex::new(ReplayGuard::new(REPLAY_CAPACITY)),
            untrusted,
            anonymous: anonymous(pool),
        }
    }

    pub(crate) fn set_verifier(&self, verifier: Verifier) {
        self.verifier.store(Some(verifier.into()));
    }

    /// Refuses before the body is read: memory is for those who are let in. A signature is checked twice only where a
    /// large body could follow it.
    pub(crate) fn judge_head(&self, headers: &HeaderMap, body: Expected) -> Result<(), Rejection> {
        if let Some(name) = duplicate_reserved(headers) {
            return Err(Rejection::Duplicate(name));
        }
        match (self.token(headers)?, body) {
            (Some(token), Expected::Much) => self
                .verify(token, unix_s(), None)
                .map(drop)
                .map_err(Rejection::Context),
            (Some(_), Expected::Little) | (None, _) => Ok(()),
        }
    }

    /// The context of a request whose head has been judged.
    pub(crate) fn context(&self, headers: &HeaderMap, body: &[u8]) -> Result<Context, Rejection> {
        match self.token(headers)? {
            Some(token) => self.enter(token, body).map_err(Rejection::Context),
            None => Ok(self.fresh_anonymous()),
        }
    }

    /// The token, or `None` where that is allowed.
    fn token<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, Rejection> {
        match (headers.get(names::CONTEXT), self.untrusted) {
            (Some(token), _) => token
                .to_str()
                .map(Some)
                .map_err(|_| Rejection::Context(Refusal::Malformed)),
            (None, Untrusted::Refuse) => Err(Rejection::NoContext),
            (None, Untrusted::Lowest) => Ok(None),
        }
    }

    fn enter(&self, token: &str, body: &[u8]) -> Result<Context, Refusal> {
        let now = unix_s();
        let context = self.verify(token, now, Some(body))?;
        self.replay
            .lock()
            .expect("no panic happens under this lock")
            .enter(context.attempt, now)?;
        Ok(context)
    }

    fn verify(&self, token: &str, now: u64, body: Option<&[u8]>) -> Result<Context, Refusal> {
        let verifier = self.verifier.load();
        let verifier = verifier.as_ref().ok_or(Refusal::UnknownKey)?;
        verifier.verify(token, now, body)
    }

    fn fresh_anonymous(&self) -> Context {
        Context {
            attempt: AttemptId::new(unix_ms(), rand::random()),
            request: RequestId::new(unix_ms(), rand::random()),
            ..self.anonymous.clone()
        }
    }
}

impl Rejection {
    pub(crate) fn problem(&self) -> Problem {
        match self {
            Self::Context(refusal) => Problem::new(Code::ContextInvalid, refusal.to_string()),
            Self::NoContext => Problem::new(
                Code::ContextInvalid,
                "a signed context is required; send requests through L1, or set `untrusted: lowest`",
            ),
            Self::Duplicate(name) => Problem::new(
                Code::InvalidRequest,
                format!("the header {name} is reserved and must not be repeated"),
            ),
        }
    }

    /// What the refusal is counted as.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Context(refusal) => refusal.reason(),
            Self::NoContext => "no_context",
            Self::Duplicate(_) => "duplicate_header",
        }
    }
}

/// Names are compared as other servers might: `_` counts as `-`.
fn duplicate_reserved(headers: &HeaderMap) -> Option<String> {
    let mut seen: Vec<String> = Vec::new();
    for name in headers.keys().map(http::HeaderName::as_str) {
        if !names::is_reserved_header(name) {
            continue;
        }
        let folded = name.replace('_', "-");
        if headers.get_all(name).iter().nth(1).is_some() || seen.contains(&folded) {
            return Some(folded);
        }
        seen.push(folded);
    }
    None
}

/// The tenant, and the flow, of requests without a signed context.
pub const ANONYMOUS: &str = "anonymous";

/// The lowest band, one shared flow, no promise.
fn anonymous(pool: PoolName) -> Context {
    Context {
        pool,
        attempt: AttemptId::new(0, [0; 10]),
        request: RequestId::new(0, [0; 10]),
        tenant: TenantId::new(ANONYMOUS).expect("a valid name"),
        account_path: PathHash::of([ANONYMOUS]),
        fairness: FairnessId::new(ANONYMOUS).expect("a valid name"),
        weight: 1,
        band: Band(i32::MIN),
        objective: None,
        ttl_ms: DAY_MS,
        ttl_by: TtlSource::Unsaid,
        targets: Targets::default(),
        prompt_tokens: 0,
        output_bound: 0,
        held: MicroWtu::ZERO,
        cache_domain: CacheDomain::new("anonymous").expect("a valid name"),
        policy_version: PolicyVersion::new("none").expect("a valid name"),
    }
}

fn unix_s() -> u64 {
    unix_ms() / 1000
}

/// Milliseconds of the wall clock.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
