//! An engine dies under load: what had no token yet runs elsewhere, what had ends with an error the client can see.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::ask::{CHAT, body, prompt, streamed};
use crate::engines::{Engine, Engines, until};
use crate::front::{Front, data};

/// Each server runs four at once; the rest waits there without a token.
const STREAMS: usize = 24;

/// How one stream went for its client.
struct Seen {
    id: String,
    status: u16,
    events: usize,
    complete: bool,
    error: bool,
}

#[tokio::test]
async fn no_request_without_a_token_is_lost_when_an_engine_dies() {
    let engines = Engines::take().await;
    let front = Arc::new(Front::up(engines.all()));
    let victim = &engines.all()[0];
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        streams.spawn(watch(Arc::clone(&front)));
    }
    full(victim).await;
    engines.kill(&victim.url);
    let seen = streams.join_all().await;

    let (mut retried, mut cut) = (0, 0);
    for seen in &seen {
        let record = front.record(&seen.id).await;
        let journey = record.journey();
        assert_eq!(seen.status, 200, "{journey:?}");
        if seen.complete {
            retried += usize::from(journey.len() > 1);
            assert_eq!(record.state(), "committed", "{journey:?}");
            continue;
        }
        cut += 1;
        assert!(
            seen.error && seen.events > 1,
            "cut after a token, and said so: {journey:?}"
        );
        assert_eq!(
            record.endpoint(),
            victim.name(),
            "only the dead engine cuts"
        );
        assert_eq!(
            record.state(),
            "committed",
            "for what it had generated: {journey:?}"
        );
        assert!(record.charged().output >= 1, "{journey:?}");
    }
    println!("{STREAMS} streams: {cut} cut after a token, {retried} retried elsewhere");
    assert!(
        cut >= 1 && retried >= 1,
        "it died under load: {cut} cut, {retried} retried"
    );

    let during = front.post(CHAT, "acme", &body(CHAT, &prompt(40), 2)).await;
    assert_eq!(during.status, 200, "the others serve");
    engines.restarted(&victim.url).await;
    until("the engine is taken in again", async || {
        let answer = front.post(CHAT, "acme", &body(CHAT, &prompt(40), 2)).await;
        assert_eq!(answer.status, 200);
        (answer.header("x-headpond-endpoint") == victim.name()).then_some(())
    })
    .await;
    Arc::into_inner(front)
        .expect("the streams have ended")
        .stop();
}

/// Waits until an engine runs as much as it can and more waits.
async fn full(engine: &Engine) {
    until("requests wait in the engine", async || {
        let page = engine.metrics().await?;
        let (running, waiting) = (
            page.count("vllm:num_requests_running"),
            page.count("vllm:num_requests_waiting"),
        );
        (running >= 4 && waiting >= 1).then_some(())
    })
    .await;
}

async fn watch(front: Arc<Front>) -> Seen {
    let mut stream = front
        .open(CHAT, "acme", &streamed(CHAT, &prompt(200), 200))
        .await;
    let (id, status) = (stream.id(), stream.status());
    let text = stream.finish().await;
    let kinds: BTreeSet<bool> = data(text)
        .map(|data| data.starts_with(r#"{"error""#))
        .collect();
    Seen {
        id,
        status,
        events: data(text).count(),
        complete: data(text).last() == Some("[DONE]"),
        error: kinds.contains(&true),
    }
}
