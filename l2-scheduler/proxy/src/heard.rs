//! Which endpoints have ever answered anything. One that has not gets requests like any other, since its own bookings stand
//! in for its metrics; but nobody is told that it is ready.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine_telemetry::ScrapeError;
use http::{HeaderMap, Method};
use inference_wire::route::Route;
use scheduler_core::{EndpointId, EndpointSnapshot, EndpointState};
use tokio::sync::SetOnce;

use crate::config::{self, Config};
use crate::proxy::{Endpoint, SchedulerProxy};
use crate::upstream::Outbound;

/// How often an endpoint is asked whose metrics say nothing, and how long it may take.
const EVERY: Duration = Duration::from_secs(1);

/// Whether anything has come back from one endpoint.
pub(crate) struct Heard {
    once: SetOnce<()>,
    /// Its metrics come from the engine's own address.
    same_address: bool,
}

impl Heard {
    pub(crate) fn new(endpoint: &config::Endpoint) -> Self {
        let (requests, metrics) = (&endpoint.origin, &endpoint.metrics);
        Self {
            once: SetOnce::new(),
            same_address: (&requests.host, requests.port) == (&metrics.host, metrics.port),
        }
    }

    pub(crate) fn is_heard(&self) -> bool {
        self.once.initialized()
    }

    /// A look at its metrics ended. A page that is refused or means nothing is an answer too, if the engine gave it.
    pub(crate) fn scraped<T>(&self, result: &Result<T, ScrapeError>) {
        let answered = match result {
            Ok(_) => true,
            Err(ScrapeError::Status(_) | ScrapeError::TooLong(_) | ScrapeError::NoLoad) => {
                self.same_address
            }
            Err(ScrapeError::Unreachable(_) | ScrapeError::Timeout(_) | ScrapeError::Broken(_)) => {
                false
            }
        };
        if answered {
            self.note();
        }
    }

    fn note(&self) {
        // It has been heard before.
        let _ = self.once.set(());
    }
}

/// Asks an endpoint for its models until it answers anything, be it a refusal. Metrics usually come first.
pub(crate) async fn listen(endpoints: Arc<[Endpoint]>, index: usize) {
    let Endpoint {
        heard, upstream, ..
    } = &endpoints[index];
    let question = Outbound {
        method: Method::GET,
        path: Route::Models.upstream_path(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    while tokio::time::timeout(EVERY, heard.once.wait())
        .await
        .is_err()
    {
        let answer = tokio::time::timeout(EVERY, upstream.exchange(&question)).await;
        if matches!(answer, Ok(Ok(_))) {
            heard.note();
        }
    }
}

impl SchedulerProxy {
    /// The state of the pool for operators, with its name and policy.
    pub fn state(&self) -> serde_json::Value {
        let Config { pool, policy, .. } = self.config();
        let snapshot = self.snapshot();
        let mut state = serde_json::json!(snapshot);
        for (index, endpoint) in snapshot.endpoints.iter().enumerate() {
            if endpoint.state == EndpointState::Ready && !self.is_heard(endpoint.id) {
                state["endpoints"][index]["state"] = "unheard".into();
            }
        }
        serde_json::json!({ "pool": pool, "policy": policy, "state": state })
    }

    /// Whether requests can be served: by an endpoint that takes them and has answered anything before. Metrics that grow
    /// old are no reason against it.
    pub fn is_ready(&self) -> bool {
        let mut endpoints = self.snapshot().endpoints.into_iter();
        !self.is_draining() && endpoints.any(|endpoint| self.serves(&endpoint))
    }

    /// The endpoints from which nothing has ever come back, after waiting for them so long at most.
    pub async fn unheard(&self, patience: Duration) -> Vec<String> {
        let endpoints = self.endpoints();
        let all = async {
            for endpoint in endpoints {
                endpoint.heard.once.wait().await;
            }
        };
        // Whether all were heard shows below.
        let _ = tokio::time::timeout(patience, all).await;
        let silent = endpoints
            .iter()
            .filter(|endpoint| !endpoint.heard.is_heard());
        silent.map(|endpoint| endpoint.name.to_string()).collect()
    }

    pub(crate) fn is_heard(&self, id: EndpointId) -> bool {
        self.endpoints()[id.0 as usize].heard.is_heard()
    }

    /// Whether an endpoint takes requests and has ever answered.
    fn serves(&self, endpoint: &EndpointSnapshot) -> bool {
        endpoint.state == EndpointState::Ready && self.is_heard(endpoint.id)
    }
}
