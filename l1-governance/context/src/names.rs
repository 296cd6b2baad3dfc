//! Names of headers: what we write, what only we may write, and what never travels on.
//!
//! Comparisons ignore case, take `_` for `-` (some servers fold one into the other) and allocate nothing.

/// The signed context, from L1 to L2.
pub const CONTEXT: &str = "x-headpond-context";
/// The stable error code, on every refusal and error.
pub const REASON: &str = "x-headpond-reason";
/// What may have been computed, on every answer of L2 that is not a success; see [`Work`](crate::Work).
pub const WORK: &str = "x-headpond-work";
/// Milliseconds the request waited in L2's queue.
pub const QUEUE_MS: &str = "x-headpond-queue-ms";
/// A caller's wish to hear of its wait while a streamed answer has not begun: `1`. The one header of ours that L1 reads
/// from callers; what goes on is set anew.
pub const QUEUE_COMMENTS: &str = "x-headpond-queue-comments";
/// The alias of the endpoint that served the request; never its address.
pub const ENDPOINT: &str = "x-headpond-endpoint";
/// What the request was charged, in WTU.
pub const CHARGED: &str = "x-headpond-charged-wtu";
/// The output bound the engine was held to, when it is less than the caller asked for.
pub const CLAMPED: &str = "x-headpond-max-tokens";
/// Between schedulers: who says what its load is.
pub const PEER: &str = "x-headpond-peer";
/// Between schedulers: when it was written, in milliseconds since 1970.
pub const PEER_TIME: &str = "x-headpond-peer-time";
/// Between schedulers: the proof of both.
pub const PEER_MAC: &str = "x-headpond-peer-mac";
/// The request's id: ours towards callers, the attempt's towards engines.
pub const REQUEST_ID: &str = "x-request-id";
/// Where a standard gateway is told to send the request.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The objective's name for standard pickers.
pub const GATEWAY_OBJECTIVE: &str = "x-gateway-inference-objective";
/// The objective's name for llm-d pickers.
pub const LLM_D_OBJECTIVE: &str = "x-llm-d-inference-objective";
/// The fairness id for standard pickers.
pub const GATEWAY_FAIRNESS_ID: &str = "x-gateway-inference-fairness-id";
/// The fairness id for llm-d pickers.
pub const LLM_D_FAIRNESS_ID: &str = "x-llm-d-inference-fairness-id";

const RESERVED_PREFIXES: &[&str] = &[
    "x-headpond-",
    "x-gateway-",
    "x-llm-d-",
    "x-slo-",
    "x-envoy-",
    "x-prefiller-",
    "x-encoder-",
    "x-data-parallel-",
    "x-kv-cache-",
    "x-smg-",
    "x-aibrix-",
    "x-dynamo-",
    "x-target-",
    "x-conformance-test-",
];

const RESERVED: &[&str] = &[
    "epp-profile",
    "x-session-token",
    "routing-strategy",
    "target-pod",
    "external-filter",
    "test-epp-endpoint-selection",
];

const CREDENTIALS: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "cookie",
    "cookie2",
    "set-cookie",
    "ocp-apim-subscription-key",
    "x-amz-security-token",
    "x-auth-token",
];

const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Whether only Headpond itself may set this header: a caller's copy is removed, never read.
pub fn is_reserved_header(name: &str) -> bool {
    let name = name.as_bytes();
    match name.first() {
        Some(b'x' | b'X') => {
            RESERVED_PREFIXES
                .iter()
                .any(|prefix| starts_with(name, prefix))
                || equals(name, "x-session-token")
        }
        Some(b'e' | b'E' | b'r' | b'R' | b't' | b'T') => {
            RESERVED.iter().any(|reserved| equals(name, reserved))
        }
        Some(_) | None => false,
    }
}

/// Whether the header can carry a secret of the caller; it never travels on.
pub fn is_credential_header(name: &str) -> bool {
    CREDENTIALS
        .iter()
        .any(|credential| equals(name.as_bytes(), credential))
}

/// Whether the header belongs to one connection (RFC 9110 §7.6.1) and not to the message.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.iter().any(|hop| equals(name.as_bytes(), hop))
}

/// Whether the header claims where a request came from; it is rebuilt by whoever knows.
pub fn is_forwarding_header(name: &str) -> bool {
    let name = name.as_bytes();
    starts_with(name, "x-forwarded-")
        || equals(name, "forwarded")
        || equals(name, "x-real-ip")
        || equals(name, "via")
}

/// Every reserved name and prefix (those ending in `-`), for tests and documentation.
pub fn reserved_headers() -> impl Iterator<Item = &'static str> {
    RESERVED_PREFIXES.iter().chain(RESERVED).copied()
}

/// Every credential header, for tests and documentation.
pub fn credential_headers() -> impl Iterator<Item = &'static str> {
    CREDENTIALS.iter().copied()
}

fn fold(byte: u8) -> u8 {
    if byte == b'_' {
        b'-'
    } else {
        byte.to_ascii_lowercase()
    }
}

fn equals(name: &[u8], lower: &str) -> bool {
    name.len() == lower.len() && starts_with(name, lower)
}

fn starts_with(name: &[u8], lower: &str) -> bool {
    name.len() >= lower.len()
        && name
            .iter()
            .zip(lower.bytes())
            .all(|(byte, wanted)| fold(*byte) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_known_in_any_spelling() {
        for name in reserved_headers() {
            let name = if name.ends_with('-') {
                format!("{name}anything")
            } else {
                name.to_owned()
            };
            let mixed: String = name
                .chars()
                .zip(0..)
                .map(|(c, i)| {
                    if i % 2 == 0 {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect();
            for spelling in [
                name.clone(),
                name.to_uppercase(),
                mixed,
                name.replace('-', "_"),
            ] {
                assert!(is_reserved_header(&spelling), "{spelling}");
            }
        }
    }

    #[test]
    fn everything_we_write_ourselves_is_reserved() {
        for name in [
            CONTEXT,
            REASON,
            WORK,
            QUEUE_MS,
            QUEUE_COMMENTS,
            ENDPOINT,
            CHARGED,
            CLAMPED,
            DESTINATION,
            GATEWAY_OBJECTIVE,
            LLM_D_OBJECTIVE,
            GATEWAY_FAIRNESS_ID,
            LLM_D_FAIRNESS_ID,
        ] {
            assert!(is_reserved_header(name), "{name}");
        }
        assert!(
            !is_reserved_header(REQUEST_ID),
            "kept as the client's own id"
        );
    }

    #[test]
    fn ordinary_headers_are_not_reserved() {
        for name in [
            "",
            "x",
            "accept",
            "x-request-id",
            "traceparent",
            "x-gateway",
            "xx-gateway-a",
            "target-podx",
        ] {
            assert!(!is_reserved_header(name), "{name}");
        }
    }

    #[test]
    fn credentials_and_connection_headers_are_told_apart() {
        assert!(is_credential_header("AUTHORIZATION") && is_credential_header("Api_Key"));
        assert!(!is_credential_header("x-api-key-id"));
        assert!(is_hop_by_hop("Transfer-Encoding") && !is_hop_by_hop("content-length"));
        assert!(is_forwarding_header("X-Forwarded-For") && !is_forwarding_header("x-forwarded"));
    }
}
