//! Scrapes every endpoint on its own task and hands each answer to a sink. Shell: what to ask and when is decided in
//! `query` and `pace`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scheduler_core::{EndpointId, Observation};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::fetch::{Client, ScrapeError};
use crate::pace::{Activity, Pace};
use crate::page::Page;
use crate::query::{Query, Verdict};
use crate::restart::{Continuity, Life};
use crate::target::Target;

/// The running scrapes. Dropping it ends them.
#[derive(Debug)]
pub struct Scraper {
    picked: BTreeMap<EndpointId, Arc<Picked>>,
    _stop: DropGuard,
}

/// Set by the scheduler when it picks an endpoint, read and cleared by the endpoint's scrape.
#[derive(Debug, Default)]
struct Picked {
    since_last_scrape: AtomicBool,
    wake: Notify,
}

impl Scraper {
    /// Starts one task per target on `tracker`. The sink gets every outcome, from the task of its endpoint, so it must
    /// return soon.
    pub fn spawn<S>(tracker: &TaskTracker, config: Config, targets: Vec<Target>, sink: S) -> Self
    where
        S: Fn(EndpointId, Result<Observation, ScrapeError>) + Send + Sync + 'static,
    {
        let stop = CancellationToken::new();
        let sink = Arc::new(sink);
        let mut picked = BTreeMap::new();
        for target in targets {
            let scrape = Scrape::new(tracker, config, &target);
            picked.insert(target.endpoint, Arc::clone(&scrape.picked));
            let (stop, sink) = (stop.clone(), Arc::clone(&sink));
            tracker.spawn(async move {
                let _ = stop.run_until_cancelled(scrape.run(&*sink)).await;
            });
        }
        Self {
            picked,
            _stop: stop.drop_guard(),
        }
    }

    /// The scheduler sent work to this endpoint: if it is scraped seldom because it idled, look again soon.
    pub fn picked(&self, endpoint: EndpointId) {
        if let Some(picked) = self.picked.get(&endpoint)
            && !picked.since_last_scrape.swap(true, Ordering::Relaxed)
        {
            picked.wake.notify_one();
        }
    }
}

/// The scrape of one endpoint.
struct Scrape {
    endpoint: EndpointId,
    config: Config,
    client: Client,
    query: Query,
    life: Life,
    pace: Pace,
    picked: Arc<Picked>,
}

impl Scrape {
    fn new(tracker: &TaskTracker, config: Config, target: &Target) -> Self {
        Self {
            endpoint: target.endpoint,
            config,
            client: Client::new(tracker.clone(), target, config.max_page_bytes),
            query: Query::new(&target.path),
            life: Life::default(),
            pace: Pace::new(&config, u64::from(target.endpoint.0)),
            picked: Arc::default(),
        }
    }

    async fn run(mut self, sink: &(impl Fn(EndpointId, Result<Observation, ScrapeError>) + Sync)) {
        loop {
            let started = Instant::now();
            let picked = self.picked.since_last_scrape.swap(false, Ordering::Relaxed);
            let page = self.scrape().await;
            let activity = activity(&page, picked);
            sink(self.endpoint, page.map(Observation::from));
            self.rest(started, activity).await;
        }
    }

    /// Waits for the next scrape; an idle endpoint that is picked meanwhile is scraped as a busy one.
    async fn rest(&mut self, started: Instant, activity: Activity) {
        let due = started + self.pace.wait(activity);
        if activity != Activity::Idle {
            return sleep_until(due).await;
        }
        tokio::select! {
            () = sleep_until(due) => {}
            () = self.picked.wake.notified() => {
                let soon = started + self.pace.busy_wait();
                sleep_until(soon.min(due)).await;
            }
        }
    }

    async fn scrape(&mut self) -> Result<Page, ScrapeError> {
        let limit = self.config.timeout;
        let page = timeout(limit, self.fetch())
            .await
            .unwrap_or(Err(ScrapeError::Timeout(limit)));
        match page {
            Ok(page) => {
                if self.life.observe(&page) == Continuity::Restarted {
                    self.query.forget();
                }
                Ok(page)
            }
            Err(error) => {
                if matches!(error, ScrapeError::Unreachable(_)) {
                    self.query.forget();
                }
                Err(error)
            }
        }
    }

    async fn fetch(&mut self) -> Result<Page, ScrapeError> {
        loop {
            let answer = self.client.get(self.query.uri()).await?;
            let page = answer.status.is_success().then(|| Page::parse(answer.body));
            match (self.query.answered(page.as_ref()), page) {
                (Verdict::Use, Some(page)) => return Ok(page),
                (Verdict::Again, _) => {}
                (Verdict::Use | Verdict::Useless, None) => {
                    return Err(ScrapeError::Status(answer.status));
                }
                (Verdict::Useless, Some(_)) => return Err(ScrapeError::NoLoad),
            }
        }
    }
}

fn activity(page: &Result<Page, ScrapeError>, picked: bool) -> Activity {
    match page {
        Err(_) => Activity::Silent,
        Ok(page) if picked || page.running.unwrap_or(0) > 0 || page.waiting.unwrap_or(0) > 0 => {
            Activity::Busy
        }
        Ok(_) => Activity::Idle,
    }
}
