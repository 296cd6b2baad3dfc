//! Arrivals, prompts and traces, seeded. Pure.
