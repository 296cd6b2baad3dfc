//! A metrics page of an engine.

use engine_telemetry::Page;

/// Reads `data` as a page.
pub fn metrics_page(data: &[u8]) {
    let page = Page::parse(data);
    if let Some(kv_use) = page.kv_use {
        assert!((0.0..=1.0).contains(&kv_use), "{kv_use} is no share");
    }
    let counters = [
        page.counters.prompt_tokens,
        page.counters.generation_tokens,
        page.counters.cached_tokens,
        page.counters.preemptions,
        page.start_time_s,
    ];
    for counter in counters.into_iter().flatten() {
        assert!(
            counter.is_finite() && counter >= 0.0,
            "{counter} counts nothing"
        );
    }
    assert_eq!(Page::parse(data), page, "the same page reads the same");
    engine_telemetry::parse(data);
}
