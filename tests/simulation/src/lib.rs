//! Tests of the production scheduler on virtual time; what drives it is `pool-simulator`.
