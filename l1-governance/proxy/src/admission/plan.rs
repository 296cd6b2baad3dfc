//! What is reserved for a request and what is sent, once it is known who asks for how much.

use std::sync::Arc;

use bytes::Bytes;
use governance_context::{AttemptId, Context, MicroWtu, names};
use governance_core::account::{Tier, Unit};
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::ledger::{Amounts, Refusal, Reservation, Shortage};
use governance_core::price::Quote;
use governance_core::sanitize::body::CheckedBody;
use governance_core::sanitize::{EngineFields, headers};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use inference_wire::json::Document;
use inference_wire::route::Route;
use inference_wire::usage::Meter;
use ledger_store::{Hold, ReserveError};
use tokio::time::Instant;

use super::size::RequestSize;
use crate::config::Model;
use crate::exchange::{Attempt, Exchange};
use crate::identity::Principal;
use crate::record::{Consulted, LimitName, Reservation as ReservationNote};
use crate::respond::{self, Refused};
use crate::shared::{Shared, new_attempt_id, unix_ms};

const GATEWAY_FAIRNESS_ID: HeaderName = HeaderName::from_static(names::GATEWAY_FAIRNESS_ID);
const LLM_D_FAIRNESS_ID: HeaderName = HeaderName::from_static(names::LLM_D_FAIRNESS_ID);

/// After this long without a settlement an attempt is unknown.
const LEASE_MS: u64 = 3_600_000;
/// How often a bound is lowered before the request is refused: each account of the path once.
const CLAMPS: usize = 5;

/// What is reserved and sent, as far as it is decided.
pub(super) struct Plan<'a> {
    pub(super) principal: &'a Arc<Principal>,
    pub(super) model: &'a Arc<Model>,
    pub(super) checked: &'a CheckedBody,
    pub(super) size: RequestSize,
    pub(super) attempt: AttemptId,
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
                    return Err(unavailable());
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
        Err(unavailable())
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

    /// Takes the hold, which the exchange settles however it ends; returns how much it is. What costs nothing holds nothing.
    pub(super) async fn set_aside(
        &mut self,
        exchange: &mut Exchange,
        shared: &Arc<Shared>,
        route: &Route,
    ) -> Result<MicroWtu, Refused> {
        if !route.generates() && !matches!(route, Route::Embeddings | Route::Rerank) {
            return Ok(MicroWtu::ZERO);
        }
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

    pub(super) fn context(&self, exchange: &Exchange, shared: &Shared, held: MicroWtu) -> Context {
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
    pub(super) fn request(
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

fn unavailable() -> Refused {
    Fault::new(Code::QuotaUnavailable)
        .retry_after_ms(1000)
        .into()
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
