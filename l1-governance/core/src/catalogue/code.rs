//! The codes and what is known about each.

use std::fmt;

/// A stable error code. Never renamed; new ones are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    InvalidApiKey,
    Forbidden,
    ModelNotFound,
    NotFound,
    MethodNotAllowed,
    InvalidJson,
    DuplicateKey,
    InvalidValue,
    UnknownField,
    InvalidRequest,
    ContextLengthExceeded,
    RequestTooLarge,
    UnsupportedMediaType,
    RequestTimeout,
    InProgress,
    RateLimitExceeded,
    InsufficientQuota,
    NoPrice,
    QuotaUnavailable,
    QueueFull,
    QueueWait,
    Shed,
    OverQuota,
    QueueExpired,
    Displaced,
    NoEndpoint,
    ShuttingDown,
    UpstreamError,
    UpstreamTimeout,
    ContextInvalid,
    ClientClosed,
    Internal,
}

/// Whether the same request can succeed later, and what the caller is told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It will be refused again until somebody changes something.
    Never,
    /// It can succeed at a known time that is too far away to wait for: `Retry-After` says when, clients must not wait.
    AtReset,
    /// It can succeed soon; with a delay when one is known.
    Soon,
}

/// Who can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fixer {
    /// Whoever wrote the request.
    Caller,
    /// Whoever administers the account, its keys, models and limits.
    AccountAdmin,
    /// Whoever runs the gateway and the engines.
    Platform,
    /// Nobody has to: it passes.
    Time,
}

/// What is known about a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// The code as it stands in answers, headers and logs.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// `error.type` for `OpenAI` clients.
    pub openai_type: &'static str,
    /// `error.type` for Anthropic clients.
    pub anthropic_type: &'static str,
    /// Whether to try again.
    pub retry: Retry,
    /// What happened, as one sentence without a full stop.
    pub meaning: &'static str,
    /// Who can fix it.
    pub fixer: Fixer,
    /// How, as one sentence that also stands in the message.
    pub how: &'static str,
}

const INVALID: &str = "invalid_request_error";
const RATE: &str = "rate_limit_error";
const SERVER: &str = "server_error";

impl Code {
    /// Every code, in the order of judgement.
    pub const ALL: [Self; 32] = [
        Self::InvalidApiKey,
        Self::Forbidden,
        Self::ModelNotFound,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::InvalidJson,
        Self::DuplicateKey,
        Self::InvalidValue,
        Self::UnknownField,
        Self::InvalidRequest,
        Self::ContextLengthExceeded,
        Self::RequestTooLarge,
        Self::UnsupportedMediaType,
        Self::RequestTimeout,
        Self::InProgress,
        Self::RateLimitExceeded,
        Self::InsufficientQuota,
        Self::NoPrice,
        Self::QuotaUnavailable,
        Self::QueueFull,
        Self::QueueWait,
        Self::Shed,
        Self::OverQuota,
        Self::QueueExpired,
        Self::Displaced,
        Self::NoEndpoint,
        Self::ShuttingDown,
        Self::UpstreamError,
        Self::UpstreamTimeout,
        Self::ContextInvalid,
        Self::ClientClosed,
        Self::Internal,
    ];

    /// The code as text.
    pub fn as_str(self) -> &'static str {
        self.fact().code
    }

    /// The code a text stands for, such as the value of `x-headpond-reason`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }

    /// The HTTP status.
    pub fn status(self) -> u16 {
        self.fact().status
    }

    /// Whether the same request can succeed later.
    pub fn retry(self) -> Retry {
        self.fact().retry
    }

    /// Everything known about the code.
    pub fn fact(self) -> Fact {
        match self {
            Self::InvalidApiKey => Fact {
                code: "invalid_api_key",
                status: 401,
                openai_type: INVALID,
                anthropic_type: "authentication_error",
                retry: Retry::Never,
                meaning: "The API key is missing or not valid",
                fixer: Fixer::Caller,
                how: "Send one valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`, never in the URL; \
                      an administrator of the account can issue a new one.",
            },
            Self::Forbidden => Fact {
                code: "forbidden",
                status: 403,
                openai_type: "permission_error",
                anthropic_type: "permission_error",
                retry: Retry::Never,
                meaning: "The key may not do this",
                fixer: Fixer::AccountAdmin,
                how: "Use a key with this permission, or ask an administrator of the account to grant it.",
            },
            Self::ModelNotFound => Fact {
                code: "model_not_found",
                status: 404,
                openai_type: INVALID,
                anthropic_type: "not_found_error",
                retry: Retry::Never,
                meaning: "The model does not exist or the key may not use it",
                fixer: Fixer::Caller,
                how: "Use one of the models that `GET /v1/models` lists, or ask an administrator of the account for access.",
            },
            Self::NotFound => Fact {
                code: "not_found",
                status: 404,
                openai_type: INVALID,
                anthropic_type: "not_found_error",
                retry: Retry::Never,
                meaning: "There is no such path",
                fixer: Fixer::Caller,
                how: "Check the base URL: it ends in `/v1` for OpenAI clients and without it for Anthropic clients.",
            },
            Self::MethodNotAllowed => Fact {
                code: "method_not_allowed",
                status: 405,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "The path does not take this method",
                fixer: Fixer::Caller,
                how: "Use a method from the `allow` header.",
            },
            Self::InvalidJson => Fact {
                code: "invalid_json",
                status: 400,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "The body is not a JSON object",
                fixer: Fixer::Caller,
                how: "Send one JSON object in UTF-8.",
            },
            Self::DuplicateKey => Fact {
                code: "duplicate_key",
                status: 400,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "A key stands twice in one JSON object, and two readers could disagree about which counts",
                fixer: Fixer::Caller,
                how: "Send every key once.",
            },
            Self::InvalidValue => Fact {
                code: "invalid_value",
                status: 400,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "A field has the wrong type or a value out of range",
                fixer: Fixer::Caller,
                how: "Correct the field that `param` names.",
            },
            Self::UnknownField => Fact {
                code: "unknown_field",
                status: 400,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "A field is not known for this path, and this route refuses unknown fields",
                fixer: Fixer::Caller,
                how: "Leave out the field that `param` names, or ask the platform team to let it pass.",
            },
            Self::InvalidRequest => Fact {
                code: "invalid_request",
                status: 400,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "The HTTP request itself is not acceptable",
                fixer: Fixer::Caller,
                how: "Correct what the message names.",
            },
            Self::ContextLengthExceeded => Fact {
                code: "context_length_exceeded",
                status: 400,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "The prompt and the requested output do not fit the model's context",
                fixer: Fixer::Caller,
                how: "Shorten the prompt or ask for fewer output tokens.",
            },
            Self::RequestTooLarge => Fact {
                code: "request_too_large",
                status: 413,
                openai_type: INVALID,
                anthropic_type: "request_too_large",
                retry: Retry::Never,
                meaning: "The body is larger than the limit",
                fixer: Fixer::Caller,
                how: "Send less, or ask the platform team to raise the limit.",
            },
            Self::UnsupportedMediaType => Fact {
                code: "unsupported_media_type",
                status: 415,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "The body has a content type or encoding that is not read here",
                fixer: Fixer::Caller,
                how: "Send `content-type: application/json` without `content-encoding`.",
            },
            Self::RequestTimeout => Fact {
                code: "request_timeout",
                status: 408,
                openai_type: INVALID,
                anthropic_type: "timeout_error",
                retry: Retry::Soon,
                meaning: "The request did not arrive completely in time",
                fixer: Fixer::Caller,
                how: "Send the body without long pauses.",
            },
            Self::InProgress => Fact {
                code: "in_progress",
                status: 409,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "A request with the same idempotency key is still running",
                fixer: Fixer::Caller,
                how: "Wait for the first request, or use another idempotency key for another request.",
            },
            Self::RateLimitExceeded => Fact {
                code: "rate_limit_exceeded",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "More requests, tokens or parallel requests than the account's rate allows",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says, or ask an administrator of the account for a higher rate.",
            },
            Self::InsufficientQuota => Fact {
                code: "insufficient_quota",
                status: 429,
                openai_type: "insufficient_quota",
                anthropic_type: RATE,
                retry: Retry::AtReset,
                meaning: "An account that pays for the request has not enough quota left",
                fixer: Fixer::AccountAdmin,
                how: "Ask for fewer output tokens, wait for the reset, or ask an administrator of the account for more quota.",
            },
            Self::NoPrice => Fact {
                code: "no_price",
                status: 403,
                openai_type: "permission_error",
                anthropic_type: "permission_error",
                retry: Retry::Never,
                meaning: "The model has no price, and requests without a price are refused here",
                fixer: Fixer::Platform,
                how: "Ask the platform team to add the model to the price book.",
            },
            Self::QuotaUnavailable => Fact {
                code: "quota_unavailable",
                status: 503,
                openai_type: SERVER,
                anthropic_type: "overloaded_error",
                retry: Retry::Soon,
                meaning: "The quota of the account cannot be checked at the moment",
                fixer: Fixer::Platform,
                how: "Try again shortly; the platform team sees the ledger store as unreachable.",
            },
            Self::QueueFull => Fact {
                code: "queue_full",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "The queue of the pool is full",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says.",
            },
            Self::QueueWait => Fact {
                code: "queue_wait",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "The request would wait longer than its caller is willing to",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says, or use a key whose objective has more patience.",
            },
            Self::Shed => Fact {
                code: "shed",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "The pool is saturated, and requests of this priority are dropped first",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says, or use a key whose objective has a higher priority.",
            },
            Self::OverQuota => Fact {
                code: "over_quota",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "The tenant or the priority band has as much work in the pool as it may have at once",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says, or send fewer and smaller requests at a time; the platform team sets the pool's quotas.",
            },
            Self::QueueExpired => Fact {
                code: "queue_expired",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "The request waited in the queue as long as it was allowed to",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says, or use a key whose objective has more patience.",
            },
            Self::Displaced => Fact {
                code: "displaced",
                status: 429,
                openai_type: RATE,
                anthropic_type: RATE,
                retry: Retry::Soon,
                meaning: "A request of higher priority took the place in the queue",
                fixer: Fixer::Time,
                how: "Wait as long as `retry-after` says, or use a key whose objective has a higher priority.",
            },
            Self::NoEndpoint => Fact {
                code: "no_endpoint",
                status: 503,
                openai_type: SERVER,
                anthropic_type: "overloaded_error",
                retry: Retry::Soon,
                meaning: "No engine that serves the model is available",
                fixer: Fixer::Platform,
                how: "Try again as `retry-after` says; the platform team sees which engines are missing.",
            },
            Self::ShuttingDown => Fact {
                code: "shutting_down",
                status: 503,
                openai_type: SERVER,
                anthropic_type: "overloaded_error",
                retry: Retry::Soon,
                meaning: "This replica is shutting down",
                fixer: Fixer::Time,
                how: "Try again at once: another replica takes the request.",
            },
            Self::UpstreamError => Fact {
                code: "upstream_error",
                status: 502,
                openai_type: SERVER,
                anthropic_type: "api_error",
                retry: Retry::Soon,
                meaning: "The engine failed",
                fixer: Fixer::Platform,
                how: "Try again; `x-headpond-work` says whether anything was computed.",
            },
            Self::UpstreamTimeout => Fact {
                code: "upstream_timeout",
                status: 504,
                openai_type: SERVER,
                anthropic_type: "timeout_error",
                retry: Retry::Soon,
                meaning: "The engine made no progress in time",
                fixer: Fixer::Platform,
                how: "Try again; `x-headpond-work` says whether anything was computed.",
            },
            Self::ContextInvalid => Fact {
                code: "context_invalid",
                status: 401,
                openai_type: INVALID,
                anthropic_type: "authentication_error",
                retry: Retry::Never,
                meaning: "The request reached the scheduler without a valid governance context",
                fixer: Fixer::Platform,
                how: "Send requests through the gateway; if they come from there, compare the signing keys and clocks of both sides.",
            },
            Self::ClientClosed => Fact {
                code: "client_closed",
                status: 499,
                openai_type: INVALID,
                anthropic_type: INVALID,
                retry: Retry::Never,
                meaning: "The client went away before the answer was complete",
                fixer: Fixer::Caller,
                how: "Keep the connection open until the answer is complete; only logs show this code.",
            },
            Self::Internal => Fact {
                code: "internal_error",
                status: 500,
                openai_type: SERVER,
                anthropic_type: "api_error",
                retry: Retry::Soon,
                meaning: "Something in the gateway itself went wrong",
                fixer: Fixer::Platform,
                how: "Try again, and report the request id to the platform team.",
            },
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
