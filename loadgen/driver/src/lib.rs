//! Sends load and measures it; the HTTP shell of the simulated engine.

pub mod drive;
pub mod engine;
