//! Files that older versions wrote.

use governance_core::account::Tier;
use governance_core::keys::{Models, Role, Scope};
use ledger_store::{By, NewKey, verify_file};

use crate::desk::{Desk, account, assert_green, commit, id, policy, reservation};

const V1: &str = include_str!("../../src/schema/0001_ledger.sql");

/// Puts what a ledger holds into the schema of the first version.
fn as_version_1(desk: &Desk) {
    let path = desk.path();
    let newer = path.with_extension("newer");
    desk.intruder()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    std::fs::rename(&path, &newer).unwrap();
    let old = desk.intruder();
    old.execute_batch(V1).unwrap();
    old.execute("ATTACH ? AS newer", [newer.to_str().unwrap()])
        .unwrap();
    for table in [
        "meta",
        "account",
        "policy",
        "win",
        "attempt",
        "leg",
        "entry",
        "virtual_key",
    ] {
        let columns =
            format!("SELECT group_concat(name) FROM pragma_table_info('{table}', 'main')");
        let columns: String = old.query_row(&columns, [], |row| row.get(0)).unwrap();
        let copy =
            format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}");
        old.execute(&copy, []).unwrap();
    }
    old.execute_batch("PRAGMA user_version = 1; PRAGMA application_id = 0x48504C47;")
        .unwrap();
}

#[tokio::test]
async fn a_ledger_of_version_1_goes_on_with_its_keys_and_balances() {
    let desk = Desk::new();
    let ledger = desk.open();
    let accounts = vec![
        account("acme", &[policy("cap", Tier::D, 1000)]),
        account("acme/search", &[]),
    ];
    ledger.declare(accounts).await.unwrap();
    let scope = Scope {
        models: Models::All,
        budget: None,
        expires: None,
        role: Role::Member,
        objective: None,
    };
    let new = NewKey {
        owner: id("acme/search"),
        name: "old".to_owned(),
        scope: scope.clone(),
    };
    let (text, record) = ledger.create_key(By::Operator, new).await.unwrap();
    let hold = ledger.reserve(reservation(1, "acme/search", 100)).await;
    hold.unwrap().settle(commit(50));
    ledger.close().await.unwrap();

    as_version_1(&desk);
    assert!(verify_file(&desk.path()).unwrap().is_green());
    let ledger = desk.open();
    let found = ledger.authenticate(text.reveal()).unwrap();
    assert_eq!((found.public, &found.scope), (record.public, &scope));
    assert!(
        ledger
            .reserve(reservation(2, "acme/search", 951))
            .await
            .is_err()
    );
    ledger
        .reserve(reservation(3, "acme/search", 950))
        .await
        .unwrap()
        .settle(commit(950));
    ledger.close().await.unwrap();
    assert_green(&desk.open()).await;
}
