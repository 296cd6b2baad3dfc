//! What operators watch. Tenants are labels up to a cap, then `other`; users and requests never are.

use std::collections::BTreeSet;
use std::sync::Arc;

use governance_core::ledger::State;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::record::Settlement;

/// The most tenants that get a label of their own.
const TENANT_LABELS: usize = 100;
/// Reservations: from a row in memory to a disk in trouble.
const RESERVATION_BUCKETS: [f64; 12] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    tenant: Arc<str>,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenLabels {
    tenant: Arc<str>,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TenantLabels {
    tenant: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SettlementLabels {
    state: &'static str,
}

pub(crate) struct Metrics {
    registry: Registry,
    tenants: BTreeSet<Arc<str>>,
    /// Whoever has no label of its own; and requests before anybody is known.
    other: Arc<str>,
    none: Arc<str>,
    requests: Family<RequestLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    charged_micro: Family<TenantLabels, Counter>,
    settlements: Family<SettlementLabels, Counter>,
    reservation_seconds: Histogram,
    /// Requests between arrival and the last byte of their answer.
    pub(crate) in_flight: Gauge,
    /// Holds that are neither settled nor unknown.
    pub(crate) holds_open: Gauge,
    /// Clients that left before the end of their answer.
    pub(crate) aborts: Counter,
    /// Micro-WTU held for attempts that were settled as unknown, since the start.
    pub(crate) unknown_micro: Counter,
}

impl Metrics {
    pub(crate) fn new<'a>(tenants: impl Iterator<Item = &'a str>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("headpond_governance"),
            tenants: tenants.take(TENANT_LABELS).map(Arc::from).collect(),
            other: "other".into(),
            none: "none".into(),
            requests: Family::default(),
            tokens: Family::default(),
            charged_micro: Family::default(),
            settlements: Family::default(),
            reservation_seconds: Histogram::new(RESERVATION_BUCKETS),
            in_flight: Gauge::default(),
            holds_open: Gauge::default(),
            aborts: Counter::default(),
            unknown_micro: Counter::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "requests",
            "Requests by route, tenant and outcome",
            self.requests.clone(),
        );
        registry.register("tokens", "Tokens charged, by class", self.tokens.clone());
        registry.register(
            "charged_micro_wtu",
            "Micro-WTU charged",
            self.charged_micro.clone(),
        );
        registry.register(
            "settlements",
            "Ended holds, by how they ended",
            self.settlements.clone(),
        );
        registry.register(
            "reservation_seconds",
            "Time the ledger took to reserve",
            self.reservation_seconds.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests being answered",
            self.in_flight.clone(),
        );
        registry.register(
            "holds_open",
            "Holds that are not settled",
            self.holds_open.clone(),
        );
        registry.register(
            "client_aborts",
            "Clients that left early",
            self.aborts.clone(),
        );
        registry.register(
            "unknown_micro_wtu",
            "Micro-WTU held for attempts whose end was not known",
            self.unknown_micro.clone(),
        );
    }

    fn tenant(&self, tenant: Option<&str>) -> Arc<str> {
        let label = match tenant {
            None => &self.none,
            Some(tenant) => self.tenants.get(tenant).unwrap_or(&self.other),
        };
        Arc::clone(label)
    }

    pub(crate) fn request(&self, route: &'static str, tenant: Option<&str>, code: &'static str) {
        let labels = RequestLabels {
            route,
            tenant: self.tenant(tenant),
            code,
        };
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn reserved(&self, took: std::time::Duration) {
        self.reservation_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn settled(&self, tenant: &str, settlement: &Settlement) {
        self.settlements
            .get_or_create(&SettlementLabels {
                state: settlement.state,
            })
            .inc();
        if settlement.state != State::Committed.as_str() {
            return;
        }
        let tenant = self.tenant(Some(tenant));
        for (class, count) in [
            (
                "uncached",
                settlement.prompt_tokens - settlement.cached_tokens,
            ),
            ("cached", settlement.cached_tokens),
            ("output", settlement.output_tokens),
        ] {
            if count > 0 {
                let labels = TokenLabels {
                    tenant: Arc::clone(&tenant),
                    class,
                };
                self.tokens.get_or_create(&labels).inc_by(count);
            }
        }
        let micro = settlement.charged_uwtu.0;
        if micro > 0 {
            self.charged_micro
                .get_or_create(&TenantLabels { tenant })
                .inc_by(micro);
        }
    }

    pub(crate) fn encode(&self, out: &mut String) {
        // Writing into a string does not fail.
        if let Err(error) = encode_registry(out, &self.registry) {
            tracing::error!(%error, "cannot encode the metrics");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_cap_and_unknown_ones_share_a_label() {
        let tenants: Vec<String> = (0..300).map(|n| format!("tenant-{n}")).collect();
        let metrics = Metrics::new(tenants.iter().map(String::as_str));
        let settlement = Settlement {
            state: State::Committed.as_str(),
            prompt_tokens: 3,
            cached_tokens: 1,
            output_tokens: 1,
            charged_uwtu: governance_context::MicroWtu(5),
            estimated: false,
            reason: "",
        };
        for tenant in tenants.iter().map(String::as_str).chain(["nobody"]) {
            metrics.request("chat_completions", Some(tenant), "ok");
            metrics.settled(tenant, &settlement);
        }
        metrics.request("chat_completions", None, "ok");
        let mut page = String::new();
        metrics.encode(&mut page);
        let series = page
            .lines()
            .filter(|line| line.starts_with("headpond_governance_requests_total{"))
            .count();
        assert_eq!(series, TENANT_LABELS + 2, "`other`, and `none`");
        assert!(page.contains("tenant=\"other\",code=\"ok\"} 201"), "{page}");
    }
}
