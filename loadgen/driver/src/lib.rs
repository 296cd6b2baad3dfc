//! Sends load and measures it; the HTTP shell of the simulated engine.

pub mod engine;
