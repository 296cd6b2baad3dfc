//! The step model of a simulated inference engine on virtual time: scheduling, paged KV memory, prefix
//! cache, pseudo-tokens. It has no clock, no socket and no task; the HTTP shell lives in `loadgen`.

mod content;
mod engine;
mod kv;
mod profile;
pub mod token;
pub mod words;

pub use content::{BlockHash, ContentSeed, hash_tokens, hash_trace_blocks};
pub use engine::{
    Config, Counters, Engine, Event, Gauges, Order, PrefixCache, Refused, Request, RequestId, Run,
};
pub use profile::{Batch, Profile, UnknownProfile};
