//! Requests go where their prefix is cached, and tenants see nothing of each other's caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::ask::{CHAT, GENERATING, body, prompt};
use crate::engines::Engines;
use crate::front::{Front, Tokens};

/// The block size that the servers are started with.
const BLOCK: u64 = 32;

/// A chat that goes on.
struct Conversation {
    request: Value,
    /// Prompt tokens of the last turn.
    prompt: u64,
    endpoint: String,
}

impl Conversation {
    async fn begin(front: &Front) -> Self {
        let mut this = Self {
            request: body(CHAT, &prompt(400), 8),
            prompt: 0,
            endpoint: String::new(),
        };
        this.turn(front).await;
        this
    }

    /// Asks once more; the tokens found in a cache.
    async fn turn(&mut self, front: &Front) -> u64 {
        let answer = front.post(CHAT, "acme", &self.request).await;
        answer
            .header("x-headpond-endpoint")
            .clone_into(&mut self.endpoint);
        let json = answer.json();
        let usage = Tokens::of(&json["usage"]);
        self.prompt = usage.prompt;
        let messages = self.request["messages"].as_array_mut().expect("messages");
        messages.push(json["choices"][0]["message"].clone());
        messages.push(json!({ "role": "user", "content": "Go on." }));
        usage.cached
    }
}

#[tokio::test]
async fn conversations_spread_and_then_stay_where_they_are_cached() {
    let engines = Engines::take().await;
    let front = Arc::new(Front::up(engines.all()));
    let mut beginning = JoinSet::new();
    for _ in 0..6 {
        let front = Arc::clone(&front);
        beginning.spawn(async move { Conversation::begin(&front).await });
    }
    let mut conversations = beginning.join_all().await;
    let used: BTreeSet<String> = conversations
        .iter()
        .map(|one| one.endpoint.clone())
        .collect();
    assert_eq!(
        used.len(),
        engines.all().len(),
        "conversations that begin together spread: {used:?}"
    );
    for turn in 2..=3 {
        for conversation in &mut conversations {
            let (endpoint, before) = (conversation.endpoint.clone(), conversation.prompt);
            let cached = conversation.turn(&front).await;
            assert_eq!(conversation.endpoint, endpoint, "turn {turn}");
            let whole_blocks = before / BLOCK * BLOCK;
            assert!(
                cached >= whole_blocks,
                "turn {turn}: {cached} cached of {before} tokens seen before"
            );
            println!(
                "turn {turn}: {cached} of {} prompt tokens cached at {endpoint}",
                conversation.prompt
            );
        }
    }
    Arc::into_inner(front).expect("all have begun").stop();
}

#[tokio::test]
async fn tenants_do_not_share_a_cache_and_one_tenant_does() {
    let engines = Engines::take().await;
    // One engine, so that nothing but the salt keeps them apart.
    let front = Front::up(&engines.all()[..1]);
    for path in GENERATING {
        let request = body(path, &prompt(200), 2);
        let mut guessing = request.clone();
        guessing["cache_salt"] = "acme".into();
        let mut seen = Vec::new();
        for (tenant, request) in [
            ("acme", &request),
            ("globex", &request),
            ("globex", &guessing),
            ("acme", &guessing),
            ("initech", &guessing),
        ] {
            let answer = front.post(path, tenant, request).await;
            assert_eq!(
                answer.status,
                200,
                "{path}: {}",
                String::from_utf8_lossy(&answer.body)
            );
            let usage = Tokens::of(&answer.json()["usage"]);
            seen.push((
                tenant,
                usage.cached / BLOCK * BLOCK,
                usage.prompt / BLOCK * BLOCK,
            ));
        }
        let whole = seen[0].2;
        assert!(whole >= 6 * BLOCK, "{path}: {seen:?}");
        let expected = [
            ("acme", 0),
            ("globex", 0),
            ("globex", whole),
            ("acme", whole),
            ("initech", 0),
        ];
        let cached: Vec<_> = seen
            .iter()
            .map(|(tenant, cached, _)| (*tenant, *cached))
            .collect();
        assert_eq!(cached, expected, "{path}");
    }
    front.stop();
}
