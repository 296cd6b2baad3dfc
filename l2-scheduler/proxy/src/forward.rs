//! The headers an engine gets: those of the request without anything that is ours, secret, or of one connection.

use governance_context::{AttemptId, names};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};

/// Filters a request's headers for an engine and sets the attempt's id.
pub(crate) fn engine_headers(mut incoming: HeaderMap, attempt: AttemptId) -> HeaderMap {
    let listed = listed_by_connection(&incoming);
    let mut kept = HeaderMap::with_capacity(incoming.len() + 2);
    let mut current: Option<HeaderName> = None;
    for (name, value) in incoming.drain() {
        let first = name.is_some();
        if let Some(name) = name {
            current = travels(&name, &listed).then_some(name);
        }
        if let Some(name) = &current {
            if first {
                kept.insert(name.clone(), value);
            } else {
                kept.append(name.clone(), value);
            }
        }
    }
    kept.insert(names::REQUEST_ID, attempt_value(attempt, 0));
    kept
}

/// The id an engine sees. A second try at the same engine must not look like the first.
pub(crate) fn attempt_value(attempt: AttemptId, retry: u32) -> HeaderValue {
    let text = if retry == 0 {
        attempt.to_string()
    } else {
        format!("{attempt}-{retry}")
    };
    HeaderValue::try_from(text).expect("a UUID and a number are visible ASCII")
}

fn travels(name: &HeaderName, listed: &[HeaderName]) -> bool {
    let text = name.as_str();
    !(names::is_reserved_header(text)
        || names::is_credential_header(text)
        || names::is_hop_by_hop(text)
        || matches!(
            *name,
            header::HOST | header::CONTENT_LENGTH | header::EXPECT
        )
        || listed.contains(name))
}

/// Headers that `connection` declares to be of this hop only.
fn listed_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_ours_no_secret_and_no_hop_reaches_an_engine() {
        let mut incoming = HeaderMap::new();
        for (name, value) in [
            ("host", "gateway"),
            ("content-type", "application/json"),
            ("content-length", "12"),
            ("expect", "100-continue"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("x-headpond-context", "a.b.c"),
            ("x-gateway-destination-endpoint", "10.0.0.1:80"),
            ("x-gateway-inference-fairness-id", "f"),
            ("authorization", "Bearer secret"),
            ("x-request-id", "client"),
            ("traceparent", "00-1"),
        ] {
            incoming.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        incoming.append("accept", HeaderValue::from_static("a"));
        incoming.append("accept", HeaderValue::from_static("b"));
        let attempt = AttemptId::new(1, [7; 10]);
        let kept = engine_headers(incoming, attempt);
        let mut shown: Vec<String> = kept
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().expect("ASCII")))
            .collect();
        shown.sort();
        assert_eq!(
            shown,
            [
                "accept=a".to_owned(),
                "accept=b".to_owned(),
                "content-type=application/json".to_owned(),
                "traceparent=00-1".to_owned(),
                format!("x-request-id={attempt}"),
            ]
        );
    }

    #[test]
    fn a_retry_has_an_id_of_its_own() {
        let attempt = AttemptId::new(1, [7; 10]);
        assert_eq!(attempt_value(attempt, 0), attempt.to_string().as_str());
        assert_eq!(attempt_value(attempt, 2), format!("{attempt}-2").as_str());
    }
}
