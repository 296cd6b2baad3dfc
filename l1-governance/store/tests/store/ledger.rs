use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use governance_core::account::Tier;
use governance_core::ledger::{Reason, Refusal, Reservation, Settlement, State};
use ledger_store::{Hold, ReserveError, SqliteLedger, Unavailable};
use tokio::task::JoinSet;

use crate::desk::{
    Desk, NOW, account, assert_green, attempt, commit, counters, id, observed, policy, reservation,
};

async fn parallel(
    ledger: &SqliteLedger,
    reservations: Vec<Reservation>,
) -> Vec<Result<Hold, ReserveError>> {
    let mut tasks = JoinSet::new();
    for reservation in reservations {
        let ledger = ledger.clone();
        tasks.spawn(async move { ledger.reserve(reservation).await });
    }
    tasks.join_all().await
}

async fn room_for(calls: u64, room: u64) {
    let desk = Desk::new();
    let ledger = desk.open();
    let cap = policy("cap", Tier::D, room * 100);
    ledger
        .declare(vec![account("acme", &[cap]), account("acme/key", &[])])
        .await
        .unwrap();
    let reservations = (0..calls)
        .map(|n| reservation(n, "acme/key", 100))
        .collect();
    let results = parallel(&ledger, reservations).await;
    let refused = results
        .iter()
        .filter(|result| matches!(result, Err(ReserveError::Refused(Refusal::NoRoom(_)))));
    assert_eq!(refused.count() as u64, calls - room);
    let holds: Vec<Hold> = results.into_iter().flatten().collect();
    assert_eq!(holds.len() as u64, room);
    assert_eq!(counters(&ledger, "acme").await, (0, room * 100, 0));
    for hold in holds {
        hold.settle(commit(100));
    }
    assert_green(&ledger).await;
    assert_eq!(counters(&ledger, "acme").await, (room * 100, 0, 0));
    assert!(
        ledger
            .reserve(reservation(calls, "acme/key", 1))
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn case_01_fifty_parallel_calls_with_room_for_five() {
    room_for(50, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_parallel_calls_with_room_for_twenty() {
    room_for(200, 20).await;
}

#[tokio::test]
async fn case_09_a_panic_after_the_hold_leaves_an_unknown_end_with_what_was_seen() {
    let desk = Desk::new();
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("cap", Tier::D, 1000)])])
        .await
        .unwrap();
    let mut hold = ledger.reserve(reservation(1, "acme", 100)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        hold.note(observed(30));
        panic!("the handler panics");
    });
    assert!(tasks.join_next().await.unwrap().is_err());
    ledger.flush().await.unwrap();
    let row = ledger.attempt(attempt(1)).await.unwrap().unwrap();
    assert_eq!(
        (row.state, row.reason),
        (State::Unknown, Some(Reason::Dropped))
    );
    assert_eq!(row.usage.unwrap().0.total(), 30);
    assert_eq!(counters(&ledger, "acme").await, (0, 100, 0));
    let report = ledger.verify().await.unwrap();
    assert_eq!((report.unknown.attempts, report.unknown.held), (1, 100));
    ledger
        .settle_attempt(attempt(1), commit(40))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(counters(&ledger, "acme").await, (40, 0, 0));
    assert_green(&ledger).await;
}

#[tokio::test]
async fn a_reservation_nobody_waits_for_is_released() {
    let desk = Desk::new();
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("cap", Tier::D, 1000)])])
        .await
        .unwrap();
    for n in 0..20 {
        let mut waiting = pin!(ledger.reserve(reservation(n, "acme", 50)));
        match poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await {
            Poll::Pending => {}
            // The disk was faster than this line.
            Poll::Ready(hold) => hold.unwrap().settle(Settlement::Release {
                reason: Reason::NotDispatched,
            }),
        }
    }
    for n in 0..20 {
        ledger.flush().await.unwrap();
        let row = ledger.attempt(attempt(n)).await.unwrap();
        assert!(row.is_none_or(|row| row.reason == Some(Reason::NotDispatched)));
    }
    assert_eq!(counters(&ledger, "acme").await, (0, 0, 0));
    assert_green(&ledger).await;
}

#[tokio::test]
async fn a_restart_makes_running_attempts_unknown_and_their_end_can_come_late() {
    let desk = Desk::new();
    let ledger = desk.open();
    let both = [policy("cap", Tier::D, 1000), policy("soft", Tier::B, 1000)];
    ledger.declare(vec![account("acme", &both)]).await.unwrap();
    let holds = [
        ledger.reserve(reservation(1, "acme", 100)).await.unwrap(),
        ledger.reserve(reservation(2, "acme", 100)).await.unwrap(),
    ];
    ledger.close().await.unwrap();
    assert_eq!(ledger.flush().await, Err(Unavailable::Closed));
    for hold in holds {
        // There is no one to tell any more; that is what a restart is.
        hold.settle(commit(10));
    }
    let ledger = desk.open();
    ledger.flush().await.unwrap();
    let row = ledger.attempt(attempt(1)).await.unwrap().unwrap();
    assert_eq!(
        (row.state, row.reason),
        (State::Unknown, Some(Reason::OwnerLost))
    );
    assert_eq!((row.stamp.price.0, &*row.stamp.model), (3, "small"));
    assert_eq!(counters(&ledger, "acme").await, (0, 200, 0));
    let first = ledger
        .settle_attempt(attempt(1), commit(70))
        .await
        .unwrap()
        .unwrap();
    let again = ledger
        .settle_attempt(attempt(1), commit(99))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (first.state, first.charged.wtu.0, again),
        (State::Committed, 70, first)
    );
    desk.set_clock(NOW + 10 * 3_600_000);
    ledger.close().await.unwrap();
    let ledger = desk.open();
    // Opening does not resolve by itself; the timer does, at once. Asking twice lets it run.
    while counters(&ledger, "acme").await.1 > 0 {
        ledger.flush().await.unwrap();
    }
    assert_eq!(
        counters(&ledger, "acme").await,
        (170, 0, 0),
        "a hard cap charges the hold"
    );
    assert_green(&ledger).await;
}

#[tokio::test]
async fn what_nobody_waits_for_reaches_the_disk_by_itself() {
    let desk = Desk::new();
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("soft", Tier::B, 1000)])])
        .await
        .unwrap();
    let intruder = desk.intruder();
    let on_disk = |state: &str| {
        let sql = "SELECT count(*) FROM attempt WHERE state = ?";
        let count: u32 = intruder.query_row(sql, [state], |row| row.get(0)).unwrap();
        count == 1
    };
    let hold = ledger.reserve(reservation(1, "acme", 100)).await.unwrap();
    while !on_disk("sent") {
        tokio::task::yield_now().await;
    }
    hold.settle(commit(70));
    while !on_disk("committed") {
        tokio::task::yield_now().await;
    }
    assert_green(&ledger).await;
}

#[tokio::test]
async fn what_somebody_waits_for_does_not_linger() {
    let mut desk = Desk::new();
    desk.options.linger = Duration::from_hours(1);
    let ledger = desk.open();
    let accounts = vec![
        account("soft", &[policy("soft", Tier::B, 1000)]),
        account("hard", &[policy("cap", Tier::D, 1000)]),
    ];
    ledger.declare(accounts).await.unwrap();
    let soft = ledger.reserve(reservation(1, "soft", 100)).await.unwrap();
    let hard = ledger.reserve(reservation(2, "hard", 100)).await.unwrap();
    let intruder = desk.intruder();
    let written = |state: &str| -> u32 {
        let sql = "SELECT count(*) FROM attempt WHERE state = ?";
        intruder.query_row(sql, [state], |row| row.get(0)).unwrap()
    };
    assert_eq!(
        written("sent"),
        2,
        "a hold that lingers goes with one that cannot"
    );
    soft.settle(commit(1));
    hard.settle(commit(1));
    ledger.flush().await.unwrap();
    assert_eq!(written("committed"), 2);
    let last = ledger.reserve(reservation(3, "soft", 1)).await.unwrap();
    ledger.close().await.unwrap();
    assert_eq!(
        written("sent"),
        1,
        "a ledger that is closed keeps nothing back"
    );
    drop(last);
}

#[tokio::test]
async fn settlements_always_have_room() {
    let mut desk = Desk::new();
    desk.options.capacity = 8;
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("soft", Tier::B, 1_000_000)])])
        .await
        .unwrap();
    let mut holds = Vec::new();
    let refused = loop {
        match ledger
            .reserve(reservation(holds.len() as u64, "acme", 1))
            .await
        {
            Ok(hold) => holds.push(hold),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, ReserveError::Unavailable(Unavailable::Busy));
    assert!((4..=8).contains(&holds.len()), "{}", holds.len());
    let settled = holds.len() as u64;
    for hold in holds {
        hold.settle(commit(1));
    }
    assert_eq!(counters(&ledger, "acme").await, (settled, 0, 0));
    assert!(ledger.reserve(reservation(99, "acme", 1)).await.is_ok());
}

#[tokio::test]
async fn an_id_that_was_forgotten_is_found_again() {
    let mut desk = Desk::new();
    desk.options.ledger.remember = 2;
    let ledger = desk.open();
    ledger
        .declare(vec![account("acme", &[policy("cap", Tier::D, 100)])])
        .await
        .unwrap();
    for n in 0..10 {
        let hold = ledger.reserve(reservation(n, "acme", 5)).await.unwrap();
        hold.settle(commit(5));
    }
    assert!(ledger.reserve(reservation(10, "acme", 51)).await.is_err());
    for n in 11..15 {
        ledger
            .reserve(reservation(n, "acme", 0))
            .await
            .unwrap()
            .settle(Settlement::Release {
                reason: Reason::NoWork,
            });
    }
    ledger.flush().await.unwrap();
    for (n, state) in [
        (0, State::Committed),
        (10, State::Refused),
        (11, State::Released),
    ] {
        let again = ledger.reserve(reservation(n, "acme", 1)).await.unwrap_err();
        assert_eq!(again, ReserveError::Refused(Refusal::Used(state)), "{n}");
    }
    let settled = ledger
        .settle_attempt(attempt(3), commit(99))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (settled.state, settled.charged.wtu.0),
        (State::Committed, 5)
    );
    assert!(
        ledger
            .settle_attempt(attempt(77), commit(1))
            .await
            .unwrap()
            .is_err()
    );
    assert_green(&ledger).await;
}

#[tokio::test]
async fn everything_reads_back_as_it_was() {
    let desk = Desk::new();
    let ledger = desk.open();
    let mut boosted = policy("cap", Tier::D, 1000);
    boosted.boost = Some(governance_core::account::Boost {
        extra: 5,
        until: governance_core::account::UnixMs(NOW + 1),
    });
    let mut soft = policy("soft", Tier::B, 300);
    soft.debt_max = Some(77);
    ledger
        .declare(vec![
            account("acme", &[boosted, soft]),
            account("acme/b", &[]),
        ])
        .await
        .unwrap();
    let kept = ledger.reserve(reservation(1, "acme/b", 100)).await.unwrap();
    ledger
        .reserve(reservation(2, "acme/b", 150))
        .await
        .unwrap()
        .settle(commit(450));
    ledger.end_account(id("acme/b")).await.unwrap().unwrap();
    let before = (
        ledger.balances(&id("acme")).unwrap(),
        ledger.balances(&id("acme/b")).unwrap(),
    );
    let row = ledger.attempt(attempt(2)).await.unwrap();
    drop(kept);
    ledger.close().await.unwrap();
    let ledger = desk.open();
    let after = (
        ledger.balances(&id("acme")).unwrap(),
        ledger.balances(&id("acme/b")).unwrap(),
    );
    assert_eq!(after, before);
    assert_eq!(ledger.attempt(attempt(2)).await.unwrap(), row);
    let refused = ledger
        .reserve(reservation(3, "acme/b", 1))
        .await
        .unwrap_err();
    assert_eq!(refused, ReserveError::Refused(Refusal::Ended(id("acme/b"))));
    assert_green(&ledger).await;
}
