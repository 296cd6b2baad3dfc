//! What engines say of themselves: metrics pages to observations, and the scraper.
