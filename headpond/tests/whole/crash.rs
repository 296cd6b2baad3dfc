//! The process dies under load, again and again: what was promised before is still true after.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::process::{Running, headpond, run};
use crate::site::{CACHED, OUTPUT, PATIENT, Site, UNCACHED, chat, plain};
use crate::wire;

const LIVES: u64 = 20;
const CLIENTS: u64 = 8;
const SEED: u64 = 0x0c4a_5811;
/// The hard cap is spent before the last life.
const CAP: u64 = 30_000_000;

/// Requests that were answered, by id.
type Answered = BTreeMap<String, Told>;

/// What the client of an answered request was told.
#[derive(Clone, Copy, Debug)]
struct Told {
    tenant: &'static str,
    cost: u64,
    /// How many answers of its life came before it.
    before: u64,
}

#[tokio::test]
async fn twenty_kills_under_load_lose_nothing_that_was_answered() {
    let tenants = [
        ("capped", "[{ tier: D, wtu: 30, per: 365d }]"),
        ("batched", "[{ tier: B, wtu: 100000, per: 365d }]"),
    ];
    let site = Site::with(&tenants, "", PATIENT);
    let mut dice = Dice::new(SEED);
    let (mut answered, mut lost) = (Answered::new(), 0);
    let mut minted: Option<String> = None;
    for life in 0..LIVES {
        let running = start(&site);
        keys_work(&site, &running, minted.as_deref()).await;
        if minted.is_none() {
            minted = Some(mint(&site, &running));
        }
        let inherited = site.attempts();
        let orphans = inherited
            .values()
            .filter(|attempt| attempt.state == "sent")
            .count();
        assert_eq!(
            orphans, 0,
            "what the last process left open has no known end"
        );

        let mut told = kill_after(running, &site, dice.below(60) + 1, life).await;
        let report = site.verify();
        let (taken, granted) = site.fullest("capped");
        assert!(
            granted == CAP && taken <= CAP,
            "life {life}: {taken} of {granted}"
        );
        lost += forget_lost(&site, &mut told, life);
        answered.extend(told);
        println!(
            "life {life}: {} answered, {} entries, {taken} of {CAP} taken, {lost} lost",
            answered.len(),
            report["entries"]
        );
    }
    let heir = start(&site);
    keys_work(&site, &heir, minted.as_deref()).await;
    let attempts = site.attempts();
    for (request, Told { tenant, cost, .. }) in &answered {
        let attempt = &attempts[request];
        assert_eq!(attempt.tenant, *tenant);
        match attempt.state.as_str() {
            "committed" => assert_eq!(attempt.charged, *cost, "{request}: {attempt:?}"),
            // The settlement died with the process: the hold stays, and covers the cost.
            "unknown" => assert!(attempt.largest >= *cost, "{request}: {attempt:?}"),
            other => panic!("{request} was answered and is {other}"),
        }
    }
    let unknown = attempts
        .values()
        .filter(|attempt| attempt.state == "unknown")
        .count();
    assert!(
        unknown > 0,
        "some of the kills came in the middle of requests"
    );
    assert!(answered.len() > 200, "{}", answered.len());
    let (taken, _) = site.fullest("capped");
    assert!(taken > CAP / 2, "the cap came close: {taken}");
    assert!(heir.stop().success());
    site.verify();
}

fn start(site: &Site) -> Running {
    site.up(&["--engines", "2", "--slow", "1", "--speed", "40"])
}

async fn keys_work(site: &Site, running: &Running, minted: Option<&str>) {
    for tenant in ["capped", "batched"] {
        assert_eq!(
            running.key(tenant),
            site.key(tenant),
            "the ready file names the same keys"
        );
    }
    let keys = [site.key("capped"), site.key("batched")]
        .into_iter()
        .chain(minted.map(str::to_owned));
    for key in keys {
        let models = wire::send(
            Method::GET,
            &format!("{}/v1/models", running.url()),
            &key,
            "",
        )
        .await;
        assert_eq!(
            models
                .expect("the ready file names where it listens")
                .status,
            200
        );
    }
}

/// A key that is in no file.
fn mint(site: &Site, running: &Running) -> String {
    let token = site.path().join("admin.token");
    let create = [
        "key",
        "create",
        "--tenant",
        "batched",
        "--project",
        "p",
        "--name",
        "minted",
        "--admin-url",
        running.admin_url(),
    ];
    let output = run(headpond().args(create).arg("--admin-token-file").arg(token));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()
        .expect("the key comes first")
        .to_owned()
}

/// Clients of both tenants ask until so many answers were seen; then the process is killed at once.
async fn kill_after(running: Running, site: &Site, answers: u64, life: u64) -> Answered {
    let seen = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let tenant = if number % 2 == 0 { "capped" } else { "batched" };
        let client = Client {
            url: running.url().to_owned(),
            key: site.key(tenant),
            tenant,
            seen: Arc::clone(&seen),
        };
        clients.spawn(client.ask_until_it_dies(Dice::new(SEED ^ (life << 8) ^ number)));
    }
    wire::until("enough answers", async || {
        (seen.load(Ordering::SeqCst) >= answers).then_some(())
    })
    .await;
    running.kill();
    clients.join_all().await.into_iter().flatten().collect()
}

struct Client {
    url: String,
    key: String,
    tenant: &'static str,
    seen: Arc<AtomicU64>,
}

impl Client {
    async fn ask_until_it_dies(self, mut dice: Dice) -> Answered {
        let mut answered = Answered::new();
        loop {
            let (turn, stream) = (dice.below(50), dice.below(2) == 1);
            let mut request = chat(&format!("question {turn}"), 4 + dice.below(20), stream);
            if stream {
                request["stream_options"] = serde_json::json!({ "include_usage": true });
            }
            let url = format!("{}/v1/chat/completions", self.url);
            let Some(answer) = wire::send(Method::POST, &url, &self.key, request.to_string()).await
            else {
                return answered;
            };
            let before = self.seen.fetch_add(1, Ordering::SeqCst);
            match answer.status.as_u16() {
                200 => {
                    let usage = if stream {
                        last_usage(&answer.text())
                    } else {
                        answer.json()["usage"].clone()
                    };
                    answered.insert(
                        plain(answer.header("x-request-id")),
                        Told {
                            tenant: self.tenant,
                            cost: cost(&usage),
                            before,
                        },
                    );
                }
                429 => assert_eq!(
                    (answer.code().as_str(), self.tenant),
                    ("insufficient_quota", "capped")
                ),
                other => panic!("{other}: {}", answer.text()),
            }
        }
    }
}

fn last_usage(stream: &str) -> Value {
    let events = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let chunks = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let usage = chunks.rev().find(|chunk| chunk["usage"].is_object());
    usage.unwrap_or_else(|| panic!("no usage in {stream}"))["usage"].clone()
}

fn cost(usage: &Value) -> u64 {
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let cached = number("/prompt_tokens_details/cached_tokens");
    (number("/prompt_tokens") - cached) * UNCACHED
        + cached * CACHED
        + number("/completion_tokens") * OUTPUT
}

/// Attempts of tier B are written behind the answer, in order: the newest ones may be missing, and none before
/// them. Attempts of tier D may not.
fn forget_lost(site: &Site, told: &mut Answered, life: u64) -> usize {
    let attempts = site.attempts();
    let lost: Answered = told
        .extract_if(.., |request, _| !attempts.contains_key(request))
        .collect();
    for (request, told) in &lost {
        assert_eq!(
            told.tenant, "batched",
            "life {life}: {request} was answered under a hard cap and is not in the ledger"
        );
    }
    let first = lost
        .values()
        .map(|told| told.before)
        .min()
        .unwrap_or(u64::MAX);
    // Those that were asked at the same time as the first missing one may have been written before it.
    let later = told
        .values()
        .filter(|told| told.tenant == "batched" && told.before > first)
        .count() as u64;
    assert!(
        later < CLIENTS,
        "life {life}: {later} attempts after a missing one are not missing: {lost:?}"
    );
    lost.len()
}
