//! The step model of a simulated engine on virtual time. Pure.
