//! Scheduling case 33, as far as a scheduler without a watch can see it: engines die, and others take their addresses.

use crate::rig::{LIMIT, ask, assert_at_rest, completion_request, metric, proxy_with};
use crate::stub::{Place, Stub, completion};
use serde_json::json;

#[tokio::test]
async fn case_33_a_dead_address_gets_no_traffic_until_somebody_answers_there() {
    let stays = Stub::start(|_, _| completion()).await;
    let place = Place::new();
    let address = place.address.to_string();
    let dies = Stub::start_at(&address, |_, _| completion()).await;
    let settings = json!({"scrape": {"interval_ms": 50, "idle_interval_ms": 50}});
    let proxy = proxy_with(&[&stays, &dies], settings);
    for n in 0..4 {
        assert_eq!(ask(&proxy, n, completion_request()).await.status, 200);
    }
    assert_eq!(dies.count(), 2, "it was in use");
    drop(dies);
    for n in 4..104 {
        let answer = ask(&proxy, n, completion_request()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.headers["x-headpond-endpoint"], "e0");
    }
    // The third failure in a row is the last that a request pays for.
    let tried = metric(&proxy, &["attempts_total", "endpoint=\"e1\"", "failed"]);
    assert!((1..=3).contains(&tried), "{tried}");
    assert_eq!(metric(&proxy, &["endpoint_quarantined", "e1"]), 1);

    let replacement = Stub::start_at(&address, |_, _| completion()).await;
    let back = async {
        let mut n = 104;
        loop {
            let answer = ask(&proxy, n, completion_request()).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            if answer.headers["x-headpond-endpoint"] == "e1" {
                return;
            }
            n += 1;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, back)
        .await
        .expect("a probe finds it");
    // A probe came before any request.
    assert!(replacement.count() >= 2);
    assert_eq!(metric(&proxy, &["endpoint_quarantined", "e1"]), 0);
    assert_at_rest(&proxy);
}
