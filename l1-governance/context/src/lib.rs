//! The trusted contract between L1 and L2: ids, units, claims, signing, reserved names. Pure; a leaf.
//!
//! L1 decides who a request belongs to and how it may be treated, and writes it into a [`Context`]. In one process
//! the context is passed as a value; between processes it travels as a signed token ([`Signer`], [`Verifier`]).
//! Time is always an argument: nothing here reads a clock.
#![deny(missing_docs)]

mod claims;
mod context;
mod ids;
mod key;
pub mod names;
mod refusal;
mod replay;
mod token;
mod units;
mod work;

pub use context::{Context, Targets, TtlSource};
pub use ids::{
    AttemptId, CacheDomain, FairnessId, IdError, KeyId, MAX_ID_BYTES, ObjectiveName, PathHash,
    PolicyVersion, PoolName, RequestId, TenantId,
};
pub use key::{Key, KeyError, KeyRing, KeyRingError, MIN_SECRET_BYTES};
pub use refusal::Refusal;
pub use replay::ReplayGuard;
pub use token::{ISSUER, LIFETIME_S, MAX_TOKEN_BYTES, SKEW_S, Signer, VERSION, Verifier};
pub use units::{Band, MicroWtu};
pub use work::Work;
