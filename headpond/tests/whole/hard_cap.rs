//! A hard cap under a crowd: what is admitted fits, to the micro-WTU, whoever comes at once.

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::process::Running;
use crate::site::{PATIENT, Site, at_rest, chat, fault, record, standing};
use crate::wire::{self, Answer};

const CROWD: usize = 200;
const ROOM: u64 = 20;

fn limits(micro_wtu: u64) -> String {
    format!(
        "[{{ tier: D, wtu: \"{}.{:06}\", per: 1d }}]",
        micro_wtu / 1_000_000,
        micro_wtu % 1_000_000
    )
}

/// What one such request holds, as its decision record says.
async fn hold_of(request: &Value) -> u64 {
    let site = Site::new(&[("probe", &limits(1_000_000_000))]);
    let running = site.up(&["--engines", "1", "--speed", "50"]);
    let answer = wire::chat(running.url(), &site.key("probe"), request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let record = record(&running, answer.header("x-request-id")).await;
    record["reservation"]["held_uwtu"]
        .as_u64()
        .expect("a reservation")
}

fn crowd(running: &Running, key: &str, request: &Value) -> JoinSet<Answer> {
    let mut clients = JoinSet::new();
    for _ in 0..CROWD {
        let (url, key, request) = (running.url().to_owned(), key.to_owned(), request.clone());
        clients.spawn(async move { wire::chat(&url, &key, &request).await });
    }
    clients
}

fn assert_out_of_quota(answer: &Answer) {
    assert_eq!(
        (answer.status.as_u16(), answer.code().as_str()),
        (429, "insufficient_quota"),
        "{}",
        answer.text()
    );
    assert_eq!(answer.header("x-headpond-reason"), "insufficient_quota");
    let most = match answer.header("x-should-retry") {
        "true" => 5,
        "false" => 86_400,
        other => panic!("x-should-retry: {other}"),
    };
    let seconds: u64 = answer
        .header("retry-after")
        .parse()
        .expect("seconds until others give back or the window starts over");
    assert!((1..=most).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_crowd_of_two_hundred_gets_exactly_the_twenty_places_there_are() {
    let request = chat("how many of us fit through this door?", 16, false);
    let each = hold_of(&request).await;
    let limit = ROOM * each;
    let site = Site::with(&[("capped", &limits(limit))], "", PATIENT);
    let running = site.up(&["--speed", "50"]);
    // Nothing settles while nothing is computed.
    fault(&running, &json!({ "fault": "stall" })).await;
    let mut clients = crowd(&running, &site.key("capped"), &request);
    for _ in 0..CROWD as u64 - ROOM {
        assert_out_of_quota(
            &clients
                .join_next()
                .await
                .expect("180 are refused")
                .expect("no panic"),
        );
    }
    assert_eq!(
        standing(&running, "capped").await,
        (0, limit),
        "the other twenty are held, and fill the cap"
    );
    site.verify();
    let late = wire::chat(running.url(), &site.key("capped"), &request).await;
    assert_out_of_quota(&late);
    assert_eq!(late.header("x-should-retry"), "true", "nothing is used");

    fault(&running, &json!({ "fault": "clear" })).await;
    let admitted = clients.join_all().await;
    assert_eq!(admitted.len() as u64, ROOM);
    assert!(admitted.iter().all(|answer| answer.status == 200));
    at_rest(&running).await;
    let (used, held) = standing(&running, "capped").await;
    assert_eq!(held, 0);
    assert!(0 < used && used <= limit, "{used} of {limit}");
    assert!(running.stop().success());
    site.verify();
    let charged: u64 = site
        .attempts()
        .values()
        .map(|attempt| attempt.charged)
        .sum();
    assert_eq!(charged, used, "the account has what its attempts cost");
}

#[tokio::test]
async fn settling_all_the_time_never_takes_more_than_the_cap() {
    let request = chat("again and again", 64, false);
    let each = hold_of(&request).await;
    let limit = ROOM * each + each / 3;
    let site = Site::with(&[("capped", &limits(limit))], "", PATIENT);
    let running = site.up(&["--speed", "50"]);
    let (mut admitted, mut lowered, mut looks) = (0, 0, 0);
    for _ in 0..3 {
        let mut clients = crowd(&running, &site.key("capped"), &request);
        while !clients.is_empty() {
            tokio::select! {
                biased;
                Some(answer) = clients.join_next() => {
                    let answer = answer.expect("no panic");
                    admitted += u64::from(answer.status == 200);
                    lowered += u64::from(!answer.header("x-headpond-max-tokens").is_empty());
                    if answer.status != 200 {
                        assert_out_of_quota(&answer);
                    }
                }
                (used, held) = standing(&running, "capped") => {
                    looks += 1;
                    assert!(used + held <= limit, "{used} used and {held} held of {limit}");
                }
            }
        }
        site.verify();
    }
    assert!(
        admitted > ROOM,
        "room came back as others settled: {admitted}"
    );
    assert!(
        lowered > 0 && looks > 0,
        "the last of a budget is lowered, not refused: {lowered}, {looks} looks"
    );
    at_rest(&running).await;
    let (used, held) = standing(&running, "capped").await;
    assert!(
        used <= limit && held == 0,
        "{used} used and {held} held of {limit}"
    );
    // What is left does not pay one more token of output.
    let url = format!("{}/v1/chat/completions", running.url());
    let last = wire::send(Method::POST, &url, &site.key("capped"), request.to_string())
        .await
        .expect("an answer");
    assert_out_of_quota(&last);
    assert!(running.stop().success());
    site.verify();
}
