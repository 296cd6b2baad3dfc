//! The admin API: keys under the one ceiling, accounts, the ledger's check. Cases 11, 15 and 46.

use serde_json::{Value, json};

use crate::support::*;

async fn rig() -> Rig {
    Rig::new(Stage::always(ok(answer(14, 0, 5)))).await
}

fn new_key(extra: Value) -> Value {
    let mut body = json!({"tenant": "acme", "project": "app", "name": "fresh"});
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn a_key_is_made_used_rotated_and_revoked() {
    let rig = rig().await;
    let body = new_key(
        json!({"user": "bob", "models": ["demo-alias"], "budget_wtu": "1.5", "expires_in": 3600}),
    );
    let made = rig.admin("POST", "/admin/v1/keys", ADMIN_TOKEN, body).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let shown = made.json();
    assert_eq!(
        shown["models"],
        json!({"only": ["demo"]}),
        "what was stored is shown"
    );
    assert_eq!(
        (&shown["budget_wtu"], &shown["role"]),
        (&json!("1.5"), &json!("member"))
    );
    assert_eq!(shown["owner"], "acme/app/bob");
    let text = shown["key"].as_str().expect("the key, once").to_owned();
    let public = shown["public"].as_str().expect("a public part").to_owned();

    let used = rig
        .send(post(
            "/v1/chat/completions",
            &text,
            chat(json!({"max_tokens": 5})),
        ))
        .await;
    assert_eq!(used.status, 200, "{}", used.text());
    let denied = rig
        .send(post(
            "/v1/chat/completions",
            &text,
            chat(json!({"model": "free"})),
        ))
        .await;
    assert_eq!(denied.status, 404);

    let listed = rig
        .admin("GET", "/admin/v1/keys", ADMIN_TOKEN, json!(null))
        .await;
    assert!(listed.text().contains(&public) && !listed.text().contains(&text));

    let path = format!("/admin/v1/keys/{public}");
    let rotated = rig
        .admin(
            "POST",
            &format!("{path}/rotate"),
            ADMIN_TOKEN,
            json!({"overlap_seconds": 60}),
        )
        .await;
    assert_eq!(rotated.status, 201, "{}", rotated.text());
    let next = rotated.json()["key"]
        .as_str()
        .expect("a new key")
        .to_owned();
    for key in [&text, &next] {
        assert_eq!(
            rig.send(get("/v1/models", key)).await.status,
            200,
            "both work in the overlap"
        );
    }
    assert_eq!(
        rig.admin("DELETE", &path, ADMIN_TOKEN, json!(null))
            .await
            .status,
        200
    );
    assert_eq!(
        rig.send(get("/v1/models", &text)).await.status,
        401,
        "at once"
    );
    assert_eq!(rig.send(get("/v1/models", &next)).await.status, 200);
}

#[tokio::test]
async fn case_11_an_unexpected_field_is_named_and_nothing_is_stored() {
    let rig = rig().await;
    for (extra, param) in [
        (json!({"budget": "5"}), "budget"),
        (json!({"limits": []}), "limits"),
        (json!({"models": "demo"}), ""),
        (json!({"models": ["nothing"]}), "models"),
        (json!({"role": "admin"}), "role"),
        (json!({"project": "nothing"}), "project"),
        (json!({"project": "app/ann"}), "project"),
        (json!({"user": "a/b"}), "user"),
        (json!({"name": ""}), "name"),
        (json!({"expires_in": 0}), "expires_in"),
        (json!({"expires_in": -5}), ""),
    ] {
        let refused = rig
            .admin(
                "POST",
                "/admin/v1/keys",
                ADMIN_TOKEN,
                new_key(extra.clone()),
            )
            .await;
        assert_eq!(refused.status, 400, "{extra} {}", refused.text());
        let named = refused.json()["error"]["param"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(named, param, "{extra}");
    }
    let listed = rig
        .admin("GET", "/admin/v1/keys", ADMIN_TOKEN, json!(null))
        .await;
    assert!(!listed.text().contains("fresh"));
}

#[tokio::test]
async fn case_15_budgets_that_are_no_amounts_are_refused() {
    let rig = rig().await;
    for budget in [
        json!(-1),
        json!("NaN"),
        json!("1e400"),
        json!(""),
        json!("inf"),
        json!([]),
        json!("1.0000001"),
    ] {
        let body = new_key(json!({"budget_wtu": budget}));
        let refused = rig.admin("POST", "/admin/v1/keys", ADMIN_TOKEN, body).await;
        assert_eq!(refused.status, 400, "{budget}");
        assert_eq!(refused.json()["error"]["param"], "budget_wtu");
    }
}

#[tokio::test]
async fn case_46_nobody_gives_what_they_do_not_have() {
    let rig = rig().await;
    let body =
        new_key(json!({"role": "lead", "models": ["demo"], "budget_wtu": 10, "expires_in": 1000}));
    let lead = rig
        .admin("POST", "/admin/v1/keys", ADMIN_TOKEN, body)
        .await
        .json()["key"]
        .as_str()
        .expect("a key")
        .to_owned();
    let fine = new_key(json!({"models": ["demo"], "budget_wtu": 5, "expires_in": 500}));
    let made = rig
        .admin("POST", "/admin/v1/keys", &lead, fine.clone())
        .await;
    assert_eq!(made.status, 201, "{}", made.text());
    let mine = made.json()["public"]
        .as_str()
        .expect("a public part")
        .to_owned();
    for beyond in [
        json!({"models": ["free"]}),
        json!({"models": null}),
        json!({"budget_wtu": 11}),
        json!({"budget_wtu": null}),
        json!({"expires_in": 2000}),
        json!({"expires_in": null}),
    ] {
        let mut create = fine.clone();
        let mut update = json!({"version": 1});
        for (name, value) in beyond.as_object().expect("an object") {
            create[name] = value.clone();
            update[name] = value.clone();
        }
        let created = rig.admin("POST", "/admin/v1/keys", &lead, create).await;
        assert_eq!(
            (created.status, created.code().as_str()),
            (403, "forbidden"),
            "create {beyond}"
        );
        let updated = rig
            .admin("PATCH", &format!("/admin/v1/keys/{mine}"), &lead, update)
            .await;
        assert_eq!(
            (updated.status, updated.code().as_str()),
            (403, "forbidden"),
            "update {beyond} {}",
            updated.text()
        );
    }
    let elsewhere =
        new_key(json!({"project": "other", "models": ["demo"], "budget_wtu": 1, "expires_in": 10}));
    assert_eq!(
        rig.admin("POST", "/admin/v1/keys", &lead, elsewhere)
            .await
            .status,
        403
    );
    // A key of another project is as good as none; one with more than the lead has cannot be rotated.
    let foreign = key(5)[3..15].to_owned();
    for (method, call) in [("GET", ""), ("DELETE", ""), ("POST", "/rotate")] {
        let path = format!("/admin/v1/keys/{foreign}{call}");
        assert_eq!(
            rig.admin(method, &path, &lead, json!(null)).await.status,
            404,
            "{method}{call}"
        );
    }
    let richer = key(1)[3..15].to_owned();
    let path = format!("/admin/v1/keys/{richer}/rotate");
    assert_eq!(
        rig.admin("POST", &path, &lead, json!(null)).await.status,
        403
    );
    // Lowering is always possible.
    let lower = json!({"version": 1, "budget_wtu": "0.5"});
    let lowered = rig
        .admin("PATCH", &format!("/admin/v1/keys/{mine}"), &lead, lower)
        .await;
    assert_eq!(
        (lowered.status, &lowered.json()["budget_wtu"]),
        (200, &json!("0.5"))
    );
}

#[tokio::test]
async fn the_admin_api_is_closed_to_everyone_else() {
    let rig = rig().await;
    for (token, status) in [
        (key(1), 403),
        (key(9), 401),
        ("hello".to_owned(), 401),
        (key(3), 200),
    ] {
        assert_eq!(
            rig.admin("GET", "/admin/v1/keys", &token, json!(null))
                .await
                .status,
            status
        );
    }
    let lead = key(3);
    assert_eq!(
        rig.admin("GET", "/admin/v1/ledger/verify", &lead, json!(null))
            .await
            .status,
        403
    );
    assert_eq!(
        rig.admin("GET", "/admin/v1/accounts/umbrella/lab", &lead, json!(null))
            .await
            .status,
        404
    );
    assert_eq!(
        rig.admin("GET", "/admin/v1/accounts/acme/app", &lead, json!(null))
            .await
            .status,
        200
    );
    let listed = rig
        .admin("GET", "/admin/v1/accounts", &lead, json!(null))
        .await;
    assert!(listed.text().contains("acme/app/ann") && !listed.text().contains("umbrella"));
    assert_eq!(
        rig.admin("GET", "/admin/v1/nothing", ADMIN_TOKEN, json!(null))
            .await
            .status,
        404
    );
    let wrong = rig
        .admin("PUT", "/admin/v1/keys", ADMIN_TOKEN, json!(null))
        .await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, "GET, POST"));
}

#[tokio::test]
async fn fields_without_names_are_no_key() {
    let rig = rig().await;
    for body in [
        json!(["acme", "web", null, "n", null, null, null, null]),
        json!(null),
    ] {
        let answer = rig.admin("POST", "/admin/v1/keys", ADMIN_TOKEN, body).await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "invalid_json".to_owned())
        );
    }
}

#[tokio::test]
async fn accounts_show_where_they_stand_and_the_ledger_agrees() {
    let rig = Rig::with(Stage::always(ok(answer(14, 0, 5))), |config| {
        limit(
            config,
            "/tenants/0",
            json!([{"tier": "D", "wtu": "1", "per": "24h", "name": "cap"}]),
        );
    })
    .await;
    assert_eq!(rig.chat(json!({"max_tokens": 5})).await.status, 200);
    let acme = rig
        .admin("GET", "/admin/v1/accounts/acme", ADMIN_TOKEN, json!(null))
        .await
        .json();
    let cap = &acme["balances"][0];
    assert_eq!(
        (&cap["policy"], &cap["tier"], &cap["used"], &cap["held"]),
        (&json!("cap"), &json!("D"), &json!(24_000), &json!(0))
    );
    assert_eq!(cap["available"], 1_000_000 - 24_000);
    rig.ledger.flush().await.expect("the ledger answers");
    let checked = rig
        .admin("GET", "/admin/v1/ledger/verify", ADMIN_TOKEN, json!(null))
        .await
        .json();
    assert_eq!(
        (&checked["green"], &checked["violation_count"]),
        (&json!(true), &json!(0))
    );
}

#[tokio::test]
async fn a_key_whose_secret_is_replaced_in_the_file_ends_and_a_rotated_one_stays() {
    use governance_proxy::Governance;
    use governance_proxy::config::{Config, File};
    let rig = rig().await;
    let rotated = rig
        .admin(
            "POST",
            &format!("/admin/v1/keys/{}/rotate", &key(2)[3..15]),
            ADMIN_TOKEN,
            json!({"overlap_seconds": 60}),
        )
        .await;
    let rotated = rotated.json()["key"].as_str().expect("a key").to_owned();
    let config = standard(&rig.dir);
    let secret = &config["tenants"][0]["projects"][0]["keys"][0]["secret"]["file"];
    std::fs::write(secret.as_str().expect("a path"), key(9)).expect("a key file");
    let file: File = serde_json::from_value(config).expect("a configuration");
    let config = Config::check(file).expect("a valid configuration");
    let next = Governance::new(config, rig.ledger.clone(), rig.stage.clone())
        .await
        .expect("L1 starts");
    for (key, status) in [(key(1), 401), (key(9), 200), (key(2), 200), (rotated, 200)] {
        assert_eq!(next.handle(get("/v1/models", &key)).await.status(), status);
    }
}

#[tokio::test]
async fn a_key_that_leaves_the_file_ends_and_one_of_the_api_stays() {
    use governance_proxy::Governance;
    use governance_proxy::config::{Config, File};
    let rig = rig().await;
    let made = rig
        .admin("POST", "/admin/v1/keys", ADMIN_TOKEN, new_key(json!({})))
        .await;
    let made = made.json()["key"].as_str().expect("a key").to_owned();
    let mut config = standard(&rig.dir);
    config["tenants"][0]["projects"][0]["keys"]
        .as_array_mut()
        .expect("keys")
        .remove(0);
    config["tenants"].as_array_mut().expect("tenants").remove(1);
    let file: File = serde_json::from_value(config).expect("a configuration");
    let config = Config::check(file).expect("a valid configuration");
    let next = Governance::new(config, rig.ledger.clone(), rig.stage.clone())
        .await
        .expect("L1 starts");
    for (key, status) in [(key(1), 401), (key(2), 200), (made, 200), (key(6), 401)] {
        assert_eq!(next.handle(get("/v1/models", &key)).await.status(), status);
    }
}
