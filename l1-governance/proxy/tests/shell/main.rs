//! L1 as its callers and its operators see it: a scripted scheduler below, a real ledger in a
//! temporary directory beside.

mod aborts;
mod admin;
mod admission;
mod answers;
mod http;
mod order;
mod streams;
mod support;
