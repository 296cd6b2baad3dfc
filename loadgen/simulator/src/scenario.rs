//! What is simulated.

use std::time::Duration;

use engine_model::Profile;
use scheduler_core::flow::{FlowConfig, Refuse};
use scheduler_core::{Policy, PoolConfig};

/// A pool of equal engines and who schedules it.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub policy: Policy,
    /// Of every engine.
    pub profile: Profile,
    pub engines: u32,
    /// Each with its own share of the requests, all in front of the same engines.
    pub schedulers: u32,
    /// Whether a request that cannot meet its target any more is refused.
    pub refuse: Refuse,
    /// Bands, shares, limits, quotas; `refuse` stands above what it says of bands without settings.
    pub flow: FlowConfig,
    /// Seconds between which no scheduler can look at any engine's gauges.
    pub blackout: Option<(f64, f64)>,
    /// How often schedulers tell each other their load, if they do.
    pub gossip: Option<Duration>,
    /// Decides ties, and which scheduler a request comes to.
    pub seed: u64,
    /// The run ends early once this many requests have missed their targets: its verdict is clear.
    pub give_up_after: Option<u64>,
}

impl Scenario {
    /// One scheduler in front of eight large engines; nobody is refused.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            profile: Profile::LLAMA_70B_8XH100,
            engines: 8,
            schedulers: 1,
            refuse: Refuse::Never,
            flow: FlowConfig::default(),
            blackout: None,
            gossip: Some(Duration::from_millis(100)),
            seed: 0,
            give_up_after: None,
        }
    }

    /// Settings of its pools: those of production, with what is known of the engines.
    pub(crate) fn pool_config(&self) -> PoolConfig {
        let mut config = PoolConfig {
            policy: self.policy,
            flow: self.flow.clone(),
            ..PoolConfig::default()
        };
        config.peers.every = self.gossip.filter(|_| self.schedulers > 1);
        config.engine.prefill_rate = self.profile.peak_prefill_tokens_per_second();
        config.engine.batch_tokens = self.profile.max_batched_tokens;
        config.flow.other_bands.refuse = self.refuse;
        config.residency.default_capacity_tokens = self.profile.kv_tokens;
        config
    }
}
