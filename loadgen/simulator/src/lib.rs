//! The production scheduler in front of simulated engines, on virtual time: the same [`scheduler_core::Pool`] that runs in
//! the process, the same step model that answers over HTTP, one order of events between them. Pure: equal arguments give
//! equal results.

mod capacity;
mod fairness;
mod figures;
mod load;
mod outcome;
mod scenario;
mod simulation;
#[cfg(test)]
mod tests;

pub use capacity::{Bracket, capacity};
pub use fairness::{jain, work};
pub use figures::{Drops, Figures, Quantiles};
pub use load::{Load, Offer};
pub use outcome::{End, Outcome, Record};
pub use scenario::Scenario;
pub use simulation::{flow_of, replay};
