//! L1 as its callers and its operators see it: a scripted scheduler below, a real ledger in a
//! temporary directory beside.
#![allow(
    clippy::float_cmp,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::type_complexity,
    reason = "a test says what it means in one line, and fails by a panic"
)]

mod aborts;
mod admin;
mod admission;
mod answers;
mod http;
mod objectives;
mod order;
mod streams;
mod support;
