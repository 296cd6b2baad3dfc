//! Settings of flow control; every limit is finite by default.

use std::collections::BTreeMap;
use std::time::Duration;

use governance_context::{Band, FairnessId};

/// Settings of the waiting line of a pool.
#[derive(Clone, Debug)]
pub struct FlowConfig {
    /// Most that waits in the whole pool.
    pub pool_limits: Limits,
    /// Most that waits in one flow.
    pub flow_limits: Limits,
    /// Longest wait for any endpoint to appear or recover.
    pub no_endpoint_ttl: Duration,
    /// How exactly flows share under overload.
    pub order: FairOrder,
    /// What a request costs its flow.
    pub cost: WtuCost,
    /// Quota of every flow that has none of its own.
    pub flow_quota: Quota,
    /// Quotas of single flows.
    pub flow_quotas: BTreeMap<FairnessId, Quota>,
    /// Bands by priority, higher first.
    pub bands: BTreeMap<Band, BandConfig>,
    /// Settings of bands that are not named.
    pub other_bands: BandConfig,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            pool_limits: Limits {
                requests: 4096,
                bytes: 256 << 20,
            },
            flow_limits: Limits {
                requests: 2048,
                bytes: 128 << 20,
            },
            no_endpoint_ttl: Duration::from_secs(15),
            order: FairOrder::default(),
            cost: WtuCost::default(),
            flow_quota: Quota::default(),
            flow_quotas: BTreeMap::new(),
            bands: BTreeMap::new(),
            other_bands: BandConfig::default(),
        }
    }
}

impl FlowConfig {
    /// Settings of `band`.
    pub fn band(&self, band: Band) -> &BandConfig {
        self.bands.get(&band).unwrap_or(&self.other_bands)
    }

    /// Quota of `flow`.
    pub fn quota(&self, flow: &FairnessId) -> &Quota {
        self.flow_quotas.get(flow).unwrap_or(&self.flow_quota)
    }
}

/// Most requests and bytes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests.
    pub requests: usize,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// Settings of one band.
#[derive(Clone, Debug)]
pub struct BandConfig {
    /// Longest wait for a turn.
    pub ttl: Duration,
    /// Most that waits in the band.
    pub limits: Limits,
    /// Whether requests that cannot meet their target any more are refused at once.
    pub refuse: Refuse,
    /// What the band gets while higher bands take all they can.
    pub starvation: Starvation,
    /// Whether waiting raises a request.
    pub aging: Aging,
    /// Saturation up to which the band dispatches freely, 0 to 1; between it and 1 ever less of it goes.
    pub ceiling: f64,
    /// Most streams of the band per endpoint while a higher band is active.
    pub max_streams: Option<u32>,
    /// Longest stall one prefill of the band may bring to running streams.
    pub max_stall: Option<Duration>,
    /// Target for the time to the first token; without one, 1 s and three times the prefill of the whole prompt.
    pub ttft: Option<Duration>,
    /// Target for the time per output token.
    pub tpot: Duration,
    /// Quota of the band as a whole.
    pub quota: Quota,
}

impl Default for BandConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_mins(1),
            limits: Limits {
                requests: 4096,
                bytes: 256 << 20,
            },
            refuse: Refuse::BySign,
            starvation: Starvation::Share(0.05),
            aging: Aging::Off,
            ceiling: 1.0,
            max_streams: None,
            max_stall: None,
            ttft: None,
            tpot: Duration::from_millis(100),
            quota: Quota::default(),
        }
    }
}

/// What happens to a request that can no longer meet its target for the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// Refused at once, so that it can be served elsewhere or later and harms nobody here.
    Doomed,
    /// Waits on.
    Never,
    /// [`Refuse::Doomed`] from priority 0 up, [`Refuse::Never`] below.
    BySign,
}

/// What a band gets while higher bands could take everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Starvation {
    /// This share of the pool's work, 0 to 1. The highest band needs none.
    Share(f64),
    /// Nothing is promised: it may starve.
    Allowed,
}

impl Starvation {
    /// The promised share.
    pub fn share(self) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::Allowed => 0.0,
        }
    }
}

/// Whether waiting raises a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aging {
    /// It stays where it is.
    Off,
    /// One band up every so often, never into the highest.
    Every(Duration),
}

/// How exactly flows of a band share while there is not enough for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairOrder {
    /// Earliest deadline first among flows that are within a moment of the pool's work of each other.
    #[default]
    Lag,
    /// By start tags alone: a victim is protected best, at some cost in deadlines met.
    Strict,
}

/// What the parts of a request cost, in micro-WTU per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WtuCost {
    /// A prompt token that has to be computed.
    pub uncached: u64,
    /// A prompt token found in a cache.
    pub cached: u64,
    /// A generated token.
    pub output: u64,
}

impl WtuCost {
    /// Micro-WTU of a request of these tokens.
    pub(crate) fn of(self, uncached: u64, cached: u64, output: u64) -> u64 {
        let part = |tokens: u64, each: u64| tokens.saturating_mul(each);
        // Bounded, so that sums of many cannot overflow.
        part(uncached, self.uncached)
            .saturating_add(part(cached, self.cached))
            .saturating_add(part(output, self.output))
            .min(1 << 50)
    }
}

impl Refuse {
    /// Whether requests of `band` that are doomed are refused.
    pub(crate) fn applies(self, band: Band) -> bool {
        match self {
            Self::Doomed => true,
            Self::Never => false,
            Self::BySign => band.0 >= 0,
        }
    }
}

impl Default for WtuCost {
    fn default() -> Self {
        Self {
            uncached: 1_000_000,
            cached: 100_000,
            output: 2_000_000,
        }
    }
}

/// Bounds on the work of one flow or band. It protects the machine; budgets are L1's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Most WTU in flight. A single larger request goes while nothing else of its flow runs.
    pub in_flight_wtu: Option<u64>,
    /// Most WTU per second in the long run, and at once.
    pub rate: Option<QuotaRate>,
    /// What happens beyond.
    pub over: OverQuota,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRate {
    /// WTU per second.
    pub wtu_per_s: u64,
    /// WTU at once.
    pub burst_wtu: u64,
}

/// What happens to a request beyond a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverQuota {
    /// It waits until it fits.
    #[default]
    Wait,
    /// It is refused with the time when it would fit.
    Refuse,
}
