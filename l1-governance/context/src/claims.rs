//! The claims as they stand in the token. Short names; the order is part of the golden files.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::context::{Context, Targets, TtlSource};
use crate::ids::{
    AttemptId, CacheDomain, FairnessId, ObjectiveName, PathHash, PolicyVersion, PoolName,
    RequestId, TenantId,
};
use crate::refusal::Refusal;
use crate::units::{Band, MicroWtu};

/// Written by the signer.
#[derive(Serialize)]
pub(crate) struct Written<'a> {
    pub(crate) v: u32,
    pub(crate) iss: &'static str,
    pub(crate) aud: &'a PoolName,
    pub(crate) iat: u64,
    pub(crate) exp: u64,
    pub(crate) jti: AttemptId,
    pub(crate) rid: RequestId,
    pub(crate) ten: &'a TenantId,
    pub(crate) acc: PathHash,
    pub(crate) fid: &'a FairnessId,
    pub(crate) wgt: u32,
    pub(crate) pri: Band,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) obj: Option<&'a ObjectiveName>,
    pub(crate) ttl: u64,
    #[serde(skip_serializing_if = "TtlSource::is_unsaid")]
    pub(crate) tby: TtlSource,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub(crate) tgt: Targets,
    #[serde(rename = "in")]
    pub(crate) input: u64,
    pub(crate) out: u64,
    pub(crate) wtu: MicroWtu,
    pub(crate) dom: &'a CacheDomain,
    pub(crate) cfg: &'a PolicyVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bod: Option<String>,
}

/// Read by the verifier: everything optional, so that a missing claim can be named. Unknown claims are ignored;
/// a claim that stands twice is an error of the derived reader.
#[derive(Deserialize)]
pub(crate) struct Read<'a> {
    pub(crate) v: Option<u32>,
    #[serde(borrow)]
    pub(crate) iss: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) aud: Option<Cow<'a, str>>,
    pub(crate) iat: Option<u64>,
    pub(crate) exp: Option<u64>,
    jti: Option<AttemptId>,
    rid: Option<RequestId>,
    ten: Option<TenantId>,
    acc: Option<PathHash>,
    fid: Option<FairnessId>,
    wgt: Option<u32>,
    pri: Option<Band>,
    obj: Option<ObjectiveName>,
    ttl: Option<u64>,
    tby: Option<TtlSource>,
    tgt: Option<Targets>,
    #[serde(rename = "in")]
    input: Option<u64>,
    out: Option<u64>,
    wtu: Option<MicroWtu>,
    dom: Option<CacheDomain>,
    cfg: Option<PolicyVersion>,
    #[serde(borrow)]
    pub(crate) bod: Option<Cow<'a, str>>,
}

/// Only the version: read when the rest could not be, to tell a newer format from a broken one.
#[derive(Deserialize)]
pub(crate) struct VersionOnly {
    pub(crate) v: Option<u32>,
}

impl Read<'_> {
    /// The context, or the first mandatory claim that is missing.
    pub(crate) fn into_context(self, pool: PoolName) -> Result<Context, Refusal> {
        fn need<T>(claim: Option<T>, name: &'static str) -> Result<T, Refusal> {
            claim.ok_or(Refusal::MissingClaim(name))
        }
        Ok(Context {
            pool,
            attempt: need(self.jti, "jti")?,
            request: need(self.rid, "rid")?,
            tenant: need(self.ten, "ten")?,
            account_path: need(self.acc, "acc")?,
            fairness: need(self.fid, "fid")?,
            weight: need(self.wgt, "wgt")?,
            band: need(self.pri, "pri")?,
            objective: self.obj,
            ttl_ms: need(self.ttl, "ttl")?,
            ttl_by: self.tby.unwrap_or_default(),
            targets: self.tgt.unwrap_or_default(),
            prompt_tokens: need(self.input, "in")?,
            output_bound: need(self.out, "out")?,
            held: need(self.wtu, "wtu")?,
            cache_domain: need(self.dom, "dom")?,
            policy_version: need(self.cfg, "cfg")?,
        })
    }
}

/// The `bod` claim of a body.
pub(crate) fn body_digest(body: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(blake3::hash(body).as_bytes())
}
