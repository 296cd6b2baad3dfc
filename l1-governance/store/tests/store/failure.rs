//! Writes that fail or hang.

use std::time::{Duration, Instant};

use governance_core::account::Tier;
use governance_core::ledger::State;
use ledger_store::{ReserveError, SqliteLedger, Unavailable};

use crate::desk::{Desk, account, assert_green, attempt, commit, counters, policy, reservation};

const BREAK: &str = "CREATE TRIGGER broken BEFORE INSERT ON attempt BEGIN SELECT RAISE(ABORT, 'the disk says no'); END";
const MEND: &str = "DROP TRIGGER broken";

async fn recovered(ledger: &SqliteLedger) {
    while ledger.flush().await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn case_03_a_strict_hold_whose_write_fails_is_never_admitted() {
    let desk = Desk::new();
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("cap", Tier::D, 1000)])])
        .await
        .unwrap();
    let intruder = desk.intruder();
    intruder.execute_batch(BREAK).unwrap();
    for n in 0..5 {
        let refused = ledger
            .reserve(reservation(n, "acme", 100))
            .await
            .unwrap_err();
        assert!(
            matches!(refused, ReserveError::Unavailable(Unavailable::Failed(_))),
            "{refused:?}"
        );
    }
    intruder.execute_batch(MEND).unwrap();
    recovered(&ledger).await;
    assert_eq!(counters(&ledger, "acme").await, (0, 0, 0));
    assert_eq!(ledger.attempt(attempt(0)).await.unwrap(), None);
    ledger
        .reserve(reservation(9, "acme", 1000))
        .await
        .unwrap()
        .settle(commit(1000));
    assert_green(&ledger).await;
}

#[tokio::test]
async fn what_was_granted_or_settled_before_a_failed_write_is_done_again() {
    let desk = Desk::new();
    let ledger = desk.open();
    ledger
        .declare(vec![
            account("soft", &[policy("soft", Tier::B, 1000)]),
            account("hard", &[policy("cap", Tier::D, 1000)]),
        ])
        .await
        .unwrap();
    let hard = ledger.reserve(reservation(1, "hard", 100)).await.unwrap();
    let intruder = desk.intruder();
    intruder.execute_batch(BREAK).unwrap();
    let running = ledger.reserve(reservation(2, "soft", 200)).await.unwrap();
    let ended = ledger.reserve(reservation(3, "soft", 300)).await;
    hard.settle(commit(60));
    if let Ok(ended) = ended {
        ended.settle(commit(250));
    }
    assert!(ledger.flush().await.is_err());
    intruder.execute_batch(MEND).unwrap();
    recovered(&ledger).await;
    assert_eq!(counters(&ledger, "hard").await, (60, 0, 0));
    let (used, held, _) = counters(&ledger, "soft").await;
    assert!((used == 250 || used == 0) && held == 200, "{used} {held}");
    running.settle(commit(150));
    assert_green(&ledger).await;
    assert_eq!(counters(&ledger, "soft").await, (used + 150, 0, 0));
}

#[tokio::test]
async fn a_frozen_disk_is_not_waited_for() {
    let mut desk = Desk::new();
    let ledger = desk.open();
    ledger
        .declare(vec![
            account("soft", &[policy("soft", Tier::B, 1000)]),
            account("hard", &[policy("cap", Tier::D, 1000)]),
        ])
        .await
        .unwrap();
    ledger.close().await.unwrap();
    desk.options.patience = Duration::from_millis(50);
    let ledger = desk.open();
    ledger.flush().await.unwrap();
    let intruder = desk.intruder();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let slow = ledger
        .reserve(reservation(1, "hard", 100))
        .await
        .unwrap_err();
    assert!(matches!(slow, ReserveError::Unavailable(_)), "{slow:?}");
    // The write is under way for longer than anyone may wait: what needs no disk is refused as well.
    // SQLite gives up a write after a while; what is granted then is the next.
    let (begun, mut n) = (Instant::now(), 2);
    let frozen = loop {
        assert!(begun.elapsed() < Duration::from_mins(1), "never refused");
        match ledger.reserve(reservation(n, "soft", 1)).await {
            Ok(hold) => hold.settle(commit(0)),
            Err(ReserveError::Unavailable(Unavailable::Failed(_))) => {}
            Err(error) => break error,
        }
        n += 1;
        tokio::task::yield_now().await;
    };
    assert_eq!(frozen, ReserveError::Unavailable(Unavailable::Frozen));
    intruder.execute_batch("ROLLBACK").unwrap();
    recovered(&ledger).await;
    assert_eq!(
        counters(&ledger, "hard").await,
        (0, 0, 0),
        "granted too late is released"
    );
    let row = ledger.attempt(attempt(1)).await.unwrap();
    assert!(row.is_none_or(|row| row.state == State::Released));
    assert_green(&ledger).await;
}

/// What the write of a hold leaves on disk, taken from a twin of the ledger in which it succeeded.
const REACHED_THE_DISK: &str = "INSERT OR REPLACE INTO main.win SELECT * FROM twin.win;
    INSERT OR IGNORE INTO main.attempt SELECT * FROM twin.attempt;
    INSERT OR IGNORE INTO main.leg SELECT * FROM twin.leg;
    INSERT OR IGNORE INTO main.entry SELECT * FROM twin.entry;";
const NO_RELEASE: &str = "CREATE TRIGGER broken BEFORE INSERT ON entry BEGIN SELECT RAISE(ABORT, 'no release today'); END";

#[tokio::test]
async fn a_hold_that_was_given_up_and_is_on_disk_is_released_even_if_its_release_fails_to_be_written()
 {
    let desk = Desk::new();
    let ledger = desk.open();
    let hard = account("hard", &[policy("cap", Tier::D, 1000)]);
    ledger.declare(vec![hard]).await.unwrap();
    let intruder = desk.intruder();
    let twin = desk.path().with_file_name("twin.db");
    let run = |statements: &str| {
        let statements = statements.replace("TWIN", twin.to_str().unwrap());
        intruder.execute_batch(&statements).unwrap();
    };
    run("VACUUM INTO 'TWIN'");
    let other = SqliteLedger::open(&twin, desk.options.clone()).unwrap();
    let hold = other.reserve(reservation(1, "hard", 100)).await.unwrap();
    other.close().await.unwrap();

    run("ATTACH 'TWIN' AS twin; BEGIN IMMEDIATE");
    let given_up = ledger.reserve(reservation(1, "hard", 100)).await;
    assert!(given_up.is_err(), "its write was reported as failed");
    run(&format!("{REACHED_THE_DISK} {NO_RELEASE}; COMMIT"));
    loop {
        match ledger.flush().await {
            Err(Unavailable::Failed(why)) if why.contains("no release today") => break,
            _ => tokio::task::yield_now().await,
        }
    }
    run(MEND);
    recovered(&ledger).await;
    let row = ledger.attempt(attempt(1)).await.unwrap();
    assert_eq!(row.map(|row| row.state), Some(State::Released));
    assert_eq!(counters(&ledger, "hard").await, (0, 0, 0));
    assert_green(&ledger).await;
    drop(hold);
}
