//! One scheduler: a production pool with the rounds its shell makes.

use engine_model::Gauges;
use scheduler_core::{EndpointId, EndpointSpec, Input, Observation, Pool, PoolConfig, Timestamp};
use workload::BLOCK_TOKENS;

use super::SCRAPE;
use crate::scenario::Scenario;

pub(super) struct Scheduler {
    pub(super) pool: Pool,
    pub(super) next_scrape: u64,
}

impl Scheduler {
    pub(super) fn new(
        scenario: &Scenario,
        config: &PoolConfig,
        number: u32,
        kv_blocks: u32,
    ) -> Self {
        let mut pool = Pool::new(config.clone(), scenario.seed ^ u64::from(number) << 32);
        for engine in 0..scenario.engines {
            let mut spec = EndpointSpec::new(EndpointId(engine), &format!("engine-{engine}"));
            // One block is reserved.
            spec.max_context = Some((kv_blocks - 1) * BLOCK_TOKENS);
            pool.handle(Timestamp::ZERO, Input::EndpointUp(spec));
        }
        // Nobody's rounds fall on those of others.
        let share = |period| period * u64::from(number) / u64::from(scenario.schedulers.max(1));
        Self {
            pool,
            next_scrape: share(SCRAPE),
        }
    }

    /// What a look at an engine's metrics shows.
    pub(super) fn observe(
        &mut self,
        now: Timestamp,
        endpoint: EndpointId,
        gauges: Gauges,
        generated_tokens: u64,
        kv_tokens: u64,
    ) {
        let observation = Observation {
            waiting: Some(gauges.waiting),
            running: Some(gauges.running),
            kv_use: Some(gauges.kv_use),
            kv_tokens: Some(kv_tokens),
            block_size: Some(BLOCK_TOKENS),
            monotone_counter: Some(generated_tokens as f64),
            ..Observation::default()
        };
        let input = Input::Observed {
            endpoint,
            observation,
        };
        self.pool.handle(now, input);
    }
}
