//! The context as a signed token (JWS compact), and back.
//!
//! Only the signature primitive of `jsonwebtoken` is used: its own decoding reads the wall clock.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, crypto};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::claims::{Read, VersionOnly, Written, body_digest};
use crate::context::Context;
use crate::ids::{KeyId, PoolName};
use crate::key::{Key, KeyError};
use crate::refusal::Refusal;

/// The version of the format; the claim `v`.
pub const VERSION: u32 = 1;
/// The issuer; the claim `iss`.
pub const ISSUER: &str = "headpond-l1";
/// How long a token may be on its way, in seconds: `exp` is `iat` plus this.
pub const LIFETIME_S: u64 = 30;
/// How far the clocks of both sides may differ, in seconds.
pub const SKEW_S: u64 = 5;
/// The longest token accepted. The longest one a [`Signer`] can write is shorter.
pub const MAX_TOKEN_BYTES: usize = 4096;

/// Writes tokens with one key.
pub struct Signer {
    kid: KeyId,
    algorithm: Algorithm,
    key: EncodingKey,
    /// The JWS header with its dot; the same for every token.
    header: String,
}

impl Signer {
    /// A signer with this key. A public key cannot sign.
    pub fn new(kid: KeyId, key: &Key) -> Result<Self, KeyError> {
        let algorithm = key.algorithm();
        let key = key.encoding().ok_or(KeyError::CannotSign)?.clone();
        let name = algorithm_name(algorithm);
        let header = serde_json::json!({ "alg": name, "kid": kid, "typ": "JWT" }).to_string();
        let header = format!("{}.", URL_SAFE_NO_PAD.encode(header));
        Ok(Self {
            kid,
            algorithm,
            key,
            header,
        })
    }

    /// The name of the key this signer uses.
    pub fn kid(&self) -> &KeyId {
        &self.kid
    }

    /// Signs a context. With a body, the token is good for exactly these bytes.
    pub fn sign(&self, context: &Context, issued_at_unix_s: u64, body: Option<&[u8]>) -> String {
        let claims = Written {
            v: VERSION,
            iss: ISSUER,
            aud: &context.pool,
            iat: issued_at_unix_s,
            exp: issued_at_unix_s.saturating_add(LIFETIME_S),
            jti: context.attempt,
            rid: context.request,
            ten: &context.tenant,
            acc: context.account_path,
            fid: &context.fairness,
            wgt: context.weight,
            pri: context.band,
            obj: context.objective.as_ref(),
            ttl: context.ttl_ms,
            tby: context.ttl_by,
            tgt: context.targets,
            input: context.prompt_tokens,
            out: context.output_bound,
            wtu: context.held,
            dom: &context.cache_domain,
            cfg: &context.policy_version,
            bod: body.map(body_digest),
        };
        let claims = serde_json::to_vec(&claims).expect("claims are strings and integers");
        let mut token = self.header.clone();
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = crypto::sign(token.as_bytes(), &self.key, self.algorithm)
            .expect("the key was proven to sign when it was read");
        token.push('.');
        token.push_str(&signature);
        token
    }
}

/// Shows the key's name, never the key.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("kid", &self.kid)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

/// Reads tokens signed with one of a few keys, for one pool.
pub struct Verifier {
    keys: Vec<VerifyingKey>,
    audience: PoolName,
}

struct VerifyingKey {
    kid: KeyId,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier {
    /// A verifier that accepts these keys: the current one, and the previous one while tokens of it are on their way.
    pub fn new(keys: impl IntoIterator<Item = (KeyId, Key)>, audience: PoolName) -> Self {
        let keys = keys
            .into_iter()
            .map(|(kid, key)| VerifyingKey {
                kid,
                algorithm: key.algorithm(),
                key: key.decoding().clone(),
            })
            .collect();
        Self { keys, audience }
    }

    /// The context in a token, if it is to be believed at this time.
    ///
    /// With a body, the token must carry its digest; without one, the digest is not looked at.
    pub fn verify(
        &self,
        token: &str,
        now_unix_s: u64,
        body: Option<&[u8]>,
    ) -> Result<Context, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Oversized);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Refusal::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(Refusal::Malformed)?;
        self.check_signature(header, message, signature)?;

        let claims = decode(claims)?;
        let claims = read_claims(&claims)?;
        self.check_envelope(&claims, now_unix_s)?;
        if let Some(body) = body {
            let digest = claims.bod.as_deref().ok_or(Refusal::MissingClaim("bod"))?;
            if digest != body_digest(body) {
                return Err(Refusal::BodyDigest);
            }
        }
        claims.into_context(self.audience.clone())
    }

    /// The key decides the algorithm; the header only names the key and must agree.
    fn check_signature(&self, header: &str, message: &str, signature: &str) -> Result<(), Refusal> {
        let header = decode(header)?;
        let header: Header<'_> = serde_json::from_slice(&header).map_err(|_| Refusal::Malformed)?;
        if header.crit.is_some() {
            return Err(Refusal::Malformed); // RFC 7515 §4.1.11: an extension we do not know must be refused
        }
        if ![Algorithm::HS256, Algorithm::EdDSA]
            .iter()
            .any(|known| header.alg == algorithm_name(*known))
        {
            return Err(Refusal::Algorithm);
        }
        let kid = header.kid.as_deref().ok_or(Refusal::UnknownKey)?;
        let key = self
            .keys
            .iter()
            .find(|key| key.kid.as_str() == kid)
            .ok_or(Refusal::UnknownKey)?;
        if header.alg != algorithm_name(key.algorithm) {
            return Err(Refusal::Algorithm);
        }
        match crypto::verify(signature, message.as_bytes(), &key.key, key.algorithm) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Refusal::BadSignature),
        }
    }

    fn check_envelope(&self, claims: &Read<'_>, now_unix_s: u64) -> Result<(), Refusal> {
        if claims.v.ok_or(Refusal::MissingClaim("v"))? != VERSION {
            return Err(Refusal::WrongVersion);
        }
        if claims.iss.as_deref().ok_or(Refusal::MissingClaim("iss"))? != ISSUER {
            return Err(Refusal::WrongIssuer);
        }
        if claims.aud.as_deref().ok_or(Refusal::MissingClaim("aud"))? != self.audience.as_str() {
            return Err(Refusal::WrongAudience);
        }
        let issued = claims.iat.ok_or(Refusal::MissingClaim("iat"))?;
        let expires = claims.exp.ok_or(Refusal::MissingClaim("exp"))?;
        if issued > now_unix_s.saturating_add(SKEW_S) {
            return Err(Refusal::NotYet);
        }
        // A signer that grants itself a longer life is not obeyed: the replay guard forgets after this one.
        let expires = expires.min(issued.saturating_add(LIFETIME_S));
        if now_unix_s > expires.saturating_add(SKEW_S) {
            return Err(Refusal::Expired);
        }
        Ok(())
    }
}

/// Shows the keys' names, never the keys.
impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kids: Vec<_> = self.keys.iter().map(|key| &key.kid).collect();
        f.debug_struct("Verifier")
            .field("audience", &self.audience)
            .field("kids", &kids)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    alg: Cow<'a, str>,
    #[serde(borrow)]
    kid: Option<Cow<'a, str>>,
    crit: Option<IgnoredAny>,
}

fn algorithm_name(algorithm: Algorithm) -> &'static str {
    // Keys are of two kinds; see `Key::algorithm`.
    if algorithm == Algorithm::EdDSA {
        "EdDSA"
    } else {
        "HS256"
    }
}

/// The JSON object in a part. The derived readers would take an array for an object.
fn decode(part: &str) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD
        .decode(part)
        .ok()
        .filter(|json| json.starts_with(b"{"))
        .ok_or(Refusal::Malformed)
}

fn read_claims(json: &[u8]) -> Result<Read<'_>, Refusal> {
    serde_json::from_slice(json).map_err(|_| match serde_json::from_slice(json) {
        Ok(VersionOnly { v: Some(version) }) if version != VERSION => Refusal::WrongVersion,
        Ok(VersionOnly { .. }) | Err(_) => Refusal::Malformed,
    })
}

#[cfg(test)]
mod tests;
