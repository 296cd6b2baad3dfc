//! The OpenAI- and Anthropic-shaped wire format as bytes: JSON by span, SSE by event, usage, paths. Pure.
//!
//! Nothing here re-serialises what somebody else wrote. A request body is validated once and edited by spans, a
//! stream is looked at beside the bytes that are forwarded.

pub mod gather;
pub mod json;
pub mod prompt;
pub mod route;
pub mod sse;
pub mod usage;
