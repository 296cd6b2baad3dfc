//! Budgets, limits and races: cases 1–7, 9, 10, 12–14, 17 and 19.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::support::*;

/// What `{"messages":[{"role":"user","content":"hi"}],"max_tokens":N}` holds: 4 bytes of role, 2 of
/// text, 8 of template, and its output.
const PROMPT_HELD: u64 = 14 * 1000;

fn held(max_tokens: u64) -> u64 {
    PROMPT_HELD + max_tokens * 2000
}

fn wtu(micro: u64) -> String {
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

fn hard_cap(micro: u64) -> Value {
    json!([{"tier": "D", "wtu": wtu(micro), "per": "24h"}])
}

/// Sends `count` requests at once; the statuses, sorted.
async fn parallel(rig: &Arc<Rig>, count: usize, body: Value) -> Vec<Answer> {
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (rig, body) = (Arc::clone(rig), body.clone());
        running.spawn(async move { rig.chat(body).await });
    }
    running.join_all().await
}

fn admitted(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.status == 200).count()
}

#[tokio::test]
async fn a_request_goes_through_and_is_charged_once() {
    let rig = Rig::new(Stage::always(ok(answer(100, 40, 10)))).await;
    let answer = rig.chat(json!({"max_tokens": 10})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "hello");
    // 60 × 0.001 + 40 × 0.0005 + 10 × 0.002
    let charge = 60_000 + 20_000 + 20_000;
    for account in ["acme", "acme/app", "acme/app/ann"] {
        assert_eq!(rig.wtu(account).await, (charge, 0), "{account}");
    }
    let (context, request) = rig.stage.last_call();
    assert_eq!(context.tenant.as_str(), "acme");
    assert_eq!(context.request, answer.request_id());
    assert_eq!(
        request.headers()["x-request-id"],
        context.attempt.to_string()
    );
    assert_eq!(rig.stage.last_body()["model"], "org/demo-7b");
    let record = rig.record(&answer);
    let settlement = record.settlement.as_ref().expect("a settlement");
    assert_eq!(
        (settlement.state, settlement.charged_uwtu.0),
        ("committed", charge)
    );
    rig.assert_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_1_fifty_parallel_calls_with_room_for_five() {
    let stage = Stage::always(Play::After(
        Duration::from_millis(300),
        Box::new(ok(answer(14, 0, 100))),
    ));
    let rig = Rig::with(stage, |config| {
        limit(config, "/tenants/0", hard_cap(5 * held(100)));
    })
    .await;
    let rig = Arc::new(rig);
    let answers = parallel(&rig, 50, json!({"max_tokens": 100})).await;
    assert_eq!(admitted(&answers), 5);
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (429, "insufficient_quota")
        );
        assert_eq!(refused.header("x-should-retry"), "true");
        let seconds: u64 = refused.header("retry-after").parse().expect("seconds");
        assert!((1..=5).contains(&seconds), "nothing is used yet");
        let quota = &refused.json()["error"]["quota"];
        assert_eq!(quota["account"], "acme");
        assert_eq!(quota["limit"], 5 * held(100));
        assert_eq!(
            quota["held"].as_u64().expect("held") + quota["used"].as_u64().expect("used"),
            5 * held(100)
        );
        assert!(quota["resets_at"].is_string());
    }
    assert_eq!(rig.wtu("acme").await, (5 * held(100), 0));
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_2_a_limit_of_the_project_binds_keys_without_their_own() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 100))), |config| {
        limit(config, "/tenants/0/projects/0", hard_cap(held(100)));
    })
    .await;
    assert_eq!(rig.chat(json!({"max_tokens": 100})).await.status, 200);
    let refused = rig.chat(json!({"max_tokens": 100})).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (429, "insufficient_quota")
    );
    assert_eq!(refused.json()["error"]["quota"]["account"], "acme/app");
    assert_eq!(refused.header("x-should-retry"), "false", "it is used up");
}

#[tokio::test]
async fn what_is_held_is_waited_for_and_not_the_end_of_the_window() {
    for (limits, code) in [
        (hard_cap(held(100)), "insufficient_quota"),
        (
            json!([{"tier": "D", "tokens": 14 + 100, "window": "balance"}]),
            "rate_limit_exceeded",
        ),
    ] {
        // Its end is unknown, so that it keeps all it holds.
        let rig = Rig::with(Stage::always(Play::Panic), |config| {
            limit(config, "/tenants/0", limits);
        })
        .await;
        rig.chat(json!({"max_tokens": 100})).await;
        // Neither of them would get what it asks for, but less of it.
        for most in [1, 100, 4000] {
            let refused = rig.chat(json!({"max_tokens": most})).await;
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (429, code),
                "{}",
                refused.text()
            );
            assert_eq!(refused.header("x-should-retry"), "true");
            assert_eq!(refused.header("retry-after"), "5");
            let record = rig.record(&refused);
            let noted = record.refusal.as_ref().expect("a refusal");
            assert!(noted.message.contains("not settled"), "{}", noted.message);
            assert_eq!(refused.json()["error"]["message"], noted.message);
            assert!(noted.message.ends_with(noted.what_to_do));
            let told = record.limits.last().expect("the limit that refused");
            assert_eq!(told.used, 0);
            assert!(told.held > 0 && Some(told.held) == told.limit, "{told:?}");
        }
        assert_eq!(rig.stage.call_count(), 1);
    }
}

#[tokio::test]
async fn case_3_a_hold_that_cannot_be_written_admits_nobody() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 1))), |config| {
        limit(config, "/tenants/0", hard_cap(1_000_000));
    })
    .await;
    assert_eq!(rig.chat(json!({"max_tokens": 1})).await.status, 200);
    rig.ledger.flush().await.expect("the ledger answers");
    let blocker = rusqlite::Connection::open(rig.dir.path().join("ledger.db")).expect("the file");
    blocker
        .execute_batch("BEGIN IMMEDIATE")
        .expect("the write lock");
    let refused = rig.chat(json!({"max_tokens": 1})).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "quota_unavailable")
    );
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(rig.stage.call_count(), 1, "nothing was dispatched");
    blocker
        .execute_batch("ROLLBACK")
        .expect("the write lock is given back");
}

#[tokio::test]
async fn case_4_a_model_without_a_price_is_refused_or_holds_the_floor() {
    let strict = Rig::new(Stage::always(ok(answer(10, 0, 10)))).await;
    let refused = strict.chat(json!({"model": "unpriced"})).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "no_price"));
    assert_eq!(strict.stage.call_count(), 0);

    let floor = Rig::with(Stage::always(ok(answer(10, 0, 10))), |config| {
        config["no_price"] = json!("floor");
        config["floor_wtu"] = json!("2.5");
    })
    .await;
    let answer = floor.chat(json!({"model": "unpriced"})).await;
    assert_eq!(answer.status, 200);
    let reservation = floor
        .record(&answer)
        .reservation
        .clone()
        .expect("a reservation");
    assert_eq!(reservation.held_uwtu.0, 2_500_000);
    assert_eq!(floor.wtu("acme").await, (2_500_000, 0));
}

#[tokio::test]
async fn case_5_the_hold_scales_with_the_largest_possible_charge() {
    let rig = Rig::new(Stage::always(ok(answer(14, 0, 1)))).await;
    for (body, expected) in [
        (json!({"max_tokens": 10}), held(10)),
        (json!({"max_tokens": 1000}), held(1000)),
        (json!({"max_tokens": 100, "n": 4}), PROMPT_HELD + 400 * 2000),
        (json!({}), held(64)),
        (json!({"max_tokens": 4000}), held(1024)),
    ] {
        let answer = rig.chat(body.clone()).await;
        let reservation = rig
            .record(&answer)
            .reservation
            .clone()
            .expect("a reservation");
        assert_eq!(reservation.held_uwtu.0, expected, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_6_outstanding_holds_count() {
    let stage = Stage::always(Play::After(
        Duration::from_millis(300),
        Box::new(ok(answer(14, 0, 100))),
    ));
    let rig = Rig::with(stage, |config| {
        limit(
            config,
            "/tenants/0",
            hard_cap(2 * held(100) + PROMPT_HELD - 1),
        );
    })
    .await;
    let rig = Arc::new(rig);
    let answers = parallel(&rig, 4, json!({"max_tokens": 100})).await;
    assert_eq!(admitted(&answers), 2);
    rig.assert_quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_7_a_rich_tenant_does_not_pay_for_a_poor_key() {
    let stage = Stage::always(Play::After(
        Duration::from_millis(300),
        Box::new(ok(answer(14, 0, 100))),
    ));
    let rig = Rig::with(stage, |config| {
        limit(config, "/tenants/0", hard_cap(1_000_000_000_000));
        limit(
            config,
            "/tenants/0/projects/0/keys/0",
            hard_cap(3 * held(100)),
        );
    })
    .await;
    let rig = Arc::new(rig);
    let answers = parallel(&rig, 100, json!({"max_tokens": 100})).await;
    assert_eq!(admitted(&answers), 3);
    rig.assert_quiet().await;
}

#[tokio::test]
async fn what_a_hard_cap_lowers_is_not_refused_by_a_soft_limit_that_it_then_fits() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 7))), |config| {
        limit(config, "/tenants/0", hard_cap(held(7)));
        let soft = json!([{"tier": "B", "tokens": 80, "per": "1d"}]);
        limit(config, "/tenants/0/projects/0/keys/0", soft);
    })
    .await;
    let answer = rig.chat(json!({"max_tokens": 100})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-headpond-max-tokens"), "7");
}

#[tokio::test]
async fn a_small_balance_lowers_the_bound_and_says_so() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 7))), |config| {
        limit(config, "/tenants/0", hard_cap(held(7) + 1999));
    })
    .await;
    let answer = rig.chat(json!({"max_tokens": 100})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-headpond-max-tokens"), "7");
    assert_eq!(rig.stage.last_body()["max_tokens"], 7);
    assert_eq!(rig.stage.last_call().0.output_bound, 7);
    let reservation = rig
        .record(&answer)
        .reservation
        .clone()
        .expect("a reservation");
    assert_eq!(
        (reservation.output_bound, reservation.clamped_from),
        (7, Some(100))
    );
    rig.assert_quiet().await;
}

#[tokio::test]
async fn of_many_small_balances_the_least_lowers_the_bound() {
    let caps = (1..=8).map(|hours: u64| {
        let left = held(48 - 5 * hours);
        json!({"tier": "D", "wtu": wtu(left), "per": format!("{hours}h")})
    });
    let caps: Vec<Value> = caps.collect();
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 7))), |config| {
        limit(config, "/tenants/0", json!(caps));
    })
    .await;
    let answer = rig.chat(json!({"max_tokens": 100})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-headpond-max-tokens"), "8");
    rig.assert_quiet().await;
}

#[tokio::test]
async fn who_needs_more_than_a_window_grants_is_not_told_to_wait() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 7))), |config| {
        limit(config, "/tenants/0", hard_cap(held(1) - 1));
    })
    .await;
    let refused = rig.chat(json!({"max_tokens": 1})).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.header("x-should-retry"), "false");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("waiting does not help"), "{message}");
    assert!(!message.contains("wait for"), "{message}");
}

#[tokio::test]
async fn whose_balance_is_used_up_is_told_that_it_does_not_start_over() {
    for balance in [
        json!([{"tier": "D", "wtu": wtu(held(1)), "window": "balance"}]),
        json!([{"tier": "D", "tokens": 14 + 1, "window": "balance"}]),
    ] {
        let rig = Rig::with(Stage::always(ok(answer(14, 0, 1))), |config| {
            limit(config, "/tenants/0", balance);
        })
        .await;
        assert_eq!(rig.chat(json!({"max_tokens": 1})).await.status, 200);
        let refused = rig.chat(json!({"max_tokens": 1})).await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert_eq!(refused.header("x-should-retry"), "false");
        assert!(refused.headers.get("retry-after").is_none());
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains("does not start over"), "{message}");
        assert!(!message.contains("ait "), "{message}");
    }
}

#[tokio::test]
async fn case_9_a_panic_after_the_hold_leaves_it_unknown_and_answers_cleanly() {
    let panics = [
        (Play::Panic, false),
        (Play::Stream(vec![Piece::Panic]), true),
    ];
    for (play, stream) in panics {
        let rig = Rig::with(Stage::always(play), |config| {
            limit(config, "/tenants/0", hard_cap(1_000_000));
        })
        .await;
        let answer = rig.chat(json!({"max_tokens": 10, "stream": stream})).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (500, "internal_error")
        );
        assert_eq!(answer.header("x-headpond-reason"), "internal_error");
        let record = rig.record(&answer);
        assert_eq!(
            record.settlement.as_ref().expect("a settlement").state,
            "unknown"
        );
        assert_eq!(
            rig.wtu("acme").await,
            (0, held(10)),
            "an unknown end keeps its hold"
        );
        assert_eq!(
            rig.chat(json!({"model": "nope"})).await.status,
            404,
            "the process goes on"
        );
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_10_every_account_of_the_path_pays_or_none() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 10))), |config| {
        limit(config, "/tenants/0", hard_cap(1_000_000));
        limit(
            config,
            "/tenants/0/projects/0/users/0",
            hard_cap(PROMPT_HELD - 1),
        );
    })
    .await;
    let refused = rig.chat(json!({"max_tokens": 10})).await;
    assert_eq!(refused.json()["error"]["quota"]["account"], "acme/app/ann");
    for account in ["acme", "acme/app", "acme/app/ann"] {
        assert_eq!(rig.wtu(account).await, (0, 0), "{account}");
    }
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_12_every_route_has_the_same_admission_and_unknown_ones_have_none() {
    let rig = Rig::with(
        Stage::always(ok(json!({"count": 3, "tokens": [1, 2, 3]}))),
        |config| {
            limit(config, "/tenants/0", json!([{"requests": 2, "per": "1h"}]));
        },
    )
    .await;
    for path in ["/tokenize", "/v1/detokenize", "/v1/messages/count_tokens"] {
        let body = json!({"model": "demo", "prompt": "hi", "tokens": [1], "messages": []});
        let anonymous = post(path, "hp-abcdefghijkm-nnnnnnnnnnnnnnnnnnnnn", body);
        assert_eq!(rig.send(anonymous).await.status, 401, "{path}");
        let hidden = rig
            .post(path, json!({"model": "hidden", "messages": []}))
            .await;
        assert_eq!(hidden.status, 404, "{path}");
    }
    assert_eq!(
        rig.post("/tokenize", json!({"model": "demo", "prompt": "hi"}))
            .await
            .status,
        200
    );
    assert_eq!(
        rig.post("/tokenize", json!({"model": "demo", "prompt": "hi"}))
            .await
            .status,
        200
    );
    assert_eq!(rig.wtu("acme").await, (0, 0), "nothing was generated");
    let third = rig
        .post("/tokenize", json!({"model": "demo", "prompt": "hi"}))
        .await;
    assert_eq!(
        (third.status, third.code().as_str()),
        (429, "rate_limit_exceeded")
    );
    for path in [
        "/v1/audio/speech",
        "/v1/chat/completions/x",
        "/sleep",
        "/metrics",
        "/v1/load_lora_adapter",
    ] {
        let denied = rig.post(path, chat(json!({}))).await;
        assert_eq!(
            (denied.status, denied.code().as_str()),
            (404, "not_found"),
            "{path}"
        );
    }
    assert_eq!(rig.stage.call_count(), 2);
}

#[tokio::test]
async fn case_13_spend_through_every_api_counts_in_every_account() {
    let responses = json!({"id": "r", "object": "response", "status": "completed", "output": [],
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}});
    let messages = json!({"id": "m", "type": "message", "role": "assistant", "content": [],
        "usage": {"input_tokens": 10, "output_tokens": 5}});
    let embeddings =
        json!({"object": "list", "data": [], "usage": {"prompt_tokens": 10, "total_tokens": 10}});
    for (path, body, reply, charge) in [
        (
            "/v1/responses",
            json!({"model": "demo", "input": "hi"}),
            responses,
            20_000,
        ),
        (
            "/v1/messages",
            json!({"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
            messages,
            20_000,
        ),
        (
            "/v1/embeddings",
            json!({"model": "demo", "input": "hi"}),
            embeddings,
            10_000,
        ),
        (
            "/v1/completions",
            json!({"model": "demo", "prompt": "hi"}),
            answer(10, 0, 5),
            20_000,
        ),
    ] {
        let rig = Rig::new(Stage::always(ok(reply))).await;
        let answer = rig.post(path, body).await;
        assert_eq!(answer.status, 200, "{path} {}", answer.text());
        for account in ["acme", "acme/app", "acme/app/ann"] {
            assert_eq!(rig.wtu(account).await, (charge, 0), "{path} {account}");
        }
        rig.assert_quiet().await;
    }
}

#[tokio::test]
async fn case_14_a_free_model_needs_no_budget_and_keeps_to_its_rates() {
    let rig = Rig::with(Stage::always(ok(answer(10, 0, 5))), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"tier": "D", "wtu": "0", "per": "24h"}, {"requests": 2, "per": "1h"}]),
        );
    })
    .await;
    assert_eq!(rig.chat(json!({"model": "free"})).await.status, 200);
    let paid = rig.chat(json!({"model": "demo"})).await;
    assert_eq!(paid.code(), "insufficient_quota");
    assert_eq!(
        rig.chat(json!({"model": "free"})).await.code(),
        "rate_limit_exceeded"
    );
    assert_eq!(rig.wtu("acme").await, (0, 0));
}

#[tokio::test]
async fn case_17_an_overrun_is_recorded_and_blocks_the_next_call() {
    // The engine reports far more than was held.
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 5000))), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"tier": "B", "wtu": "1", "per": "24h"}]),
        );
    })
    .await;
    assert_eq!(rig.chat(json!({"max_tokens": 10})).await.status, 200);
    let balance = &rig.balances("acme").await[0];
    assert_eq!(balance.used + balance.debt, 14_000 + 5000 * 2000);
    assert!(balance.available < 0);
    let next = rig.chat(json!({"max_tokens": 1})).await;
    assert_eq!(
        (next.status, next.code().as_str()),
        (429, "insufficient_quota")
    );
    rig.assert_quiet().await;
}

#[tokio::test]
async fn case_19_a_refusal_by_one_limit_leaves_nothing_counted_in_the_others() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 1))), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"requests": 100, "per": "1h"}, {"concurrency": 10}]),
        );
        limit(
            config,
            "/tenants/0/projects/0",
            json!([{"requests": 1, "per": "1h"}]),
        );
        limit(
            config,
            "/tenants/0/projects/0/users/0",
            json!([{"concurrency": 10}]),
        );
        limit(
            config,
            "/tenants/0/projects/0/keys/0",
            json!([{"requests": 100, "per": "1h"}]),
        );
    })
    .await;
    let first = rig.chat(json!({})).await;
    assert_eq!(first.status, 200);
    for _ in 0..5 {
        let refused = rig.chat(json!({})).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (429, "rate_limit_exceeded")
        );
        assert!(
            refused.json()["error"]["message"]
                .as_str()
                .expect("text")
                .contains("acme/app")
        );
        let taken: Vec<(String, u64)> = rig
            .record(&refused)
            .limits
            .iter()
            .map(|limit| (format!("{}:{}", limit.account, limit.name), limit.held))
            .collect();
        let key = rig
            .record(&refused)
            .identity
            .as_ref()
            .expect("an identity")
            .key
            .clone();
        let expected = [
            ("acme:requests".to_owned(), 1),
            ("acme:concurrency".to_owned(), 0),
            ("acme/app:requests".to_owned(), 1),
            ("acme/app/ann:concurrency".to_owned(), 0),
            (format!("acme/app/ann/{key}:requests"), 1),
        ];
        assert_eq!(taken, expected);
    }
}

#[tokio::test]
async fn a_rate_limit_says_when_this_request_fits() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 1))), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"requests": 24, "per": "1d", "burst": 1}]),
        );
    })
    .await;
    let first = rig.chat(json!({})).await;
    assert_eq!(first.header("x-ratelimit-limit-requests"), "1");
    assert_eq!(first.header("x-ratelimit-remaining-requests"), "0");
    let refused = rig.chat(json!({})).await;
    let ms: u64 = refused
        .header("retry-after-ms")
        .parse()
        .expect("milliseconds");
    assert!((1..=3_600_000).contains(&ms), "{ms}");
    let seconds = ms.div_ceil(1000).to_string();
    assert_eq!(refused.header("retry-after"), seconds);
    assert_eq!(refused.header("x-should-retry"), "true");
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), "0");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("try again in"), "{message}");
}

#[tokio::test]
async fn tokens_per_hour_are_a_rate_and_not_a_quota() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 50))), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"tier": "B", "tokens": 100, "per": "1h", "name": "tph"}]),
        );
    })
    .await;
    let first = rig.chat(json!({"max_tokens": 50})).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit-tokens"), "100");
    let refused = rig.chat(json!({"max_tokens": 50})).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (429, "rate_limit_exceeded")
    );
    assert_eq!(refused.header("x-should-retry"), "true");
    assert!(!refused.header("x-ratelimit-reset-tokens").is_empty());
}

#[tokio::test]
async fn concurrency_is_given_back_when_the_answer_ends() {
    let stage = Stage::new(|_, _| Play::Stream(vec![data(&chunk("x", 14, 1)), Piece::Hang]));
    let rig = Rig::with(stage, |config| {
        limit(config, "/tenants/0", json!([{"concurrency": 1}]));
    })
    .await;
    let open = rig
        .open("/v1/chat/completions", chat(json!({"stream": true})))
        .await;
    assert_eq!(open.status(), 200);
    assert_eq!(rig.chat(json!({})).await.code(), "rate_limit_exceeded");
    drop(open);
    let again = rig
        .open("/v1/chat/completions", chat(json!({"stream": true})))
        .await;
    assert_eq!(again.status(), 200);
}

#[tokio::test]
async fn one_idempotency_key_runs_once_at_a_time() {
    let stage = Stage::new(|_, _| Play::Stream(vec![data(&chunk("x", 14, 1)), Piece::Hang]));
    let rig = Rig::new(stage).await;
    let request = |number: u8| -> Request<Full<bytes::Bytes>> {
        let mut request = post(
            "/v1/chat/completions",
            &key(number),
            chat(json!({"stream": true})),
        );
        request
            .headers_mut()
            .insert("idempotency-key", "once".parse().expect("a value"));
        request
    };
    let first = rig.governance.handle(request(1)).await;
    assert_eq!(first.status(), 200);
    let second = rig.send(request(1)).await;
    assert_eq!(
        (second.status, second.code().as_str()),
        (409, "in_progress")
    );
    assert_eq!(second.header("x-should-retry"), "false");
    assert_eq!(
        rig.governance.handle(request(2)).await.status(),
        200,
        "another key's own"
    );
    drop(first);
    assert_eq!(rig.governance.handle(request(1)).await.status(), 200);
}
