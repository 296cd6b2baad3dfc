//! The HTTP shell of L1.
