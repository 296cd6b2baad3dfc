//! The numbers of L2 in Prometheus form. Names and labels only; what they count is decided elsewhere.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use scheduler_core::{EndpointId, EndpointState, PoolSnapshot, SaturationCause};

use crate::config::Endpoint;

mod flow;
mod labels;

pub(crate) use flow::FlowMetrics;

/// Endpoints beyond this many share the label `other`.
const ENDPOINT_LABELS: usize = 256;

/// Seconds to minutes: a queue or a long prefill takes either.
const SECONDS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabel {
    endpoint: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineLabel {
    endpoint: Arc<str>,
    engine: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabel {
    endpoint: Arc<str>,
    end: &'static str,
}

type FloatGauge = Gauge<f64, std::sync::atomic::AtomicU64>;

/// All metrics of one scheduler.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<OutcomeLabel, Counter>,
    retries: Family<CauseLabel, Counter>,
    context_refusals: Family<ReasonLabel, Counter>,
    reloads: Family<ResultLabel, Counter>,
    saturation: Family<CauseLabel, FloatGauge>,
    queue_length: Gauge,
    queue_bytes: Gauge,
    in_flight: Gauge,
    first_token: Histogram,
    pub(crate) flow: FlowMetrics,
    endpoints: Vec<EndpointMetrics>,
}

/// The metrics of one endpoint, looked up once.
pub(crate) struct EndpointMetrics {
    pub(crate) completed: Counter,
    pub(crate) rejected: Counter,
    pub(crate) busy: Counter,
    pub(crate) failed: Counter,
    pub(crate) client_closed: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) quarantined: Gauge,
    unheard: Gauge,
    kv_use: FloatGauge,
    metrics_age: FloatGauge,
    pub(crate) hangs: Counter,
    pub(crate) probes: Counter,
    pub(crate) scrape_failures: Counter,
}

impl Metrics {
    /// The metrics for these endpoints; an endpoint's index is its place in the list.
    pub(crate) fn new(endpoints: &[Endpoint]) -> Self {
        let mut registry = Registry::with_prefix("headpond_scheduler");
        let requests = Family::default();
        let retries = Family::default();
        let context_refusals = Family::default();
        let reloads = Family::default();
        let saturation = Family::default();
        let (queue_length, queue_bytes, in_flight) =
            (Gauge::default(), Gauge::default(), Gauge::default());
        let first_token = Histogram::new(SECONDS);
        registry.register("requests", "Requests ended, by outcome", requests.clone());
        registry.register(
            "retries",
            "Attempts repeated on another endpoint, by cause",
            retries.clone(),
        );
        registry.register(
            "context_refusals",
            "Contexts not accepted, by reason",
            context_refusals.clone(),
        );
        registry.register(
            "config_reloads",
            "Configurations read again, by result",
            reloads.clone(),
        );
        registry.register(
            "saturation",
            "How full the pool is from 0 to 1, under the cause it rests on: load, no_data, no_endpoint",
            saturation.clone(),
        );
        registry.register("queue_length", "Requests waiting", queue_length.clone());
        registry.register(
            "queue_bytes",
            "Bytes of the requests waiting",
            queue_bytes.clone(),
        );
        registry.register(
            "in_flight",
            "Attempts dispatched and not ended",
            in_flight.clone(),
        );
        registry.register(
            "time_to_first_token_seconds",
            "Time from arrival to the first output of a streamed answer",
            first_token.clone(),
        );
        let flow = FlowMetrics::new(&mut registry);
        let endpoints = endpoint_metrics(&mut registry, endpoints);
        Self {
            registry,
            requests,
            retries,
            context_refusals,
            reloads,
            saturation,
            queue_length,
            queue_bytes,
            in_flight,
            first_token,
            flow,
            endpoints,
        }
    }

    pub(crate) fn request(&self, outcome: &'static str) {
        self.requests.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(crate) fn retry(&self, cause: &'static str) {
        self.retries.get_or_create(&CauseLabel { cause }).inc();
    }

    pub(crate) fn reloaded(&self, result: &'static str) {
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn context_refused(&self, reason: &'static str) {
        self.context_refusals
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Takes the gauges from the pool; they are only looked at when the page is.
    pub(crate) fn show(&self, pool: &PoolSnapshot, is_heard: impl Fn(EndpointId) -> bool) {
        self.queue_length.set(gauge(pool.queue_length as u64));
        self.queue_bytes.set(gauge(pool.queue_bytes));
        self.in_flight.set(gauge(pool.bookings as u64));
        for (cause, name) in [
            (SaturationCause::Load, "load"),
            (SaturationCause::NoData, "no_data"),
            (SaturationCause::NoEndpoint, "no_endpoint"),
        ] {
            let value = if pool.saturation.cause == cause {
                pool.saturation.value
            } else {
                0.0
            };
            self.saturation
                .get_or_create(&CauseLabel { cause: name })
                .set(value);
        }
        self.flow.show(pool);
        // Endpoints beyond the cap share a gauge: counts are added up, and the worst of the others is shown.
        for metrics in &self.endpoints {
            metrics.in_flight.set(0);
            metrics.quarantined.set(0);
            metrics.unheard.set(0);
            metrics.kv_use.set(0.0);
            metrics.metrics_age.set(0.0);
        }
        for endpoint in &pool.endpoints {
            let metrics = self.endpoint(endpoint.id.0 as usize);
            metrics.in_flight.inc_by(i64::from(endpoint.bookings));
            let quarantined = endpoint.state == EndpointState::Quarantined;
            metrics.quarantined.inc_by(i64::from(quarantined));
            metrics.unheard.inc_by(i64::from(!is_heard(endpoint.id)));
            let worst = |gauge: &FloatGauge, value: f64| gauge.set(gauge.get().max(value));
            worst(&metrics.kv_use, endpoint.kv_use);
            worst(&metrics.metrics_age, endpoint.metrics_age_s.unwrap_or(0.0));
        }
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    pub(crate) fn endpoint(&self, index: usize) -> &EndpointMetrics {
        &self.endpoints[index]
    }

    /// Appends the page.
    pub(crate) fn encode(&self, page: &mut String) -> fmt::Result {
        encode(page, &self.registry)
    }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn endpoint_metrics(registry: &mut Registry, endpoints: &[Endpoint]) -> Vec<EndpointMetrics> {
    let families = EndpointFamilies::default();
    families.register(registry);
    let of = |(index, config): (usize, &Endpoint)| {
        let is_named = index < ENDPOINT_LABELS;
        let name = if is_named { &config.name } else { "other" };
        families.of(name, config.engine.as_str())
    };
    endpoints.iter().enumerate().map(of).collect()
}

/// What there is of every endpoint, under its label.
#[derive(Default)]
struct EndpointFamilies {
    attempts: Family<AttemptLabel, Counter>,
    in_flight: Family<EndpointLabel, Gauge>,
    quarantined: Family<EndpointLabel, Gauge>,
    unheard: Family<EndpointLabel, Gauge>,
    kv_use: Family<EndpointLabel, FloatGauge>,
    metrics_age: Family<EndpointLabel, FloatGauge>,
    hangs: Family<EndpointLabel, Counter>,
    probes: Family<EndpointLabel, Counter>,
    scrape_failures: Family<EndpointLabel, Counter>,
    info: Family<EngineLabel, Gauge>,
}

impl EndpointFamilies {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "attempts",
            "Attempts ended, by endpoint and end",
            self.attempts.clone(),
        );
        registry.register(
            "endpoint_in_flight",
            "Attempts in flight at the endpoint",
            self.in_flight.clone(),
        );
        registry.register(
            "endpoint_quarantined",
            "1 while the endpoint gets probes only",
            self.quarantined.clone(),
        );
        registry.register(
            "endpoint_unheard",
            "1 until the endpoint has answered anything for the first time",
            self.unheard.clone(),
        );
        registry.register(
            "endpoint_kv_use_ratio",
            "Share of the endpoint's KV cache in use, as far as known",
            self.kv_use.clone(),
        );
        registry.register(
            "endpoint_metrics_age_seconds",
            "Time since the endpoint's metrics were last read; 0 before the first time",
            self.metrics_age.clone(),
        );
        registry.register(
            "endpoint_hangs",
            "Attempts abandoned because the endpoint made no progress",
            self.hangs.clone(),
        );
        registry.register(
            "endpoint_probes",
            "Probes sent to a quarantined endpoint",
            self.probes.clone(),
        );
        registry.register(
            "scrape_failures",
            "Metrics pages that could not be read",
            self.scrape_failures.clone(),
        );
        registry.register(
            "endpoint_info",
            "Always 1: the engine an endpoint is configured as",
            self.info.clone(),
        );
    }

    /// Those of one endpoint, under this name.
    fn of(&self, name: &str, engine: &'static str) -> EndpointMetrics {
        let endpoint: Arc<str> = Arc::from(name);
        let label = EndpointLabel {
            endpoint: Arc::clone(&endpoint),
        };
        let info = EngineLabel {
            endpoint: Arc::clone(&endpoint),
            engine,
        };
        self.info.get_or_create(&info).set(1);
        let ended = |end| {
            self.attempts.get_or_create_owned(&AttemptLabel {
                endpoint: Arc::clone(&endpoint),
                end,
            })
        };
        EndpointMetrics {
            completed: ended("completed"),
            rejected: ended("rejected"),
            busy: ended("busy"),
            failed: ended("failed"),
            client_closed: ended("client_closed"),
            in_flight: self.in_flight.get_or_create_owned(&label),
            quarantined: self.quarantined.get_or_create_owned(&label),
            unheard: self.unheard.get_or_create_owned(&label),
            kv_use: self.kv_use.get_or_create_owned(&label),
            metrics_age: self.metrics_age.get_or_create_owned(&label),
            hangs: self.hangs.get_or_create_owned(&label),
            probes: self.probes.get_or_create_owned(&label),
            scrape_failures: self.scrape_failures.get_or_create_owned(&label),
        }
    }
}
