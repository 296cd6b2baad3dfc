//! From a request to a reserved, rebuilt attempt: the judgement in its fixed order, each refusal
//! with its own status.

use std::sync::Arc;

use bytes::Bytes;
use governance_context::{Context, names};
use governance_core::account::Unit;
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::limits::{Limit, Rule};
use governance_core::sanitize::body::{self, CheckedBody};
use http::{HeaderMap, HeaderValue};
use inference_wire::json::Document;
use inference_wire::route::Route;

use crate::config::Model;
use crate::exchange::Exchange;
use crate::identity::Principal;
use crate::record::{Consulted, LimitName};
use crate::respond::{self, RateHeaders, Refused, Tokens};
use crate::shared::{Shared, new_attempt_id, unix_ms};
use crate::sieve::Wanted;

mod plan;
mod size;

use plan::Plan;
use size::RequestSize;

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

    keep_to_rates(exchange, &shared, principal)?;
    let mut plan = Plan {
        principal,
        model: &model,
        checked: &checked,
        size,
        attempt: new_attempt_id(),
    };
    let set_aside = plan.set_aside(exchange, &shared, route).await?;
    let rates = RateHeaders {
        requests: shared.tightest(&principal.limits),
        tokens: note_balances(exchange, &shared, principal),
    };
    let context = plan.context(exchange, &shared, set_aside);
    let mut request = plan.request(route, caller, &document, &shared, &context);
    pass_wish(exchange, caller, request.headers_mut());
    Ok(Admitted {
        clamped: plan.size.clamped(),
        stream: checked.stream,
        wanted: wanted(&checked),
        context,
        request,
        rates,
    })
}

fn keep_to_rates(
    exchange: &mut Exchange,
    shared: &Arc<Shared>,
    principal: &Principal,
) -> Result<(), Refused> {
    let admitted = shared.admit(&principal.limits);
    note_rates(exchange, shared, &principal.limits);
    exchange.keep(admitted.map_err(|refused| respond::too_fast(&refused))?);
    Ok(())
}

/// Whoever wants to hear of its wait says so to L2.
fn pass_wish(exchange: &mut Exchange, caller: &HeaderMap, headers: &mut HeaderMap) {
    let wish = caller.get(names::QUEUE_COMMENTS);
    if wish.is_some_and(|wish| wish == "1") {
        exchange.tells_wait = true;
        headers.insert(names::QUEUE_COMMENTS, HeaderValue::from_static("1"));
    }
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
