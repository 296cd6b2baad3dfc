//! The scraper understands the simulated engine in each of its vocabularies, and notices its restart.

use engine_model::Profile;
use engine_telemetry::config::Config;
use engine_telemetry::{ScrapeError, Scraper, Target};
use loadgen::engine::{EngineConfig, Fault, SimEngine, Vocabulary};
use scheduler_core::{EndpointId, Observation};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

async fn engine(vocabulary: Vocabulary) -> SimEngine {
    let mut config = EngineConfig::new(Profile::LLAMA_8B_A100);
    config.vocabulary = vocabulary;
    SimEngine::start(config).await.expect("a free port")
}

fn scrape(engine: &SimEngine) -> (Scraper, mpsc::Receiver<Result<Observation, ScrapeError>>) {
    let (sender, outcomes) = mpsc::channel(100);
    let target = Target::new(EndpointId(0), &engine.url()).expect("an address");
    let tracker = TaskTracker::new();
    let patient = serde_json::from_str(r#"{"timeout_ms": 60000}"#).expect("settings");
    let scraper = Scraper::spawn(
        &tracker,
        Config::check(&patient).expect("in range"),
        vec![target],
        move |_, outcome| {
            let _ = sender.try_send(outcome);
        },
    );
    (scraper, outcomes)
}

#[tokio::test]
async fn an_idle_engine_says_all_that_is_needed() {
    for vocabulary in [Vocabulary::Vllm, Vocabulary::VllmLegacy, Vocabulary::Sglang] {
        let engine = engine(vocabulary).await;
        let (_scraper, mut outcomes) = scrape(&engine);
        let seen = outcomes.recv().await.expect("scraping").expect("a page");
        assert_eq!(
            (seen.waiting, seen.running, seen.kv_use),
            (Some(0), Some(0), Some(0.0)),
            "{vocabulary:?}"
        );
        assert!(
            seen.block_size.is_some() && seen.kv_tokens.is_some_and(|tokens| tokens > 0),
            "{vocabulary:?} {seen:?}"
        );
        assert!(
            seen.monotone_counter.is_some() || vocabulary == Vocabulary::Sglang,
            "{vocabulary:?} {seen:?}"
        );
    }
}

#[tokio::test]
async fn an_engine_that_drops_or_cuts_its_page_is_reported_until_it_answers_again() {
    for fault in [Fault::MetricsDrop, Fault::MetricsTruncate] {
        let engine = engine(Vocabulary::Vllm).await;
        engine.faults().inject(fault);
        let (_scraper, mut outcomes) = scrape(&engine);
        let outcome = outcomes.recv().await.expect("scraping");
        assert!(
            matches!(outcome, Err(ScrapeError::Broken(_))),
            "{outcome:?}"
        );
        engine.faults().clear();
        while outcomes.recv().await.expect("scraping").is_err() {}
    }
}
