use std::collections::BTreeSet;
use std::fs;

use governance_context::{MicroWtu, ObjectiveName};
use governance_core::account::UnixMs;
use governance_core::keys::{Beyond, KeyText, Models, Role, Scope};
use ledger_store::{By, KeyError, NewKey, ScopeChange, SqliteLedger};

use crate::desk::{Desk, NOW, account, assert_green, commit, id, reservation};

fn scope(models: &[&str], budget: u64, role: Role) -> Scope {
    Scope {
        models: Models::Only(
            models
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<BTreeSet<_>>(),
        ),
        budget: Some(MicroWtu(budget)),
        expires: Some(UnixMs(NOW + 1_000_000)),
        role,
        objective: None,
    }
}

fn key(owner: &str, scope: Scope) -> NewKey {
    NewKey {
        owner: id(owner),
        name: "a key".to_owned(),
        scope,
    }
}

fn update(
    public: governance_core::keys::PublicPart,
    version: u64,
    scope: Scope,
) -> Vec<ScopeChange> {
    vec![ScopeChange {
        public,
        version,
        scope,
    }]
}

async fn open(desk: &Desk) -> SqliteLedger {
    let ledger = desk.open();
    let accounts = [
        "acme",
        "acme/search",
        "acme/search/ann",
        "acme/search/bob",
        "acme/ads",
    ];
    ledger
        .declare(accounts.iter().map(|name| account(name, &[])).collect())
        .await
        .unwrap();
    ledger
}

#[tokio::test]
async fn a_key_is_made_used_and_listed_and_only_its_hash_is_stored() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let made = key("acme/search/ann", scope(&["small"], 500, Role::Member));
    let (text, record) = ledger.create_key(By::Operator, made).await.unwrap();
    let found = ledger.authenticate(text.reveal()).unwrap();
    assert_eq!(
        (found.public, found.tenant.as_str()),
        (record.public, "acme")
    );
    assert_eq!(found.path.accounts().len(), 4);
    let wrong = format!("{}a", &text.reveal()[..text.reveal().len() - 1]);
    assert!(wrong == text.reveal() || ledger.authenticate(&wrong).is_none());
    assert!(
        ledger
            .authenticate("hp-abcdefghijkm-0123456789abcdef")
            .is_none()
    );
    assert_eq!(ledger.keys().list().count(), 1);
    ledger.close().await.unwrap();
    let secret = text.reveal().rsplit('-').next().unwrap();
    for file in fs::read_dir(desk.path().parent().unwrap()).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(
            !bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes())
        );
    }
    assert!(desk.open().authenticate(text.reveal()).is_some());
}

#[tokio::test]
async fn a_key_budget_is_a_hard_cap() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let made = key("acme/search/ann", scope(&["small"], 500, Role::Member));
    let (_, record) = ledger.create_key(By::Operator, made).await.unwrap();
    let leaf = record.account.as_str();
    ledger
        .reserve(reservation(1, leaf, 500))
        .await
        .unwrap()
        .settle(commit(400));
    assert!(ledger.reserve(reservation(2, leaf, 101)).await.is_err());
    let raised = ledger
        .raise_budget(
            By::Operator,
            record.public,
            MicroWtu(50),
            UnixMs(NOW + 1000),
        )
        .await
        .unwrap();
    assert_eq!(raised.version, 2);
    ledger
        .reserve(reservation(3, leaf, 150))
        .await
        .unwrap()
        .settle(commit(90));
    ledger.flush().await.unwrap();
    desk.set_clock(NOW + 1000);
    assert!(
        ledger.reserve(reservation(4, leaf, 11)).await.is_err(),
        "the raise is over"
    );
    assert!(ledger.reserve(reservation(5, leaf, 10)).await.is_ok());
    assert_green(&ledger).await;
}

#[tokio::test]
async fn a_revoked_key_is_over_at_once_and_stays_over() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let made = key("acme/search/ann", scope(&["small"], 500, Role::Member));
    let (text, record) = ledger.create_key(By::Operator, made).await.unwrap();
    ledger
        .revoke_key(By::Operator, record.public)
        .await
        .unwrap();
    assert!(ledger.authenticate(text.reveal()).is_none());
    // Writes that were made from the key as it was before do not revive it.
    let wider = scope(&["small"], 900, Role::Member);
    let late = ledger
        .update_keys(By::Operator, update(record.public, 1, wider))
        .await;
    assert_eq!(late.unwrap_err(), KeyError::Over);
    assert_eq!(
        ledger
            .rotate_key(By::Operator, record.public, 1000)
            .await
            .unwrap_err(),
        KeyError::Over
    );
    let raise = ledger
        .raise_budget(By::Operator, record.public, MicroWtu(1), UnixMs(NOW + 9))
        .await;
    assert_eq!(raise.unwrap_err(), KeyError::Over);
    let revive = desk
        .intruder()
        .execute("UPDATE virtual_key SET revoked_at = NULL", [])
        .unwrap_err();
    assert!(revive.to_string().contains("stays revoked"), "{revive}");
    let again = ledger
        .revoke_key(By::Operator, record.public)
        .await
        .unwrap();
    assert_eq!(again.revoked, Some(UnixMs(NOW)));
    ledger.close().await.unwrap();
    assert!(desk.open().authenticate(text.reveal()).is_none());
}

#[tokio::test]
async fn a_revocation_wins_against_updates_in_flight() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    for _ in 0..20 {
        let made = key("acme/search/ann", scope(&["small"], 500, Role::Member));
        let (text, record) = ledger.create_key(By::Operator, made).await.unwrap();
        let wider = scope(&["small"], 600, Role::Member);
        let (updated, revoked) = tokio::join!(
            ledger.update_keys(By::Operator, update(record.public, 1, wider)),
            ledger.revoke_key(By::Operator, record.public),
        );
        assert!(updated.is_ok() || updated == Err(KeyError::Over));
        revoked.unwrap();
        assert!(ledger.authenticate(text.reveal()).is_none());
    }
}

#[tokio::test]
async fn two_changes_from_one_version_do_not_both_count() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let made = key("acme/search/ann", scope(&["small"], 500, Role::Member));
    let (_, record) = ledger.create_key(By::Operator, made).await.unwrap();
    let wider = scope(&["small"], 600, Role::Member);
    ledger
        .update_keys(By::Operator, update(record.public, 1, wider.clone()))
        .await
        .unwrap();
    let second = ledger
        .update_keys(By::Operator, update(record.public, 1, wider))
        .await;
    assert_eq!(second, Err(KeyError::Changed(2)));
}

#[tokio::test]
async fn a_rotation_keeps_account_and_budget_and_ends_the_old_key_after_the_overlap() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let made = key("acme/search/ann", scope(&["small"], 500, Role::Member));
    let (old_text, old) = ledger.create_key(By::Operator, made).await.unwrap();
    ledger
        .reserve(reservation(1, old.account.as_str(), 500))
        .await
        .unwrap()
        .settle(commit(300));
    let (new_text, new) = ledger
        .rotate_key(By::Operator, old.public, 5000)
        .await
        .unwrap();
    assert_eq!(new.account, old.account);
    assert!(
        ledger.authenticate(old_text.reveal()).is_some()
            && ledger.authenticate(new_text.reveal()).is_some()
    );
    desk.set_clock(NOW + 5000);
    assert!(ledger.authenticate(old_text.reveal()).is_none());
    assert!(ledger.authenticate(new_text.reveal()).is_some());
    assert!(
        ledger
            .reserve(reservation(2, new.account.as_str(), 201))
            .await
            .is_err(),
        "no fresh budget"
    );
    desk.set_clock(NOW + 1_000_000);
    assert!(
        ledger.authenticate(new_text.reveal()).is_none(),
        "expiry is kept"
    );
}

#[tokio::test]
async fn ending_a_parent_ends_its_children() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let make = |owner: &str| {
        ledger.create_key(
            By::Operator,
            key(owner, scope(&["small"], 500, Role::Member)),
        )
    };
    let (ann, ann_record) = make("acme/search/ann").await.unwrap();
    let (ads, _) = make("acme/ads").await.unwrap();
    ledger
        .end_account(id("acme/search"))
        .await
        .unwrap()
        .unwrap();
    assert!(ledger.authenticate(ann.reveal()).is_none());
    assert!(ledger.authenticate(ads.reveal()).is_some());
    assert!(
        ledger
            .reserve(reservation(1, ann_record.account.as_str(), 1))
            .await
            .is_err()
    );
    assert!(matches!(
        make("acme/search/bob").await,
        Err(KeyError::Account(_))
    ));
    assert!(ledger.end_account(id("nobody")).await.unwrap().is_err());
    ledger.close().await.unwrap();
    assert!(desk.open().authenticate(ann.reveal()).is_none());
}

#[tokio::test]
async fn a_key_made_elsewhere_is_taken_over_once() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let text = KeyText::parse("hp-abcdefghijkm-0123456789abcdef0123").unwrap();
    let made = || key("acme/search/ann", scope(&["small"], 500, Role::Member));
    let first = ledger.import_key(text.clone(), made()).await.unwrap();
    let again = ledger.import_key(text.clone(), made()).await.unwrap();
    assert_eq!((first.version, again.version), (1, 1));
    assert!(ledger.authenticate(text.reveal()).is_some());
    let other = KeyText::parse("hp-abcdefghijkm-another0secret0000000").unwrap();
    assert_eq!(
        ledger.import_key(other, made()).await.unwrap_err(),
        KeyError::Exists
    );
    let homeless = NewKey {
        owner: id("acme/nobody"),
        ..made()
    };
    assert!(matches!(
        ledger.create_key(By::Operator, homeless).await,
        Err(KeyError::Account(_))
    ));
}

#[tokio::test]
async fn case_46_one_ceiling_on_every_path() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let own = scope(&["small", "main"], 500, Role::Member);
    let make = |by, owner: &str, scope: Scope| ledger.create_key(by, key(owner, scope));
    let (_, ann) = make(By::Operator, "acme/search/ann", own.clone())
        .await
        .unwrap();
    let by = By::Key(ann.public);
    let beyond = [
        (
            scope(&["huge"], 500, Role::Member),
            Beyond::Models(Some("huge".to_owned())),
        ),
        (scope(&["small"], 501, Role::Member), Beyond::Budget),
        (scope(&["small"], 500, Role::Lead), Beyond::Role),
        (
            Scope {
                budget: None,
                ..own.clone()
            },
            Beyond::Budget,
        ),
        (
            Scope {
                expires: None,
                ..own.clone()
            },
            Beyond::Expiry,
        ),
        (
            Scope {
                models: Models::All,
                ..own.clone()
            },
            Beyond::Models(None),
        ),
        (
            Scope {
                objective: Some(ObjectiveName::new("gold").unwrap()),
                ..own.clone()
            },
            Beyond::Objective,
        ),
    ];
    let (_, second) = make(by, "acme/search/ann", own.clone()).await.unwrap();
    for (asked, why) in beyond {
        // create
        let created = make(by, "acme/search/ann", asked.clone()).await.map(drop);
        assert_eq!(created, Err(KeyError::Beyond(why.clone())));
        // update, in bulk with one that is allowed: none is made
        let mut bulk = update(second.public, 1, scope(&["small"], 1, Role::Member));
        bulk.extend(update(ann.public, 1, asked.clone()));
        assert_eq!(
            ledger.update_keys(by, bulk).await,
            Err(KeyError::Beyond(why.clone()))
        );
        assert_eq!(ledger.keys().get(&second.public).unwrap().version, 1);
        // regenerate a key that is beyond
        let (_, broad) = make(By::Operator, "acme/search/ann", asked).await.unwrap();
        let rotated = ledger.rotate_key(by, broad.public, 0).await.map(drop);
        assert_eq!(rotated, Err(KeyError::Beyond(why)));
    }
    // temporary increase
    let raised = ledger
        .raise_budget(by, second.public, MicroWtu(1), UnixMs(NOW + 10))
        .await
        .map(drop);
    assert_eq!(raised, Err(KeyError::Beyond(Beyond::Budget)));
    // somebody else's key
    let (_, bob) = make(By::Operator, "acme/search/bob", scope(&[], 1, Role::Member))
        .await
        .unwrap();
    let other = Err(KeyError::Beyond(Beyond::Owner(id("acme/search/bob"))));
    assert_eq!(
        make(by, "acme/search/bob", scope(&[], 1, Role::Member))
            .await
            .map(drop),
        other
    );
    assert_eq!(ledger.revoke_key(by, bob.public).await.map(drop), other);
    assert_eq!(ledger.rotate_key(by, bob.public, 0).await.map(drop), other);
    // a lead reaches the project, a revoked key nothing
    let (_, lead) = make(
        By::Operator,
        "acme/search/bob",
        scope(&["small"], 900, Role::Lead),
    )
    .await
    .unwrap();
    assert!(
        ledger
            .revoke_key(By::Key(lead.public), ann.public)
            .await
            .is_ok()
    );
    assert_eq!(
        make(by, "acme/search/ann", scope(&[], 1, Role::Member))
            .await
            .map(drop),
        Err(KeyError::NoActor)
    );
}

#[tokio::test]
async fn a_key_keeps_its_objective_through_rotation_change_and_restart() {
    let desk = Desk::new();
    let ledger = open(&desk).await;
    let of = |objective: Option<&str>| Scope {
        objective: objective.map(|name| ObjectiveName::new(name).unwrap()),
        ..scope(&["small"], 500, Role::Member)
    };
    let made = key("acme/search/ann", of(Some("batch")));
    let (_, made) = ledger.create_key(By::Operator, made).await.unwrap();
    let (_, next) = ledger
        .rotate_key(By::Operator, made.public, 60_000)
        .await
        .unwrap();
    let other = key("acme/search/ann", of(Some("gold")));
    let (_, other) = ledger.create_key(By::Operator, other).await.unwrap();
    ledger
        .update_keys(By::Operator, update(other.public, 1, of(None)))
        .await
        .unwrap();
    ledger.close().await.unwrap();
    let ledger = desk.open();
    for (public, expected) in [
        (made.public, Some("batch")),
        (next.public, Some("batch")),
        (other.public, None),
    ] {
        let ring = ledger.keys();
        let stored = ring.get(&public).unwrap().scope.objective.as_ref();
        assert_eq!(stored.map(ObjectiveName::as_str), expected, "{public}");
    }
}
