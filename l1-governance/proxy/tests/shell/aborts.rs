//! A thousand clients that leave at random points: what they are charged is what the engine did.

use std::pin::pin;

use governance_context::Work;
use serde_json::json;

use crate::support::*;

/// A small generator, so that a failing run can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[tokio::test]
async fn a_thousand_aborts_are_charged_within_one_token_each() {
    let seed = 20_261_130;
    let mut random = Random(seed);
    let stage = Stage::new(|_, request| {
        // Requests that are given up before there is an answer say so.
        if request.headers().contains_key("openai-hang") {
            return Play::Hang;
        }
        let mut pieces = whole_stream(14, 20);
        pieces.insert(0, data("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}],\"usage\":{\"prompt_tokens\":14,\"completion_tokens\":0,\"total_tokens\":14}}\n\n".replace("delta", "d\\u0065lta").as_str()));
        Play::Stream(pieces)
    });
    let rig = Rig::with(stage, |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"concurrency": 1}, {"tier": "D", "wtu": "1000", "per": "24h"}]),
        );
    })
    .await;
    *rig.stage.work.lock().expect("unpoisoned") = Some(Work::None);
    let mut charged = 0;
    for round in 0..1000 {
        let body = chat(json!({"stream": true, "max_tokens": 20}));
        let mut request = post("/v1/chat/completions", &key(1), body);
        let frames = random.below(24);
        if frames == 0 {
            request
                .headers_mut()
                .insert("openai-hang", "1".parse().expect("a value"));
            let mut request = pin!(rig.governance.handle(request));
            until_called(&rig, round + 1, request.as_mut()).await;
        } else {
            let mut body = rig.governance.handle(request).await.into_body();
            for _ in 1..frames {
                if frame(&mut body).await.is_none() {
                    break;
                }
            }
        }
        let record = rig.newest();
        let settlement = record.settlement.as_ref().expect("a settlement");
        let attempt = record.reservation.as_ref().expect("a reservation").attempt;
        let truth = rig
            .stage
            .truth
            .lock()
            .expect("unpoisoned")
            .get(&attempt)
            .copied()
            .unwrap_or(0);
        let error = truth.abs_diff(settlement.output_tokens);
        assert!(
            error <= 1,
            "seed {seed} round {round} frames {frames}: {truth} {settlement:?}"
        );
        assert!(!settlement.estimated);
        assert_eq!(
            settlement.state,
            if frames == 0 { "released" } else { "committed" }
        );
        charged += settlement.charged_uwtu.0;
    }
    rig.assert_quiet().await;
    assert_eq!(rig.wtu("acme").await, (charged, 0));
    assert_eq!(rig.wtu("acme/app/ann").await, (charged, 0));
}
