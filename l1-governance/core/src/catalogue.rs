//! Every error a caller can meet: one stable code each, and how it is written for each family of clients.
//!
//! Codes of L2 stand here too, so that there is one list; `docs/errors.md` is generated from it.

mod answer;
mod code;
mod page;

pub use answer::{Answer, QuotaFacts};
pub use code::{Code, Fact, Fixer, Retry};
pub use page::page;

#[cfg(test)]
mod tests;
