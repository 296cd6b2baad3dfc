//! The scheduler of one pool as a service: in-process and HTTP entry, records, metrics, drain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use engine_telemetry::Scraper;
use governance_context::{AttemptId, Context, RequestId, Verifier, Work};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;
use inference_wire::route::{Route, route};
use scheduler_core::flow::FlowConfig;
use scheduler_core::{EndpointId, Input, PoolSnapshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::answer::{Code, Problem};
use crate::body::Body;
use crate::call::Call;
use crate::config::{self, Config};
use crate::dispatcher::Dispatcher;
use crate::heard::Heard;
use crate::metrics::Metrics;
use crate::models;
use crate::patience::{self, Board};
use crate::peers::{PeerKey, Peers};
use crate::records::Records;
use crate::trust::{Expected, Rejection, Trust};
use crate::upstream::{ConnectionLimits, Upstream};

mod start;

pub(crate) use start::boxed;

use start::Chores;

/// After the drain limit, time for cut answers to say so.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The scheduler of one pool. Clones share it; with the last one its tasks end.
#[derive(Clone)]
pub struct SchedulerProxy(Arc<Shared>);

/// What all calls share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// Flow control as it is in force; that of `config` is what it was at the start.
    pub(crate) flow: ArcSwap<FlowConfig>,
    pub(crate) endpoints: Arc<[Endpoint]>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) records: Records,
    pub(crate) metrics: Arc<Metrics>,
    trust: Trust,
    scraper: Scraper,
    pub(crate) board: Arc<Board>,
    /// Once it was told the key.
    peers: OnceLock<Arc<Peers>>,
    draining: AtomicBool,
    /// Calls not yet over, waiting ones included.
    pub(crate) calls: TaskTracker,
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop: DropGuard,
}

/// One engine; its place in the list is its [`EndpointId`].
pub(crate) struct Endpoint {
    pub(crate) name: Arc<str>,
    /// The name as a header value.
    pub(crate) label: HeaderValue,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) probe_model: Option<String>,
    pub(crate) heard: Heard,
}

impl SchedulerProxy {
    /// Starts the scheduler: scraping, timers, probes. Must be called inside a tokio runtime. The seed decides ties.
    pub fn new(config: Config, seed: u64) -> Self {
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let endpoints: Arc<[Endpoint]> = config
            .endpoints
            .iter()
            .map(|endpoint| Endpoint::new(endpoint, &config))
            .collect();
        let (dispatcher, wanted) = start::dispatcher(&config, seed);
        let chores = Chores {
            config: &config,
            endpoints: &endpoints,
            dispatcher: &dispatcher,
            metrics: &Arc::new(Metrics::new(&config.endpoints)),
            board: &Arc::new(Board::new()),
            tasks: &tasks,
        };
        chores.begin(wanted, &stop);
        let scraper = chores.scrape();
        let (metrics, board) = (Arc::clone(chores.metrics), Arc::clone(chores.board));
        Self(Arc::new(Shared {
            trust: Trust::new(config.pool.clone(), config.untrusted),
            records: Records::new(config.records),
            flow: ArcSwap::from_pointee(config.flow.clone()),
            config,
            endpoints,
            dispatcher,
            metrics,
            scraper,
            board,
            peers: OnceLock::new(),
            draining: AtomicBool::new(false),
            calls: TaskTracker::new(),
            tasks,
            stop: stop.clone(),
            _stop: stop.drop_guard(),
        }))
    }

    /// Takes the keys that contexts over HTTP are checked with; replaces those before. Without any, no token is valid.
    pub fn set_verifier(&self, verifier: Verifier) {
        self.0.trust.set_verifier(verifier);
    }

    /// Other settings of flow control from here on; what waits keeps its place and its time to live.
    pub fn reconfigure(&self, flow: FlowConfig) {
        self.0.flow.store(Arc::new(flow.clone()));
        self.0.dispatcher.feed(Input::Reconfigure(Box::new(flow)));
    }

    /// A configuration was read again: whether it was `applied`, `unchanged` or `refused`.
    pub fn note_reload(&self, result: &'static str) {
        self.0.metrics.reloaded(result);
    }

    /// Begins to exchange load with the other schedulers of the configuration. Only the first key counts.
    pub fn meet_peers(&self, key: PeerKey) {
        let Shared {
            config,
            dispatcher,
            metrics,
            ..
        } = &*self.0;
        let peers = Peers::new(key, config, Arc::clone(dispatcher), Arc::clone(metrics));
        let peers = Arc::new(peers);
        if self.0.peers.set(Arc::clone(&peers)).is_ok() {
            peers.start(config, &self.0.tasks, &self.0.stop);
        }
    }

    /// Takes what another scheduler says of its load, posted to [`crate::peers::PATH`].
    pub async fn hear_peer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        match self.0.peers.get() {
            Some(_) if head.method != Method::POST => {
                Problem::new(Code::MethodNotAllowed, "this path takes POST").into_response()
            }
            Some(peers) => peers.hear(&head.headers, body).await,
            None => Problem::new(Code::NotFound, "this scheduler has no peers").into_response(),
        }
    }

    /// Answers a request whose context is trusted because it was decided in this process.
    pub async fn call(&self, context: Context, request: Request<Bytes>) -> Response<Body> {
        let Some(route) = route(request.uri().path()) else {
            return self.refuse(Problem::new(Code::NotFound, "this path is not served"));
        };
        if !route.allows(request.method().as_str()) {
            return self.refuse_method(&route);
        }
        if route == Route::Models {
            return models::answer(&self.0, None).await;
        }
        if let Route::Model(id) = &route {
            return models::answer(&self.0, Some(id)).await;
        }
        match Call::new(&self.0, &context, route, request) {
            Ok(call) if call.is_told() => patience::answer(&self.0, call).await,
            Ok(call) => call.outcome().await.unwrap_or_else(Problem::into_response),
            Err(problem) => self.refuse(problem),
        }
    }

    /// Why the calls of a request went where they went, if they are still remembered.
    pub fn records(&self, id: &RequestId) -> Option<serde_json::Value> {
        self.0.records.json(id)
    }

    /// What the engines may have computed for an attempt, open or ended; `None` if it is not remembered. An attempt that
    /// is cancelled while it waits here has computed nothing.
    pub fn work_done(&self, attempt: &AttemptId) -> Option<Work> {
        self.0.records.work(attempt)
    }

    /// The state of the pool.
    pub fn snapshot(&self) -> PoolSnapshot {
        self.0.dispatcher.snapshot()
    }

    /// Appends the metrics page.
    pub fn encode_metrics(&self, page: &mut String) {
        let snapshot = self.0.dispatcher.snapshot();
        self.0.metrics.show(&snapshot, |id| self.is_heard(id));
        self.0
            .metrics
            .encode(page)
            .expect("writing to a string does not fail");
    }

    /// Refuses new requests, waits up to `limit` for those accepted, then ends what is left. Returns how many were cut.
    pub async fn drain(&self, limit: Duration) -> usize {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.dispatcher.feed(Input::Drain);
        self.0.calls.close();
        if tokio::time::timeout(limit, self.0.calls.wait())
            .await
            .is_ok()
        {
            return 0;
        }
        let cut = self.0.dispatcher.cut_all();
        // Whoever does not read its last words has left.
        let _ = tokio::time::timeout(LAST_WORDS, self.0.calls.wait()).await;
        cut
    }

    pub(crate) fn endpoints(&self) -> &[Endpoint] {
        &self.0.endpoints
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    /// What can be judged of a request over HTTP before its body has been read.
    pub(crate) fn judge_head(&self, headers: &HeaderMap, body: Expected) -> Result<(), Problem> {
        self.0
            .trust
            .judge_head(headers, body)
            .map_err(|rejection| self.reject(&rejection))
    }

    pub(crate) fn context(&self, headers: &HeaderMap, body: &[u8]) -> Result<Context, Problem> {
        self.0
            .trust
            .context(headers, body)
            .map_err(|rejection| self.reject(&rejection))
    }

    fn reject(&self, rejection: &Rejection) -> Problem {
        self.0.metrics.context_refused(rejection.reason());
        rejection.problem()
    }

    fn refuse_method(&self, route: &Route) -> Response<Body> {
        let allowed = route.methods().join(", ");
        let message = format!("this path takes {allowed}");
        let mut response = self.refuse(Problem::new(Code::MethodNotAllowed, message));
        let allowed = HeaderValue::try_from(allowed).expect("methods are visible ASCII");
        response.headers_mut().insert(header::ALLOW, allowed);
        response
    }

    pub(crate) fn refuse(&self, problem: Problem) -> Response<Body> {
        self.0.metrics.request(problem.code.as_str());
        problem.into_response()
    }
}

impl Shared {
    /// The endpoint gets work: if it idled, its metrics are of interest again.
    pub(crate) fn picked(&self, endpoint: EndpointId) {
        self.scraper.picked(endpoint);
    }
}

impl Endpoint {
    fn new(endpoint: &config::Endpoint, config: &Config) -> Self {
        let limits = ConnectionLimits {
            connect: config.timeouts.connect,
            idle: config.timeouts.idle_connection,
            max_idle: config.idle_connections,
        };
        Self {
            name: Arc::from(endpoint.name.as_str()),
            label: HeaderValue::from_str(&endpoint.name).expect("a checked name is visible ASCII"),
            upstream: Upstream::new(endpoint.origin.clone(), limits),
            probe_model: endpoint.models.first().cloned(),
            heard: Heard::new(endpoint),
        }
    }
}
