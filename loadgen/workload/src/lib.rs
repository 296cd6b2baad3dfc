//! What a load consists of: traces, generated populations, arrivals, lengths, prompts as text, mixes of tenants and models, and the cache
//! model that says how much of a trace can be re-used. Everything comes from a seed. Pure.

pub mod arrivals;
pub mod cache;
pub mod lengths;
pub mod mix;
pub mod population;
pub mod prompt;
pub mod schedule;
mod seed;
mod tenancy;
pub mod text;
pub mod trace;

pub use arrivals::{Arrivals, Factor, Rate};
pub use lengths::Lengths;
pub use mix::Mix;
pub use population::{Population, UnknownPopulation};
pub use prompt::{Answer, BLOCK_TOKENS, BlockId, Prompt, Run};
pub use schedule::{Generated, Limits, Planned, Requests, Schedule, ScheduleError};
pub use tenancy::spread_tenants;
pub use trace::{Recorded, Trace, TraceError};
