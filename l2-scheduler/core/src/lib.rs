//! L2 in values: residency, cost, policies, the pool state machine. Pure.
