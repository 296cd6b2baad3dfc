//! The numbers of flow control: bands, flows, turns, peers. Labels are bounded for the life of the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use scheduler_core::{BandSnapshot, PoolSnapshot, Turn};

use super::labels::Labels;
use super::{FloatGauge, ResultLabel, SECONDS, gauge};

#[cfg(test)]
mod tests;

/// Bands with a label of their own; later ones share `other`.
const BAND_LABELS: usize = 16;
/// Flows with a label of their own; later ones share `other`.
const FLOW_LABELS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BandLabel {
    band: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BandOutcomeLabel {
    band: Arc<str>,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabel {
    flow: Arc<str>,
}

/// What is counted of flow control.
pub(crate) struct FlowMetrics {
    bands: Labels,
    flows: Labels,
    outcomes: Family<BandOutcomeLabel, Counter>,
    wait: Family<BandLabel, Histogram, fn() -> Histogram>,
    /// Of the first bands. Locked for a look-up.
    going: Mutex<BTreeMap<i32, Going>>,
    band: BandGauges,
    flow_waiting: Family<FlowLabel, Gauge>,
    flow_running: Family<FlowLabel, Gauge>,
    flow_running_wtu: Family<FlowLabel, FloatGauge>,
    flow_over_quota: Family<FlowLabel, Gauge>,
    active_flows: Gauge,
    charged_wtu: Counter<f64, std::sync::atomic::AtomicU64>,
    misses: Counter<f64, std::sync::atomic::AtomicU64>,
    held: Counter,
    late: Counter,
    by_share: Counter,
    peers: Gauge,
    peer_silence: FloatGauge,
    heard: Family<ResultLabel, Counter>,
    told: Family<ResultLabel, Counter>,
}

/// What is counted of one band at each dispatch.
#[derive(Clone)]
struct Going {
    count: Counter,
    wait: Histogram,
}

#[derive(Default)]
struct BandGauges {
    queue_length: Family<BandLabel, Gauge>,
    queue_bytes: Family<BandLabel, Gauge>,
    queue_wtu: Family<BandLabel, FloatGauge>,
    running: Family<BandLabel, Gauge>,
    running_wtu: Family<BandLabel, FloatGauge>,
    overloaded: Family<BandLabel, Gauge>,
    newest_first: Family<BandLabel, Gauge>,
    over_quota: Family<BandLabel, Gauge>,
}

impl FlowMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            bands: Labels::new(BAND_LABELS),
            flows: Labels::new(FLOW_LABELS),
            outcomes: Family::default(),
            wait: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            going: Mutex::default(),
            band: BandGauges::default(),
            flow_waiting: Family::default(),
            flow_running: Family::default(),
            flow_running_wtu: Family::default(),
            flow_over_quota: Family::default(),
            active_flows: Gauge::default(),
            charged_wtu: Counter::default(),
            misses: Counter::default(),
            held: Counter::default(),
            late: Counter::default(),
            by_share: Counter::default(),
            peers: Gauge::default(),
            peer_silence: FloatGauge::default(),
            heard: Family::default(),
            told: Family::default(),
        };
        metrics.register(registry);
        metrics.band.register(registry);
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "outcomes",
            "Waits for a turn ended, by band and outcome: dispatched, or the code of the refusal",
            self.outcomes.clone(),
        );
        registry.register(
            "queue_wait_seconds",
            "Time from arrival to dispatch, by band",
            self.wait.clone(),
        );
        registry.register(
            "flow_queue_length",
            "Requests of the flow waiting; flows beyond the first 64 are `other`",
            self.flow_waiting.clone(),
        );
        registry.register(
            "flow_running",
            "Attempts of the flow in flight",
            self.flow_running.clone(),
        );
        registry.register(
            "flow_running_wtu",
            "Work of the flow in flight, in WTU",
            self.flow_running_wtu.clone(),
        );
        registry.register(
            "flow_over_quota",
            "1 while the flow has all the work its quota allows",
            self.flow_over_quota.clone(),
        );
        registry.register(
            "active_flows",
            "Flows with anything waiting or running",
            self.active_flows.clone(),
        );
        registry.register(
            "charged_wtu",
            "Work dispatched, in WTU as flows were charged with it",
            self.charged_wtu.clone(),
        );
        registry.register(
            "expected_misses",
            "Targets of running streams that dispatches were expected to cost",
            self.misses.clone(),
        );
        registry.register(
            "held",
            "Dispatches before which later requests went by, while this one was held back",
            self.held.clone(),
        );
        registry.register(
            "late",
            "Dispatches after the time at which the first token was wanted",
            self.late.clone(),
        );
        registry.register(
            "by_share",
            "Dispatches before higher bands because of a guaranteed share",
            self.by_share.clone(),
        );
        registry.register(
            "peers",
            "Other schedulers of the pool heard of",
            self.peers.clone(),
        );
        registry.register(
            "peer_silence_seconds",
            "Time since the newest word of another scheduler; 0 before the first",
            self.peer_silence.clone(),
        );
        registry.register(
            "peer_vectors_heard",
            "Load vectors that came from other schedulers, by what became of them",
            self.heard.clone(),
        );
        registry.register(
            "peer_vectors_told",
            "Load vectors sent to other schedulers, by result",
            self.told.clone(),
        );
    }

    /// A load vector came.
    pub(crate) fn heard_peer(&self, result: &'static str) {
        self.heard.get_or_create(&ResultLabel { result }).inc();
    }

    /// What became of so many load vectors for one peer.
    pub(crate) fn told_peer(&self, result: &'static str, count: u64) {
        self.told
            .get_or_create(&ResultLabel { result })
            .inc_by(count);
    }

    /// A wait for a turn ended without one.
    pub(crate) fn refused(&self, band: i32, code: &'static str) {
        let band = self.bands.label(&band.to_string());
        let label = BandOutcomeLabel {
            band,
            outcome: code,
        };
        self.outcomes.get_or_create(&label).inc();
    }

    /// A request got its turn.
    pub(crate) fn dispatched(&self, band: i32, waited: Duration, turn: &Turn) {
        let going = self.going(band);
        going.count.inc();
        going.wait.observe(waited.as_secs_f64());
        self.charged_wtu.inc_by(turn.charged_wtu.max(0.0));
        self.misses.inc_by(turn.misses.max(0.0));
        self.held.inc_by(u64::from(turn.passed > 0));
        self.late.inc_by(u64::from(turn.slack_s < 0.0));
        self.by_share.inc_by(u64::from(turn.by_share));
    }

    /// What is counted of a band at each dispatch, without writing its number down each time.
    fn going(&self, band: i32) -> Going {
        let mut known = self.going.lock().expect("no panic happens under this lock");
        if let Some(going) = known.get(&band) {
            return going.clone();
        }
        let label = self.bands.label(&band.to_string());
        let going = Going {
            count: self.outcomes.get_or_create_owned(&BandOutcomeLabel {
                band: Arc::clone(&label),
                outcome: "dispatched",
            }),
            wait: self.wait.get_or_create_owned(&BandLabel { band: label }),
        };
        if known.len() < BAND_LABELS {
            known.insert(band, going.clone());
        }
        going
    }

    /// Takes the gauges from the pool.
    pub(super) fn show(&self, pool: &PoolSnapshot) {
        for band in self.bands.all() {
            self.band.clear(&BandLabel { band });
        }
        for band in &pool.bands {
            let label = self.bands.label(&band.band.to_string());
            self.band.add(&BandLabel { band: label }, band);
        }
        self.show_flows(pool);
        self.active_flows.set(gauge(pool.active_flows as u64));
        self.peers.set(gauge(pool.peers as u64));
        self.peer_silence.set(pool.peer_silence_s.unwrap_or(0.0));
    }

    fn show_flows(&self, pool: &PoolSnapshot) {
        for flow in self.flows.all() {
            let label = FlowLabel { flow };
            self.flow_waiting.get_or_create(&label).set(0);
            self.flow_running.get_or_create(&label).set(0);
            self.flow_running_wtu.get_or_create(&label).set(0.0);
            self.flow_over_quota.get_or_create(&label).set(0);
        }
        for flow in &pool.flows {
            let label = FlowLabel {
                flow: self.flows.label(&flow.flow),
            };
            let waiting = gauge(flow.waiting as u64);
            let running = gauge(flow.running as u64);
            self.flow_waiting.get_or_create(&label).inc_by(waiting);
            self.flow_running.get_or_create(&label).inc_by(running);
            self.flow_running_wtu
                .get_or_create(&label)
                .inc_by(flow.running_wtu);
            let over = i64::from(flow.over_quota);
            let gauge = self.flow_over_quota.get_or_create(&label);
            gauge.set(gauge.get().max(over));
        }
    }
}

impl BandGauges {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "band_queue_length",
            "Requests of the band waiting; bands beyond the first 16 are `other`",
            self.queue_length.clone(),
        );
        registry.register(
            "band_queue_bytes",
            "Bytes of the requests of the band waiting",
            self.queue_bytes.clone(),
        );
        registry.register(
            "band_queue_wtu",
            "Work of the band waiting, in WTU",
            self.queue_wtu.clone(),
        );
        registry.register(
            "band_running",
            "Attempts of the band in flight",
            self.running.clone(),
        );
        registry.register(
            "band_running_wtu",
            "Work of the band in flight, in WTU",
            self.running_wtu.clone(),
        );
        registry.register(
            "band_overloaded",
            "1 while the band cannot serve everybody in time, so that flows are ordered by what they have had",
            self.overloaded.clone(),
        );
        registry.register(
            "band_newest_first",
            "1 while waits have been too long for so long that inside flows the newest goes first",
            self.newest_first.clone(),
        );
        registry.register(
            "band_over_quota",
            "1 while the band has all the work its quota allows",
            self.over_quota.clone(),
        );
    }

    fn clear(&self, label: &BandLabel) {
        for family in [
            &self.queue_length,
            &self.queue_bytes,
            &self.running,
            &self.overloaded,
            &self.newest_first,
            &self.over_quota,
        ] {
            family.get_or_create(label).set(0);
        }
        for family in [&self.queue_wtu, &self.running_wtu] {
            family.get_or_create(label).set(0.0);
        }
    }

    /// Counts of bands that share a label are added up; a flag is raised when it is for any of them.
    fn add(&self, label: &BandLabel, band: &BandSnapshot) {
        for (family, count) in [
            (&self.queue_length, band.waiting as u64),
            (&self.queue_bytes, band.waiting_bytes),
            (&self.running, band.running as u64),
        ] {
            family.get_or_create(label).inc_by(gauge(count));
        }
        for (family, wtu) in [
            (&self.queue_wtu, band.waiting_wtu),
            (&self.running_wtu, band.running_wtu),
        ] {
            family.get_or_create(label).inc_by(wtu);
        }
        for (family, flag) in [
            (&self.overloaded, band.overloaded),
            (&self.newest_first, band.newest_first),
            (&self.over_quota, band.over_quota),
        ] {
            let gauge = family.get_or_create(label);
            gauge.set(gauge.get().max(i64::from(flag)));
        }
    }
}
