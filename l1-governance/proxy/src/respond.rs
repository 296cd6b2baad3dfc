//! Everything that leaves L1 as an HTTP answer: errors in the family's shape, and the headers every
//! answer has. Refusals become statuses here and nowhere else.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use governance_context::MicroWtu;
use governance_context::{RequestId, Work, names};
use governance_core::account::{Unit, UnixMs};
use governance_core::catalogue::{Answer as Fault, Code, QuotaFacts, Retry};
use governance_core::ledger::{Fits, Refusal, Shortage};
use governance_core::limits::{self, Rule, Standing};
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use inference_wire::route::Family;

use crate::body::Body;

mod upstream;

pub(crate) use upstream::{EngineError, scrub};

/// How long to wait for what others hold. Nobody knows when they end, and their leases last for an hour: it is about
/// what an answer takes, so that who comes again does not come often.
const HOLD_WAIT_MS: u64 = 5_000;
/// What to do where no time helps.
const ASK_FOR_LESS: &str =
    "Ask for less at a time, or ask an administrator of the account for a higher limit.";

/// An error on its way to a client. Boxed, because it is the rare half of every result here.
#[derive(Debug)]
pub(crate) struct Refused(Box<Details>);

/// What there is to say about an error.
#[derive(Debug)]
pub(crate) struct Details {
    pub(crate) fault: Fault,
    /// An engine's error, whose words are the engine's own.
    pub(crate) engine: Option<EngineError>,
    /// The methods of a path that was called with another one.
    pub(crate) allow: Option<&'static [&'static str]>,
    /// What may have been computed.
    pub(crate) work: Option<Work>,
    /// Whether the connection can be used again.
    pub(crate) close: bool,
    /// Where the tightest account stands.
    pub(crate) rates: RateHeaders,
}

impl Deref for Refused {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl DerefMut for Refused {
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.0
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self(Box::new(Details {
            fault,
            engine: None,
            allow: None,
            work: None,
            close: false,
            rates: RateHeaders::default(),
        }))
    }
}

impl From<Code> for Refused {
    fn from(code: Code) -> Self {
        Fault::new(code).into()
    }
}

impl Refused {
    pub(crate) fn what(code: Code, what: impl Into<String>) -> Self {
        Fault::new(code).what(what).into()
    }

    pub(crate) fn from_engine(error: EngineError) -> Self {
        let mut refused = Self::from(error.reason());
        refused.engine = Some(error);
        refused
    }

    pub(crate) fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    pub(crate) fn after(mut self, work: Work) -> Self {
        self.work = Some(work);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        let status = match &self.engine {
            Some(engine) => engine.status,
            None => self.fault.status(),
        };
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The answer, complete but for what every answer has.
    pub(crate) fn into_response(self, family: Family, request: &RequestId) -> Response<Body> {
        let status = self.status();
        let id = request.to_string();
        let body = match &self.engine {
            Some(engine) => engine.body(family, &id),
            None => self.fault.body(family, &id),
        };
        let mut response = Response::new(Body::from(Bytes::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in self.fault.headers() {
            set(headers, HeaderName::from_static(name), &value);
        }
        if let Some(engine) = &self.engine {
            engine.correct_headers(headers);
        }
        if let Some(methods) = self.allow {
            set(headers, ALLOW, &methods.join(", "));
        }
        if let Some(work) = self.work {
            headers.insert(names::WORK, HeaderValue::from_static(work.as_str()));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.rates.write(headers);
        response
    }
}

/// Sets a header whose value is plain text; a value that is none is left out.
pub(crate) fn set(headers: &mut HeaderMap, name: impl http::header::IntoHeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// As [`set`], for a text that is not needed again.
pub(crate) fn set_own(
    headers: &mut HeaderMap,
    name: impl http::header::IntoHeaderName,
    value: String,
) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

/// Headers of an event stream.
pub(crate) fn stream_headers(headers: &mut HeaderMap) {
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

// As values, since a name given as text is copied into each answer.
const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REMAINING_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const RESET_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");
const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
const REMAINING_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");
const RESET_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-reset-tokens");
/// Our id of the request; in a request to L2, of the attempt.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static(names::REQUEST_ID);
/// How long an answer took.
pub(crate) const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");

/// `x-ratelimit-*` of the tightest account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateHeaders {
    pub(crate) requests: Option<Standing>,
    pub(crate) tokens: Option<Tokens>,
}

/// Where an account stands against a limit in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_ms: u64,
}

impl RateHeaders {
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        if let Some(standing) = self.requests {
            headers.insert(LIMIT_REQUESTS, standing.limit.into());
            headers.insert(REMAINING_REQUESTS, standing.remaining.into());
            let reset_ms = standing.reset_ns.div_ceil(1_000_000);
            set_own(headers, RESET_REQUESTS, go_duration(reset_ms));
        }
        if let Some(tokens) = self.tokens {
            headers.insert(LIMIT_TOKENS, tokens.limit.into());
            headers.insert(REMAINING_TOKENS, tokens.remaining.into());
            set_own(headers, RESET_TOKENS, go_duration(tokens.reset_ms));
        }
    }
}

/// `6m0s`, `1.2s`, `20ms`: as clients of the OpenAI family read it.
pub(crate) fn go_duration(ms: u64) -> String {
    let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
    let (seconds, rest) = (ms / 1000 % 60, ms % 1000);
    let fraction = match rest {
        0 => String::new(),
        rest => format!(".{}", format!("{rest:03}").trim_end_matches('0')),
    };
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{seconds}{fraction}s"),
        60_000..3_600_000 => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// A request rate or a concurrency limit is reached.
pub(crate) fn too_fast(refused: &limits::Refused) -> Refused {
    match refused {
        limits::Refused::Limit {
            limit,
            standing,
            retry_after_ns,
        } => {
            let what = match limit.rule {
                Rule::Rate(_) => format!("Account `{}` sends requests too fast", limit.account),
                Rule::Concurrency(most) => {
                    let requests = if most == 1 { "request" } else { "requests" };
                    format!(
                        "Account `{}` has {most} {requests} running, as many as it may",
                        limit.account
                    )
                }
            };
            // Others must finish first: a second is a guess that costs little when it is wrong.
            let ms = retry_after_ns
                .map_or(1000, |ns| ns.div_ceil(1_000_000))
                .max(1);
            let mut refused = Refused::from(
                Fault::new(Code::RateLimitExceeded)
                    .what(what)
                    .retry_after_ms(ms),
            );
            refused.rates.requests = Some(*standing);
            refused
        }
        limits::Refused::TableFull => Refused::from(
            Fault::new(Code::RateLimitExceeded)
                .what("Too many accounts are active on this replica")
                .retry_after_ms(1000),
        ),
    }
}

/// An account of the path has no room, or is not one.
pub(crate) fn no_quota(refusal: &Refusal, now: UnixMs) -> Refused {
    match refusal {
        Refusal::NoRoom(shortage) => no_room(shortage, now),
        // The key outlived its account for a moment: the same answer as to any key that ended.
        Refusal::Ended(_) | Refusal::NoAccount(_) => Code::InvalidApiKey.into(),
        Refusal::Used(_) => Code::Internal.into(),
    }
}

fn no_room(shortage: &Shortage, now: UnixMs) -> Refused {
    match shortage.unit {
        Unit::MicroWtu => no_wtu(shortage, now).into(),
        Unit::Tokens => {
            let mut refused = Refused::from(no_tokens(shortage, now));
            refused.rates.tokens = Some(Tokens {
                limit: shortage.limit,
                remaining: shortage.available,
                reset_ms: shortage.resets_at.map_or(0, |at| at.since(now)),
            });
            refused
        }
    }
}

fn no_wtu(shortage: &Shortage, now: UnixMs) -> Fault {
    let facts = QuotaFacts {
        account: shortage.account.to_string(),
        window: shortage.policy.to_string(),
        limit: MicroWtu(shortage.limit),
        used: MicroWtu(shortage.used.saturating_add(shortage.debt)),
        held: MicroWtu(shortage.held),
        resets_at: shortage.resets_at.map(rfc3339),
    };
    let fault = Fault::new(Code::InsufficientQuota).quota(facts);
    match shortage.fits {
        Fits::Never => fault
            .what(format!(
                "The request needs {} WTU, more than a whole window of the account grants, so that waiting does not help",
                MicroWtu(shortage.asked)
            ))
            .how(ASK_FOR_LESS),
        Fits::OnceHoldsEnd => once_holds_end(
            fault.what("Requests that are not settled yet hold what this one needs"),
            shortage,
            now,
        ),
        Fits::OnceStartedOver | Fits::Lowered => match shortage.resets_at {
            Some(at) => fault.retry_after_ms(at.since(now)),
            None => used_up(fault),
        },
    }
}

fn no_tokens(shortage: &Shortage, now: UnixMs) -> Fault {
    let what = format!(
        "Account `{}` has used {} and holds {} of {} tokens in the current window; the request needs {}",
        shortage.account, shortage.used, shortage.held, shortage.limit, shortage.asked
    );
    let fault = Fault::new(Code::RateLimitExceeded);
    match shortage.fits {
        Fits::Never => fault
            .what(format!(
                "{what}, more than a whole window grants, so that waiting does not help"
            ))
            .how(ASK_FOR_LESS)
            .retry(Retry::Never),
        Fits::OnceHoldsEnd => once_holds_end(
            fault.what(format!(
                "{what}, which requests that are not settled yet hold"
            )),
            shortage,
            now,
        ),
        Fits::OnceStartedOver | Fits::Lowered => match shortage.resets_at {
            Some(at) => fault.what(what).retry_after_ms(at.since(now).max(1)),
            None => used_up(fault.what(what)),
        },
    }
}

/// A balance does not start over.
fn used_up(fault: Fault) -> Fault {
    fault
        .how("It does not start over: ask for less, or ask an administrator of the account for more quota.")
        .retry(Retry::Never)
}

/// What is missing is not used up, so the window's end is not what to wait for.
fn once_holds_end(fault: Fault, shortage: &Shortage, now: UnixMs) -> Fault {
    let reset_ms = shortage.resets_at.map_or(u64::MAX, |at| at.since(now));
    fault
        .how(
            "What requests hold and do not use comes back when they are settled; send them with a smaller `max_tokens`, so that each holds less, or ask an administrator of the account for more quota.",
        )
        .retry(Retry::Soon)
        .retry_after_ms(reset_ms.clamp(1, HOLD_WAIT_MS))
}

/// An instant as `2026-11-30T01:40:00Z`.
pub(crate) fn rfc3339(at: UnixMs) -> String {
    let seconds = at.0 / 1000;
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days, after Howard Hinnant.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_people_and_programs_read_them() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_000, "2000-02-28T23:59:59Z"),
            (951_868_799_000, "2000-02-29T23:59:59Z"),
            (1_796_002_800_000, "2026-11-30T01:40:00Z"),
        ] {
            assert_eq!(rfc3339(UnixMs(ms)), text);
        }
    }

    #[test]
    fn durations_are_written_as_clients_of_the_family_read_them() {
        for (ms, text) in [
            (0, "0ms"),
            (20, "20ms"),
            (1200, "1.2s"),
            (1000, "1s"),
            (360_000, "6m0s"),
            (3_661_000, "1h1m1s"),
        ] {
            assert_eq!(go_duration(ms), text);
        }
    }
}
