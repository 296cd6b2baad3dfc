//! What of a caller's request may go on, and what L1 writes into it: headers, credentials, body.
//!
//! Everything is by allow list; the reserved names are refused besides, at any depth an engine reads.

pub mod body;
pub mod headers;

pub use body::{BodyRefusal, CacheKey, CheckedBody, Engine, EngineFields, UnknownFields};
pub use headers::{Credential, CredentialRefusal};
