//! A client that leaves pays for what the engine computed until it noticed.

use crate::ask::{GENERATING, body, prompt, streamed};
use crate::engines::{Engine, Engines, until};
use crate::front::{Front, Tokens};

/// Tokens between what is charged and what the engine generated, in a calm moment. Where processes wait for a CPU, an
/// engine may compute ahead of its own API server: tokens that nobody sees, with or without headpond.
const CALM: u64 = 1;
/// The most events without a token that a stream begins with, after its preamble.
const EMPTY_EVENTS: u64 = 2;

/// Whether every event of a stream says how much has been generated. Where none does, an event that carries several
/// tokens counts as one, or as a token for every four bytes.
fn reports_as_it_goes(path: &str) -> bool {
    matches!(path, "/v1/chat/completions" | "/v1/completions")
}

/// Events of a stream that come before there is any output.
fn preamble(path: &str) -> usize {
    if path == "/v1/responses" { 4 } else { 0 }
}

#[tokio::test]
async fn a_client_that_leaves_pays_for_what_the_engine_generated() {
    let engines = Engines::take().await;
    let front = Front::up(engines.all());
    let mut all_missed = Vec::new();
    for path in GENERATING {
        for events in [1, 2, 20, 60] {
            let before = engines.counted().await;
            let mut stream = front
                .open(path, "acme", &streamed(path, &prompt(100), 1_500))
                .await;
            assert!(
                stream.read(preamble(path) + events).await,
                "{path}: the stream ended by itself"
            );
            let id = stream.id();
            drop(stream);
            let record = front.record(&id).await;
            engines.idle().await;
            let counted = engines.counted().await - before;
            let charged = record.charged();
            println!("{path}, left after {events} events: engine {counted:?}, charged {charged:?}");
            assert_eq!(
                record.at("/governance/outcome/code"),
                "client_closed",
                "{path}"
            );
            assert_eq!(record.state(), "committed", "{path}");
            let what = format!("{path} after {events} events: {charged:?}, engine {counted:?}");
            assert!(charged.output + EMPTY_EVENTS >= events as u64, "{what}");
            if reports_as_it_goes(path) {
                assert!(!record.estimated(), "{what}");
                assert!(charged.output <= counted.output + CALM, "{what}");
                all_missed.push(counted.output.saturating_sub(charged.output));
            } else {
                assert!(record.estimated() || charged.output == 0, "{what}");
            }
            // A stream of the Responses API says nothing about the prompt before its end.
            if path != "/v1/responses" {
                assert_eq!(
                    charged.prompt, counted.prompt,
                    "{path} after {events} events"
                );
            }
        }
    }
    all_missed.sort_unstable();
    println!("tokens not charged: {all_missed:?}");
    let calm = all_missed[all_missed.len() / 4];
    assert!(calm <= CALM, "tokens not charged: {all_missed:?}");
    front.stop();
}

#[tokio::test]
async fn a_client_that_leaves_while_its_request_waits_gives_up_its_place_and_pays_nothing() {
    let engines = Engines::take().await;
    let engine = &engines.all()[0];
    let front = Front::up(&engines.all()[..1]);
    for path in GENERATING {
        for stream in [true, false] {
            let others = engine.occupy(1_500).await;
            let mut request = body(path, &prompt(100), 400);
            request["stream"] = stream.into();
            let stay = async {
                // Some streams open before there is a token, which says nothing about a place.
                let _stream = front.open(path, "acme", &request).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = stay => {}
                () = waiting(engine, 1) => {}
            }
            // The connection is closed.
            waiting(engine, 0).await;
            let record = front.latest().await;
            println!(
                "{path}, stream {stream}: {} ({})",
                record.state(),
                record.reason()
            );
            assert_eq!(
                record.at("/governance/outcome/code"),
                "client_closed",
                "{path}, stream {stream}"
            );
            assert_ne!(record.state(), "committed", "{path}, stream {stream}");
            assert_eq!(
                record.charged(),
                Tokens::default(),
                "{path}, stream {stream}"
            );
            drop(others);
            engines.idle().await;
        }
    }
    front.stop();
}

/// Waits until so many requests wait in an engine that runs as many as it can.
async fn waiting(engine: &Engine, count: u64) {
    until("requests wait behind others", async || {
        let page = engine.metrics().await?;
        let waiting = page.count("vllm:num_requests_waiting") == count;
        let full = page.count("vllm:num_requests_running") == 4;
        (waiting && full).then_some(())
    })
    .await;
}
