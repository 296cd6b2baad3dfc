//! `/metrics`, and what can be wrong with it.

use std::sync::Arc;

use bytes::Bytes;
use engine_model::Gauges;
use http::{HeaderValue, Response, header};

use super::{Answer, Body, Break, Broken, Duration, Fault, Names, Runner};

pub(super) async fn respond(runner: &Arc<Runner>, names: Names) -> Answer {
    let faults = runner.faults.metrics();
    for fault in &faults {
        if let Fault::MetricsSlow { delay_ms } = fault {
            tokio::time::sleep(Duration::from_millis(*delay_ms)).await;
        }
    }
    if faults.contains(&Fault::MetricsDrop) {
        return Err(Broken);
    }
    let page = Bytes::from(render(runner, &names, &faults));
    let body = if faults.contains(&Fault::MetricsTruncate) {
        let announced = page.len() as u64;
        Body::Truncated {
            sent: Some(page.slice(..page.len() / 2)),
            announced,
            breaking: Break::default(),
        }
    } else if runner.config.vocabulary.is_sglang() {
        Body::Chunked(Some(page))
    } else {
        Body::whole(page)
    };
    let kind = if runner.config.vocabulary.is_sglang() {
        "text/plain; version=0.0.4; charset=utf-8"
    } else {
        "text/plain; version=1.0.0; charset=utf-8"
    };
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

fn render(runner: &Runner, names: &Names, faults: &[Fault]) -> String {
    // A registry of several processes knows no names and answers none.
    if runner.config.vocabulary.is_sglang() && *names != Names::All {
        return String::new();
    }
    let mut metrics = runner.metrics();
    if faults.contains(&Fault::MetricsFreeze) {
        let page = metrics.render(&runner.config, &Names::All);
        return metrics.frozen.get_or_insert(page).clone();
    }
    metrics.frozen = None;
    if faults.contains(&Fault::MetricsLie) {
        let truth = metrics.gauges;
        metrics.gauges = Gauges {
            kv_blocks: truth.kv_blocks,
            ..Gauges::default()
        };
        let page = metrics.render(&runner.config, names);
        metrics.gauges = truth;
        return page;
    }
    metrics.render(&runner.config, names)
}

/// Names asked for by `name[]`, percent-encoded or not.
pub(super) fn names(query: &str) -> Names {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let names: Vec<String> = pairs
        .filter(|(key, _)| decode(key) == "name[]")
        .map(|(_, value)| decode(value))
        .filter(|value| !value.is_empty())
        .collect();
    if names.is_empty() {
        Names::All
    } else {
        Names::Only(names)
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        if let Some(byte) = hex
            .and_then(|h| u8::from_str_radix(h, 16).ok())
            .filter(|_| *first == b'%')
        {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(if *first == b'+' { b' ' } else { *first });
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_query() {
        let only = |names: &[&str]| Names::Only(names.iter().map(|n| (*n).to_owned()).collect());
        for (query, names_read) in [
            ("", Names::All),
            ("name[]=", Names::All),
            ("other=1", Names::All),
            ("name[]=a&name[]=b", only(&["a", "b"])),
            (
                "name%5B%5D=vllm%3Anum_requests_running",
                only(&["vllm:num_requests_running"]),
            ),
            ("name%5b%5d=100%", only(&["100%"])),
        ] {
            assert_eq!(names(query), names_read, "{query}");
        }
    }
}
