//! From a request to a reserved, rebuilt attempt: the judgement in its fixed order, each refusal
//! with its own status.

use std::sync::Arc;

use bytes::Bytes;
use governance_context::{Context, MicroWtu, names};
use governance_core::account::{Tier, Unit};
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::ledger::{Amounts, Refusal, Reservation, Shortage};
use governance_core::limits::{Limit, Rule};
use governance_core::price::Quote;
use governance_core::sanitize::body::{self, CheckedBody};
use governance_core::sanitize::{EngineFields, headers};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use inference_wire::json::Document;
use inference_wire::route::Route;
use inference_wire::usage::Meter;
use ledger_store::{Hold, ReserveError};
use tokio::time::Instant;

use crate::config::Model;
use crate::exchange::{Attempt, Exchange};
use crate::identity::Principal;
use crate::record::{Consulted, LimitName, Reservation as ReservationNote};
use crate::respond::{self, RateHeaders, Refused, Tokens};
use crate::shared::{Shared, new_attempt_id, unix_ms};
use crate::sieve::Wanted;

mod size;

use size::RequestSize;

const GATEWAY_FAIRNESS_ID: HeaderName = HeaderName::from_static(names::GATEWAY_FAIRNESS_ID);
const LLM_D_FAIRNESS_ID: HeaderName = HeaderName::from_static(names::LLM_D_FAIRNESS_ID);

/// After this long without a settlement an attempt is unknown.
const LEASE_MS: u64 = 3_600_000;
/// How often a bound is lowered before the request is refused: each account of the path once.
const CLAMPS: usize = 5;

/// A request that may run.
pub(crate) struct Admitted {
    pub(crate) context: Context,
    pub(crate) request: http::Request<Bytes>,
    pub(crate) stream: bool,
    pub(crate) wanted: Wanted,
    /// The output bound, when it is lower than what the caller asked for.
    pub(crate) clamped: Option<u64>,
    pub(crate) rates: RateHeaders,
}

/// Judges the body of a request, reserves for it, and rebuilds it.
pub(crate) async fn admit(
    exchange: &mut Exchange,
    principal: &Arc<Principal>,
    route: &Route,
    caller: &HeaderMap,
    raw: &Bytes,
) -> Result<Admitted, Refused> {
    let shared = Arc::clone(&exchange.shared);
    let document = Document::parse(raw).map_err(|error| body::BodyRefusal::from(error).answer())?;
    let asked = body::model(&document).map_err(|refusal| refusal.answer())?;
    let model = permitted(&shared, principal, &asked)?;
    exchange.record.alias = (asked != model.name).then(|| asked.clone());
    exchange.record.model = Some(model.name.clone());
    let checked =
        body::check(route, &document, model.unknown_fields).map_err(|refusal| refusal.answer())?;
    exchange.record.streaming = checked.stream;
    exchange.record.removed.clone_from(&checked.removed);
    let size = RequestSize::of(route, &model, &checked)?;

    let admitted = shared.admit(&principal.limits).map_err(|refused| {
        note_rates(exchange, &shared, &principal.limits);
        respond::too_fast(&refused)
    })?;
    exchange.keep(admitted);
    note_rates(exchange, &shared, &principal.limits);

    let mut plan = Plan {
        principal,
        model: &model,
        checked: &checked,
        size,
        attempt: new_attempt_id(),
    };
    let metered = route.generates() || matches!(route, Route::Embeddings | Route::Rerank);
    let set_aside = if metered {
        plan.set_aside(exchange, &shared, route).await?
    } else {
        MicroWtu::ZERO
    };
    let rates = RateHeaders {
        requests: shared.tightest(&principal.limits),
        tokens: note_balances(exchange, &shared, principal),
    };
    let context = plan.context(exchange, &shared, set_aside);
    let mut request = plan.request(route, caller, &document, &shared, &context);
    let wish = caller.get(names::QUEUE_COMMENTS);
    if wish.is_some_and(|wish| wish == "1") {
        exchange.tells_wait = true;
        let wish = HeaderValue::from_static("1");
        request.headers_mut().insert(names::QUEUE_COMMENTS, wish);
    }
    Ok(Admitted {
        clamped: plan.size.clamped(),
        stream: checked.stream,
        wanted: wanted(&checked),
        context,
        request,
        rates,
    })
}

fn wanted(checked: &CheckedBody) -> Wanted {
    match (checked.include_usage, checked.continuous_usage) {
        (false, _) => Wanted::Nothing,
        (true, false) => Wanted::Final,
        (true, true) => Wanted::Running,
    }
}

/// The model a name stands for. Unknown and forbidden are the same answer.
pub(crate) fn permitted(
    shared: &Shared,
    principal: &Principal,
    name: &str,
) -> Result<Arc<Model>, Refused> {
    let found = shared.config.models.find(name);
    let allowed = found.filter(|model| principal.scope.models.allows(&model.name));
    allowed
        .cloned()
        .ok_or_else(|| Fault::new(Code::ModelNotFound).param("model").into())
}

/// What is reserved and sent, as far as it is decided.
struct Plan<'a> {
    principal: &'a Arc<Principal>,
    model: &'a Arc<Model>,
    checked: &'a CheckedBody,
    size: RequestSize,
    attempt: governance_context::AttemptId,
}

impl Plan<'_> {
    /// Holds the largest possible charge. A hard cap with too little left lowers the output bound
    /// to what is affordable rather than being a wall.
    async fn reserve(
        &mut self,
        exchange: &mut Exchange,
        shared: &Shared,
    ) -> Result<(Hold, Quote), Refused> {
        let now = unix_ms();
        let (group, band) = (&self.principal.group, self.principal.terms.band.value);
        let quote = shared.book.quote(&self.model.name, group, band, now);
        let quote = quote.map_err(|_| Refused::from(Fault::new(Code::NoPrice).param("model")))?;
        for _ in 0..CLAMPS {
            let started = Instant::now();
            let reserved = shared
                .ledger
                .reserve(self.reservation(exchange, &quote))
                .await;
            shared.metrics.reserved(started.elapsed());
            let refusal = match reserved {
                Ok(hold) => return Ok((hold, quote)),
                Err(ReserveError::Refused(refusal)) => refusal,
                Err(ReserveError::Unavailable(error)) => {
                    tracing::warn!(%error, "the ledger cannot reserve");
                    return Err(Fault::new(Code::QuotaUnavailable)
                        .retry_after_ms(1000)
                        .into());
                }
            };
            match &refusal {
                Refusal::NoRoom(shortage) if self.lower(shortage, &quote) => {
                    // A refused id is burnt: the smaller reservation is another attempt.
                    self.attempt = new_attempt_id();
                }
                Refusal::NoRoom(shortage) => {
                    exchange.record.limits.push(consulted_shortage(shortage));
                    return Err(respond::no_quota(&refusal, now));
                }
                Refusal::Ended(_) | Refusal::NoAccount(_) | Refusal::Used(_) => {
                    tracing::warn!(%refusal, "the ledger refused");
                    return Err(respond::no_quota(&refusal, now));
                }
            }
        }
        Err(Fault::new(Code::QuotaUnavailable)
            .retry_after_ms(1000)
            .into())
    }

    /// Lowers the bound to what the account can still pay; whether that leaves any output.
    fn lower(&mut self, shortage: &Shortage, quote: &Quote) -> bool {
        if shortage.tier != Tier::D {
            return false;
        }
        let choices = self.size.choices;
        let affordable = match shortage.unit {
            Unit::MicroWtu => {
                let budget = MicroWtu(shortage.available);
                quote
                    .affordable_output(self.size.most, choices, budget)
                    .unwrap_or(0)
            }
            Unit::Tokens => {
                shortage.available.saturating_sub(self.size.most) / u64::from(choices.max(1))
            }
        };
        self.size.lower_bound(affordable)
    }

    /// The most it can cost with so many output tokens per choice.
    fn largest(&self, quote: &Quote, bound: u64) -> Amounts {
        let size = &self.size;
        let output = bound.saturating_mul(u64::from(size.choices));
        Amounts {
            wtu: quote.largest(size.most, bound, size.choices),
            tokens: size.most.saturating_add(output),
        }
    }

    /// Takes the hold, which the exchange settles however it ends; returns how much it is.
    async fn set_aside(
        &mut self,
        exchange: &mut Exchange,
        shared: &Arc<Shared>,
        route: &Route,
    ) -> Result<MicroWtu, Refused> {
        let (hold, quote) = self.reserve(exchange, shared).await?;
        let amount = hold.reservation().largest.wtu;
        exchange.hold(Attempt {
            hold,
            quote,
            meter: Meter::new(),
            estimated_prompt: self.size.estimated,
            generates: route.generates(),
        });
        self.note(exchange, amount);
        Ok(amount)
    }

    fn reservation(&self, exchange: &Exchange, quote: &Quote) -> Reservation {
        let (size, principal) = (&self.size, self.principal);
        Reservation {
            attempt: self.attempt,
            request: exchange.record.request,
            tenant: principal.tenant.clone(),
            path: principal.path.clone(),
            estimate: Amounts {
                wtu: quote.estimate(size.estimated, size.output()),
                tokens: size.estimated.saturating_add(size.output()),
            },
            largest: self.largest(quote, size.bound),
            least: self.largest(quote, size.bound.min(1)),
            stamp: quote.stamp().clone(),
            lease_ms: LEASE_MS,
        }
    }

    fn note(&self, exchange: &mut Exchange, held: MicroWtu) {
        exchange.record.reservation = Some(ReservationNote {
            attempt: self.attempt,
            prompt_tokens: self.size.most,
            output_bound: self.size.output(),
            clamped_from: self.size.clamped().map(|_| self.size.asked),
            held_uwtu: held,
        });
    }

    fn context(&self, exchange: &Exchange, shared: &Shared, held: MicroWtu) -> Context {
        let principal = self.principal;
        let terms = &principal.terms;
        Context {
            pool: self.model.pool.clone(),
            attempt: self.attempt,
            request: exchange.record.request,
            tenant: principal.tenant.clone(),
            account_path: principal.path_hash,
            fairness: principal.fairness.clone(),
            weight: terms.weight.value,
            band: terms.band.value,
            objective: terms.objective.as_ref().map(|said| said.value.clone()),
            ttl_ms: terms.ttl_ms.value,
            ttl_by: terms.ttl_ms.by.into(),
            targets: terms.targets(),
            prompt_tokens: self.size.estimated,
            output_bound: self.size.output(),
            held,
            cache_domain: principal.cache_domain.clone(),
            policy_version: shared.config.version.clone(),
        }
    }

    /// The request as L2 gets it: nothing of the caller's but what is on a list.
    fn request(
        &self,
        route: &Route,
        caller: &HeaderMap,
        document: &Document<'_>,
        shared: &Shared,
        context: &Context,
    ) -> http::Request<Bytes> {
        let salt = shared.cache_key.salt(&context.cache_domain);
        let fields = EngineFields {
            engine: self.model.engine,
            model: &self.model.served_as,
            output_bound: route.generates().then_some(self.size.bound),
            priority: self.model.engine_priority.then_some(context.band),
            cache_salt: Some(&salt),
        };
        let body = Bytes::from(self.checked.engine_body(route, document, &fields));
        let mut request = http::Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static(route.upstream_path());
        let headers = request.headers_mut();
        *headers = headers::request(caller);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        respond::set_own(headers, respond::REQUEST_ID, context.attempt.to_string());
        for name in [GATEWAY_FAIRNESS_ID, LLM_D_FAIRNESS_ID] {
            headers.insert(name, self.principal.fairness_header.clone());
        }
        if let Some(objective) = &context.objective {
            for name in [names::GATEWAY_OBJECTIVE, names::LLM_D_OBJECTIVE] {
                respond::set(headers, HeaderName::from_static(name), objective.as_str());
            }
        }
        request
    }
}

fn note_rates(exchange: &mut Exchange, shared: &Shared, limits: &[Limit]) {
    for limit in limits {
        let standing = shared.standing(limit);
        let (name, unit) = match limit.rule {
            Rule::Rate(_) => ("requests", "requests"),
            Rule::Concurrency(_) => ("concurrency", "concurrency"),
        };
        exchange.record.limits.push(Consulted {
            account: limit.account.clone(),
            name: LimitName::Rule(name),
            tier: "A",
            unit,
            limit: Some(u64::from(standing.limit)),
            used: 0,
            held: u64::from(standing.limit.saturating_sub(standing.remaining)),
            resets_at_unix_ms: None,
        });
    }
}

/// Notes where the limited accounts stand; the least of tokens left, for the headers.
fn note_balances(
    exchange: &mut Exchange,
    shared: &Shared,
    principal: &Principal,
) -> Option<Tokens> {
    let now = unix_ms();
    let mut tightest: Option<Tokens> = None;
    for account in &principal.limited {
        let Ok(balances) = shared.ledger.balances(account) else {
            continue;
        };
        for balance in balances {
            let Some(limit) = balance.limit else { continue };
            if balance.unit == Unit::Tokens {
                let remaining = u64::try_from(balance.available).unwrap_or(0);
                let reset_ms = balance.window.end.since(now);
                let tokens = Tokens {
                    limit,
                    remaining,
                    reset_ms,
                };
                tightest = tightest
                    .filter(|known| known.remaining <= remaining)
                    .or(Some(tokens));
            }
            exchange.record.limits.push(Consulted {
                account: balance.account,
                name: LimitName::Policy(balance.policy),
                tier: balance.tier.as_str(),
                unit: balance.unit.as_str(),
                limit: Some(limit),
                used: balance.used.saturating_add(balance.debt),
                held: balance.held,
                resets_at_unix_ms: Some(balance.window.end.0),
            });
        }
    }
    tightest
}

fn consulted_shortage(shortage: &Shortage) -> Consulted {
    Consulted {
        account: shortage.account.clone(),
        name: LimitName::Policy(shortage.policy.clone()),
        tier: shortage.tier.as_str(),
        unit: shortage.unit.as_str(),
        limit: Some(shortage.limit),
        used: shortage.used.saturating_add(shortage.debt),
        held: shortage.held,
        resets_at_unix_ms: shortage.resets_at.map(|at| at.0),
    }
}
