//! Files that are not what they should be.

use std::fs;

use governance_core::account::Tier;
use governance_core::ledger::Invariant;
use ledger_store::{OpenError, SqliteLedger, VerifyError, verify_file};

use crate::desk::{Desk, account, commit, policy, reservation};

async fn used(desk: &Desk) {
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("cap", Tier::D, 1000)])])
        .await
        .unwrap();
    for n in 0..5 {
        ledger
            .reserve(reservation(n, "acme", 100))
            .await
            .unwrap()
            .settle(commit(50));
    }
    ledger.close().await.unwrap();
}

fn open(desk: &Desk) -> OpenError {
    SqliteLedger::open(&desk.path(), desk.options.clone()).unwrap_err()
}

#[tokio::test]
async fn entries_are_neither_updated_nor_deleted() {
    let desk = Desk::new();
    used(&desk).await;
    let intruder = desk.intruder();
    for change in [
        "UPDATE entry SET d_used = 0",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE seq = 1",
    ] {
        let error = intruder.execute(change, []).unwrap_err();
        assert!(
            error.to_string().contains("append only"),
            "{change}: {error}"
        );
    }
    assert!(verify_file(&desk.path()).unwrap().is_green());
}

#[tokio::test]
async fn tampering_is_found() {
    let cases = [
        (
            "UPDATE entry SET d_used = d_used - 1 WHERE kind = 'commit' AND seq = (SELECT max(seq) FROM entry)",
            Invariant::Chain,
        ),
        (
            "UPDATE entry SET at = at + 1 WHERE seq = 2",
            Invariant::Chain,
        ),
        ("DELETE FROM entry WHERE seq = 3", Invariant::Chain),
        (
            "UPDATE win SET used = used - 50",
            Invariant::CountersAreEntries,
        ),
        (
            "UPDATE win SET held = held + 50",
            Invariant::CountersAreEntries,
        ),
        ("DELETE FROM win", Invariant::CountersAreEntries),
        (
            "DELETE FROM leg WHERE attempt_id = (SELECT min(attempt_id) FROM leg)",
            Invariant::AllLegsOrNone,
        ),
        (
            "DELETE FROM attempt WHERE id = (SELECT min(id) FROM attempt)",
            Invariant::AllLegsOrNone,
        ),
        (
            "UPDATE attempt SET state = 'refused' WHERE id = (SELECT min(id) FROM attempt)",
            Invariant::RefusedStaysRefused,
        ),
        (
            "UPDATE attempt SET state = 'sent' WHERE id = (SELECT min(id) FROM attempt)",
            Invariant::OneHoldOneEnd,
        ),
    ];
    for (change, invariant) in cases {
        let desk = Desk::new();
        used(&desk).await;
        let intruder = desk.intruder();
        intruder
            .execute_batch("DROP TRIGGER entry_is_not_updated; DROP TRIGGER entry_is_not_deleted;")
            .unwrap();
        assert!(intruder.execute(change, []).unwrap() > 0, "{change}");
        let report = verify_file(&desk.path()).unwrap();
        let found = report
            .violations
            .iter()
            .any(|violation| violation.invariant == invariant);
        assert!(found, "{change}: {:?}", report.violations);
    }
}

#[tokio::test]
async fn a_ledger_has_one_owner() {
    let desk = Desk::new();
    let ledger = desk.open();
    assert!(matches!(open(&desk), OpenError::InUse { .. }));
    assert!(
        verify_file(&desk.path()).unwrap().is_green(),
        "anyone may check it"
    );
    ledger.close().await.unwrap();
    drop(desk.open());
}

#[tokio::test]
async fn a_database_another_program_has_locked_is_said_to_be() {
    let desk = Desk::new();
    used(&desk).await;
    let intruder = desk.intruder();
    intruder
        .execute_batch(
            "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; UPDATE meta SET value = value",
        )
        .unwrap();
    let error = open(&desk);
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_touched() {
    let desk = Desk::new();
    used(&desk).await;
    desk.intruder()
        .execute_batch("PRAGMA user_version = 99")
        .unwrap();
    let error = open(&desk);
    assert!(
        matches!(error, OpenError::Newer { found: 99, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("upgrade"), "{error}");
    assert!(matches!(
        verify_file(&desk.path()),
        Err(VerifyError::Open(OpenError::Newer { .. }))
    ));
}

#[tokio::test]
async fn what_is_not_a_ledger_is_refused() {
    let desk = Desk::new();
    fs::write(desk.path(), [0x5A; 8192]).unwrap();
    assert!(matches!(open(&desk), OpenError::Corrupt { .. }));
    assert!(verify_file(&desk.path()).is_err());
    fs::remove_file(desk.path()).unwrap();
    desk.intruder()
        .execute_batch("CREATE TABLE other (x)")
        .unwrap();
    assert!(matches!(open(&desk), OpenError::Corrupt { .. }));
    fs::remove_file(desk.path()).unwrap();
    assert!(matches!(
        verify_file(&desk.path()),
        Err(VerifyError::Missing(_))
    ));
    let nowhere = desk.path().join("no/such/directory");
    let error = SqliteLedger::open(&nowhere, desk.options.clone()).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }));
}

#[tokio::test]
async fn a_damaged_file_is_refused_or_found_by_verify() {
    let desk = Desk::new();
    used(&desk).await;
    desk.intruder()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    let whole = fs::read(desk.path()).unwrap();
    for page in 1..whole.len() / 4096 {
        let mut damaged = whole.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0xEE);
        fs::write(desk.path(), &damaged).unwrap();
        let verified = verify_file(&desk.path()).is_ok_and(|report| report.is_green());
        let opened = SqliteLedger::open(&desk.path(), desk.options.clone());
        // Pages of indexes and of tables that are not part of the chain may go unseen; nothing panics.
        if let Ok(ledger) = opened {
            ledger.close().await.unwrap();
        } else {
            assert!(!verified || page > 0);
        }
    }
    fs::write(desk.path(), &whole[..whole.len() / 2]).unwrap();
    let half = verify_file(&desk.path());
    assert!(!half.is_ok_and(|report| report.is_green()));
}
