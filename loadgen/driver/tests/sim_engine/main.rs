//! The simulated engine as its clients see it: over sockets, against recordings of the real servers.
#![allow(clippy::panic, reason = "a test may fail in a function of its own")]

mod client;
mod disconnects;
mod faults;
mod generation;
mod metrics;
mod recordings;
mod structure;

use engine_model::Profile;
use loadgen::engine::{EngineConfig, SimEngine, Vocabulary};

/// The engine the recordings were made with, twenty times as fast as an 8B model on an A100.
fn tiny(vocabulary: Vocabulary) -> EngineConfig {
    EngineConfig {
        models: vec!["tiny".to_owned()],
        vocabulary,
        max_model_len: 2048,
        max_num_seqs: 4.try_into().ok(),
        block_size: 32.try_into().expect("not zero"),
        kv_blocks: 256.try_into().ok(),
        speed: 20.0,
        ..EngineConfig::new(Profile::LLAMA_8B_A100)
    }
}

async fn start(config: EngineConfig) -> SimEngine {
    SimEngine::start(config)
        .await
        .expect("a loopback port is free")
}

/// Waits until `done`, at most ten seconds.
async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}
