//! The `headpond` binary.
fn main() {}
