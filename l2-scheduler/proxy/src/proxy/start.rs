//! What a scheduler begins with: its pool, and the tasks that go on until it ends.

use std::sync::Arc;
use std::time::Duration;

use engine_telemetry::{Scraper, Target};
use scheduler_core::{EndpointId, EndpointSpec, Input, Pool, PoolConfig};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Endpoint;
use crate::config::{self, Config};
use crate::dispatcher::Dispatcher;
use crate::heard;
use crate::metrics::Metrics;
use crate::patience::Board;
use crate::probe;

pub(crate) type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) fn boxed(task: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(task)
}

/// The pool with its endpoints, and the probes that are wanted of them.
pub(super) fn dispatcher(
    config: &Config,
    seed: u64,
) -> (Arc<Dispatcher>, mpsc::Receiver<EndpointId>) {
    let pool = Pool::new(pool_config(config), seed);
    let (dispatcher, wanted) = Dispatcher::new(pool, config.endpoints.len());
    for (id, endpoint) in ids(config) {
        let spec = EndpointSpec {
            models: endpoint.models.clone(),
            ..EndpointSpec::new(id, &endpoint.name)
        };
        dispatcher.feed(Input::EndpointUp(spec));
    }
    (dispatcher, wanted)
}

/// What has to be done all the time, and what it is done with.
pub(super) struct Chores<'a> {
    pub(super) config: &'a Config,
    pub(super) endpoints: &'a Arc<[Endpoint]>,
    pub(super) dispatcher: &'a Arc<Dispatcher>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) board: &'a Arc<Board>,
    pub(super) tasks: &'a TaskTracker,
}

impl Chores<'_> {
    pub(super) fn begin(&self, wanted: mpsc::Receiver<EndpointId>, stop: &CancellationToken) {
        let until_stop = |task: Task| {
            self.tasks
                .spawn(stop.clone().run_until_cancelled_owned(task));
        };
        let dispatcher = || Arc::clone(self.dispatcher);
        let endpoints = || Arc::clone(self.endpoints);
        let timeouts = self.config.timeouts;
        until_stop(boxed(dispatcher().keep_time()));
        until_stop(boxed(
            dispatcher().keep_limits(timeouts.first_output, timeouts.silence),
        ));
        until_stop(boxed(close_idle(endpoints(), timeouts.idle_connection)));
        until_stop(boxed(probe::run(
            dispatcher(),
            endpoints(),
            Arc::clone(self.metrics),
            wanted,
            timeouts.hung_silence,
            self.tasks.clone(),
        )));
        for index in 0..self.endpoints.len() {
            until_stop(boxed(heard::listen(endpoints(), index)));
        }
        let board = Arc::clone(self.board);
        until_stop(boxed(board.keep(dispatcher(), self.config.comments.every)));
    }

    pub(super) fn scrape(&self) -> Scraper {
        let targets = ids(self.config)
            .map(|(id, endpoint)| {
                Target::new(id, &endpoint.metrics.to_string())
                    .expect("a checked address has a page")
            })
            .collect();
        let (dispatcher, metrics) = (Arc::clone(self.dispatcher), Arc::clone(self.metrics));
        let endpoints = Arc::clone(self.endpoints);
        let tell = move |endpoint: EndpointId, result| {
            endpoints[endpoint.0 as usize].heard.scraped(&result);
            dispatcher.feed(match result {
                Ok(observation) => Input::Observed {
                    endpoint,
                    observation,
                },
                Err(error) => {
                    tracing::debug!(endpoint = endpoint.0, %error, "metrics page not read");
                    metrics.endpoint(endpoint.0 as usize).scrape_failures.inc();
                    Input::ScrapeFailed { endpoint }
                }
            });
        };
        Scraper::spawn(self.tasks, self.config.scrape, targets, tell)
    }
}

fn ids(config: &Config) -> impl Iterator<Item = (EndpointId, &config::Endpoint)> {
    (0..).map(EndpointId).zip(&config.endpoints)
}

fn pool_config(config: &Config) -> PoolConfig {
    let mut pool = PoolConfig {
        policy: config.policy,
        flow: config.flow.clone(),
        ..PoolConfig::default()
    };
    pool.engine.room = config.room;
    pool.engine.depth = config.depth;
    pool.engine.prefill_rate = config.profile.peak_prefill;
    pool.engine.batch_tokens = config.profile.batched_tokens;
    pool.residency.default_capacity_tokens = config.profile.kv_tokens;
    pool.peers.every = (!config.peers.urls.is_empty()).then_some(config.peers.interval);
    pool.health.hang_floor = config.timeouts.hang_floor;
    pool
}

async fn close_idle(endpoints: Arc<[Endpoint]>, limit: Duration) {
    loop {
        tokio::time::sleep((limit / 4).max(Duration::from_millis(10))).await;
        for endpoint in &*endpoints {
            endpoint.upstream.expire_idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_engines_arrive_at_the_pool() {
        let file = serde_json::from_value(serde_json::json!({
            "policy": "random",
            "room": 3,
            "engine": {"depth": 2},
            "timeouts": {"hang_floor_ms": 1234},
            "profile": {"peak_prefill_tokens_per_s": 777.0, "kv_tokens": 5555, "max_batched_tokens": 64},
            "queue": {"no_endpoint_ttl_ms": 9},
        }))
        .expect("a section");
        let pool = pool_config(&Config::check(file).expect("allowed values"));
        assert_eq!(pool.policy, scheduler_core::Policy::Random);
        assert_eq!((pool.engine.room, pool.engine.depth), (3, 2));
        assert!((pool.engine.prefill_rate - 777.0).abs() < 1e-9);
        assert_eq!(pool.engine.batch_tokens, 64);
        assert_eq!(pool.residency.default_capacity_tokens, 5555);
        assert_eq!(pool.health.hang_floor, Duration::from_millis(1234));
        assert_eq!(pool.flow.no_endpoint_ttl, Duration::from_millis(9));
    }
}
