//! One request through L1, in order: who asks, what for, may they, does it fit, go.

use std::sync::Arc;

use bytes::Bytes;
use governance_context::{RequestId, names};
use governance_core::catalogue::Code;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use inference_wire::route::{self, Family, Route};
use ledger_store::{SqliteLedger, Unavailable};
use tokio::time::Instant;

use crate::admission::Admitted;
use crate::answer;
use crate::body::{Body, BoxError};
use crate::call::{Allowance, call, guarded};
use crate::config::{Config, Timeouts};
use crate::cors;
use crate::exchange::{Exchange, route_name};
use crate::identity::Owners;
use crate::metered::{First, Metered};
use crate::record::Record;
use crate::respond::{self, RateHeaders, Refused};
use crate::scheduler::Scheduler;
use crate::shared::{Parts, Shared, new_request_id};
use crate::start::{self, StartError};

mod judgement;
mod reading;

use judgement::Judged;

/// L1: judges, reserves, passes on, meters, settles. Cheap to clone.
pub struct Governance<S: Scheduler> {
    pub(crate) shared: Arc<Shared>,
    scheduler: Arc<S>,
}

impl<S: Scheduler> Clone for Governance<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            scheduler: Arc::clone(&self.scheduler),
        }
    }
}

impl<S: Scheduler> Governance<S> {
    /// Declares the accounts and takes over the keys of the configuration in `ledger`, and is then
    /// ready for requests.
    pub async fn new(
        config: Config,
        ledger: SqliteLedger,
        scheduler: S,
    ) -> Result<Self, StartError> {
        let book = start::book(&config)?;
        let cache_key = start::cache_key(&config)?;
        let admin_token = match &config.admin_token {
            Some(source) => Some(source.read("governance.admin_token")?),
            None => None,
        };
        let mut owners = Owners::of(&config);
        start::declare(&config, &ledger).await?;
        start::import_keys(&config, &ledger, &mut owners).await?;
        start::warn_of_lost_objectives(&config, &ledger);
        let scheduler = Arc::new(scheduler);
        let asked = Arc::clone(&scheduler);
        let shared = Shared::new(Parts {
            config,
            ledger,
            book,
            owners,
            cache_key,
            admin_token: admin_token.map(|token| blake3::hash(token.as_bytes())),
            work_done: Box::new(move |attempt| asked.work_done(attempt)),
        });
        Ok(Self { shared, scheduler })
    }

    /// Answers one request of a client. Never fails: every failure is an answer.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let id = new_request_id();
        let started = Instant::now();
        let family = route::family(request.uri().path());
        let allowed = &self.shared.config.allowed_origins;
        let origin = cors::allowed_origin(allowed, request.headers());
        let head = request.method() == Method::HEAD;
        let answered = guarded(self.answer(id, request)).await;
        let mut response =
            answered.unwrap_or_else(|| Refused::from(Code::Internal).into_response(family, &id));
        sign_off(&mut response, id, family, started);
        if let Some(origin) = origin {
            cors::expose(response.headers_mut(), origin);
        }
        if head {
            let length = http_body::Body::size_hint(response.body())
                .exact()
                .unwrap_or(0);
            response
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
            *response.body_mut() = Body::empty();
        }
        response
    }

    /// The decision record of a request, while it is remembered.
    pub fn record(&self, request: &RequestId) -> Option<Arc<Record>> {
        self.shared.ring.get(request)
    }

    /// The newest decision records, newest first.
    pub fn records(&self, count: usize) -> Vec<Arc<Record>> {
        self.shared.ring.latest(count)
    }

    /// Appends the metrics in the text format of Prometheus, without the closing `# EOF`.
    pub fn encode_metrics(&self, out: &mut String) {
        self.shared.metrics.encode(out);
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// From now on every new request is refused with `shutting_down`; running ones go on.
    pub fn refuse_new(&self) {
        self.shared.refuse_new();
    }

    /// Open answers end with `shutting_down`, and are settled by what was seen of them.
    pub(crate) fn end_open(&self) {
        self.shared.closing.begin();
    }

    /// Refuses new requests and returns once everything that was settled so far is on disk.
    pub async fn drain(&self) -> Result<(), Unavailable> {
        self.refuse_new();
        self.shared.ledger.flush().await
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.shared.config.timeouts
    }

    async fn answer<B>(&self, id: RequestId, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        if let Some(response) = self.probe(&request) {
            return response;
        }
        let path = request.uri().path();
        let (route, family) = (route::route(path), route::family(path));
        let mut exchange = Exchange::begin(&self.shared, id, route_name(route.as_ref()));
        match self.judge(&mut exchange, route.as_ref(), request).await {
            Ok(Judged::Answered(response)) => {
                exchange.answered(response.status().as_u16(), "ok");
                response
            }
            Ok(Judged::Admitted(admitted)) => {
                let route = route.expect("only known routes are admitted");
                Box::pin(self.carry_out(exchange, route, *admitted)).await
            }
            Err(refused) => refuse(exchange, refused, family),
        }
    }

    /// Liveness and readiness: no key, no record.
    fn probe<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let ready = match request.uri().path() {
            "/livez" => true,
            "/readyz" => !self.shared.is_draining(),
            _ => return None,
        };
        let mut response = Response::new(Body::from(Bytes::from_static(if ready {
            b"ok\n"
        } else {
            b"shutting down\n"
        })));
        if !ready {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Some(response)
    }

    async fn carry_out(
        &self,
        mut exchange: Box<Exchange>,
        route: Route,
        admitted: Admitted,
    ) -> Response<Body> {
        let Admitted {
            context,
            request,
            stream,
            wanted,
            clamped,
            rates,
        } = admitted;
        let config = &self.shared.config;
        let allowance = Allowance {
            silence: config.timeouts.answer,
            bytes: config.sizes.answer,
        };
        let call = call(Arc::clone(&self.scheduler), context, request, allowance);
        exchange.dispatched();
        let grace = config
            .timeouts
            .keep_alive_grace
            .saturating_sub(exchange.elapsed());
        let family = route.family();
        let mut metered = Metered::new(exchange, call, route.clone(), wanted);
        let first = {
            let first = std::future::poll_fn(|context| metered.poll_first(context));
            if stream {
                tokio::time::timeout(grace, first).await.ok()
            } else {
                Some(first.await)
            }
        };
        let mut response = match first {
            None => {
                metered.greet();
                stream_response(metered)
            }
            Some(First::Data) => stream_response(metered),
            Some(First::Refused(refused)) => refuse(metered.into_exchange(), refused, family),
            Some(First::Whole(parts, bytes)) => {
                let mut exchange = metered.into_exchange();
                match answer::whole(&mut exchange, &route, parts, bytes) {
                    Ok(response) => response,
                    Err(refused) => refuse(exchange, refused, family),
                }
            }
        };
        tell(response.headers_mut(), &rates, clamped);
        response
    }
}

/// What every answer has.
fn sign_off(response: &mut Response<Body>, id: RequestId, family: Family, started: Instant) {
    let text = id.to_string();
    let headers = response.headers_mut();
    if family == Family::Anthropic {
        respond::set(headers, "request-id", &text);
    }
    respond::set_own(headers, respond::REQUEST_ID, text);
    let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    headers.insert(respond::PROCESSING_MS, took.into());
}

fn stream_response(mut metered: Metered) -> Response<Body> {
    metered.exchange().status_sent(200);
    let mut told = HeaderMap::new();
    metered.exchange().tell_lead(&mut told);
    let mut response = Response::new(Body::stream(metered));
    *response.headers_mut() = told;
    respond::stream_headers(response.headers_mut());
    response
}

fn refuse(mut exchange: Box<Exchange>, refused: Refused, family: Family) -> Response<Body> {
    exchange.refused(&refused);
    refused.into_response(family, &exchange.record.request)
}

fn tell(headers: &mut HeaderMap, rates: &RateHeaders, clamped: Option<u64>) {
    rates.write(headers);
    if let Some(bound) = clamped {
        headers.insert(names::CLAMPED, HeaderValue::from(bound));
    }
}
