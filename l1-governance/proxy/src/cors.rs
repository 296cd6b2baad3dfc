//! Browsers: which origins may call, and what they may see. Off unless origins are configured.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use http::{HeaderMap, HeaderValue, Method};

use crate::respond::set;

/// What a preflight asks for.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The origin to name in the answer, if the caller's is allowed.
pub(crate) fn allowed_origin(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let listed = allowed
        .iter()
        .any(|entry| entry == "*" || entry.as_bytes() == origin.as_bytes());
    listed.then(|| origin.clone())
}

/// Headers of the answer to a preflight.
pub(crate) fn allow_call(headers: &mut HeaderMap, methods: &str) {
    set(headers, ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(
            "authorization, x-api-key, api-key, content-type, anthropic-version, anthropic-beta, \
             idempotency-key, openai-organization, openai-project, x-request-id, \
             x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, \
             x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, \
             x-stainless-timeout, x-stainless-helper-method",
        ),
    );
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
}

/// Headers of every other answer to an allowed origin.
pub(crate) fn expose(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, \
             x-headpond-reason, openai-processing-ms, x-ratelimit-limit-requests, \
             x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, \
             x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens",
        ),
    );
}
