//! What engines say of themselves: metrics pages to observations (pure), and the scraper that fetches them (shell).
//!
//! Pure: [`page`], [`sample`], [`config`], [`target`] and the private `query`, `pace`, `restart`. Only `fetch` and
//! [`scraper`] know sockets and clocks.

pub mod config;
mod fetch;
mod pace;
pub mod page;
mod query;
mod restart;
pub mod sample;
pub mod scraper;
pub mod target;

pub use fetch::ScrapeError;
pub use page::{Page, parse};
pub use scraper::Scraper;
pub use target::{Target, TargetError};
