//! Who asks, what for, and may they: everything about a request that its head can decide, in a fixed
//! order, and then its body.

use std::sync::Arc;

use bytes::Bytes;
use governance_core::catalogue::{Answer as Fault, Code};
use governance_core::sanitize::headers;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING,
};
use http::{HeaderMap, Request, Response, StatusCode};
use inference_wire::route::Route;

use super::Governance;
use crate::admission::{self, Admitted};
use crate::body::{Body, BoxError};
use crate::cors;
use crate::exchange::Exchange;
use crate::idempotency;
use crate::identity::Principal;
use crate::models;
use crate::respond::Refused;
use crate::scheduler::Scheduler;
use crate::server::AmbiguousLength;

/// Where a judged request goes on.
pub(super) enum Judged {
    /// It is answered here.
    Answered(Response<Body>),
    /// It goes to L2.
    Admitted(Box<Admitted>),
}

impl<S: Scheduler> Governance<S> {
    pub(super) async fn judge<B>(
        &self,
        exchange: &mut Exchange,
        route: Option<&Route>,
        request: Request<B>,
    ) -> Result<Judged, Refused>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        self.takes(&head)?;
        exchange.record.client_request_id =
            headers::client_request_id(&head.headers).map(str::to_owned);
        if cors::is_preflight(&head.method, &head.headers) {
            return self.preflight(route, &head.headers).map(Judged::Answered);
        }
        let principal = self.authenticate(&head)?;
        exchange.identified(&principal);
        let route = route.ok_or(Code::NotFound)?;
        if !route.allows(head.method.as_str()) {
            let mut refused = Refused::from(Code::MethodNotAllowed);
            refused.allow = Some(route.methods());
            return Err(refused);
        }
        match route {
            Route::Models => return Ok(Judged::Answered(models::list(&self.shared, &principal))),
            Route::Model(name) => {
                return models::one(&self.shared, &principal, name).map(Judged::Answered);
            }
            Route::ChatCompletions
            | Route::Completions
            | Route::Embeddings
            | Route::Responses
            | Route::Messages
            | Route::CountTokens
            | Route::Rerank
            | Route::Tokenize
            | Route::Detokenize => {}
        }
        if let Some(key) = head.headers.get("idempotency-key") {
            self.claim(exchange, &principal, key)?;
        }
        acceptable(&head.headers)?;
        let mut place = self.shared.room.enter();
        let raw = self.read(&head.headers, body, &mut place).await?;
        let admitted = admission::admit(exchange, &principal, route, &head.headers, &raw).await?;
        Ok(Judged::Admitted(Box::new(admitted)))
    }

    /// Whether anything is taken, and this request, before anybody asks whose it is.
    fn takes(&self, head: &http::request::Parts) -> Result<(), Refused> {
        if self.shared.is_draining() {
            let fault = Fault::new(Code::ShuttingDown).retry_after_ms(1000);
            return Err(Refused::from(fault).closing());
        }
        if is_ambiguous(head) {
            let what =
                "The request states its length twice, as content-length and as transfer-encoding";
            return Err(Refused::what(Code::InvalidRequest, what).closing());
        }
        Ok(())
    }

    pub(crate) fn authenticate(
        &self,
        head: &http::request::Parts,
    ) -> Result<Arc<Principal>, Refused> {
        let credential = headers::credential(&head.headers, head.uri.query());
        let credential = credential.map_err(|_| Refused::from(Code::InvalidApiKey))?;
        let record = self.shared.ledger.authenticate(credential.reveal());
        let principal = record.and_then(|record| self.shared.owners.resolve(&record));
        principal.ok_or_else(|| Code::InvalidApiKey.into())
    }

    fn preflight(
        &self,
        route: Option<&Route>,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refused> {
        let Some(route) = route else {
            return Err(Code::NotFound.into());
        };
        let allowed = &self.shared.config.allowed_origins;
        if cors::allowed_origin(allowed, headers).is_none() {
            let what = if allowed.is_empty() {
                "Calls from browsers are switched off here (governance.cors.allowed_origins is empty)"
            } else {
                "Calls from this origin are not allowed (governance.cors.allowed_origins does not list it)"
            };
            return Err(Refused::what(Code::Forbidden, what));
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        cors::allow_call(response.headers_mut(), &route.methods().join(", "));
        Ok(response)
    }

    fn claim(
        &self,
        exchange: &mut Exchange,
        principal: &Principal,
        key: &HeaderValue,
    ) -> Result<(), Refused> {
        let text = key
            .to_str()
            .ok()
            .filter(|key| (1..=idempotency::MOST_BYTES).contains(&key.len()));
        let text = text.ok_or_else(|| {
            Refused::what(
                Code::InvalidRequest,
                "The idempotency-key header must be 1 to 255 visible characters",
            )
        })?;
        let claim = self.shared.running.claim(principal.key, text);
        exchange.keep_claim(claim.map_err(|_| Refused::from(Code::InProgress))?);
        Ok(())
    }
}

fn is_ambiguous(head: &http::request::Parts) -> bool {
    head.extensions.get::<AmbiguousLength>().is_some()
        || (head.headers.contains_key(CONTENT_LENGTH)
            && head.headers.contains_key(TRANSFER_ENCODING))
}

/// Plain JSON, as far as the headers say.
fn acceptable(headers: &HeaderMap) -> Result<(), Refused> {
    let mut encoded = headers.get_all(CONTENT_ENCODING).iter();
    if encoded.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let what = "Compressed request bodies are not read here";
        return Err(Refused::what(Code::UnsupportedMediaType, what));
    }
    let Some(kind) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let kind = kind.to_str().unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    // What `curl -d` says without being told; engines take it too.
    let unsaid = essence.eq_ignore_ascii_case("application/x-www-form-urlencoded");
    let json = essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    if json || unsaid {
        Ok(())
    } else {
        Err(Code::UnsupportedMediaType.into())
    }
}
