use super::*;

fn scope(models: &[&str], budget: Option<u64>, expires: Option<u64>, role: Role) -> Scope {
    let names: BTreeSet<String> = models.iter().map(|name| (*name).to_owned()).collect();
    Scope {
        models: if models == ["*"] {
            Models::All
        } else {
            Models::Only(names)
        },
        budget: budget.map(MicroWtu),
        expires: expires.map(UnixMs),
        role,
        objective: None,
    }
}

fn account(text: &str) -> AccountId {
    AccountId::parse(text).unwrap()
}

#[test]
fn case_46_nobody_gives_what_they_do_not_have() {
    use Role::{Lead, Member};
    let member = scope(&["small", "main"], Some(100), Some(1000), Member);
    let lead = scope(&["*"], None, None, Lead);
    let ann = "acme/search/ann";
    let cases = [
        (
            &member,
            ann,
            scope(&["small"], Some(100), Some(1000), Member),
            None,
        ),
        (
            &member,
            ann,
            scope(&["small"], Some(101), Some(1000), Member),
            Some(Beyond::Budget),
        ),
        (
            &member,
            ann,
            scope(&["small"], None, Some(1000), Member),
            Some(Beyond::Budget),
        ),
        (
            &member,
            ann,
            scope(&["small"], Some(1), Some(1001), Member),
            Some(Beyond::Expiry),
        ),
        (
            &member,
            ann,
            scope(&["small"], Some(1), None, Member),
            Some(Beyond::Expiry),
        ),
        (
            &member,
            ann,
            scope(&["huge"], Some(1), Some(1), Member),
            Some(Beyond::Models(Some("huge".to_owned()))),
        ),
        (
            &member,
            ann,
            scope(&["*"], Some(1), Some(1), Member),
            Some(Beyond::Models(None)),
        ),
        (
            &member,
            ann,
            scope(&["small"], Some(1), Some(1), Lead),
            Some(Beyond::Role),
        ),
        (
            &member,
            "acme/search/bob",
            scope(&[], Some(1), Some(1), Member),
            Some(Beyond::Owner(account("acme/search/bob"))),
        ),
        (
            &member,
            "acme/search",
            scope(&[], Some(1), Some(1), Member),
            Some(Beyond::Owner(account("acme/search"))),
        ),
        (
            &member,
            "acme/search/anna",
            scope(&[], Some(1), Some(1), Member),
            Some(Beyond::Owner(account("acme/search/anna"))),
        ),
        (
            &lead,
            "acme/search/bob",
            scope(&["*"], None, None, Lead),
            None,
        ),
        (
            &lead,
            "acme/ads/bob",
            scope(&[], Some(1), Some(1), Member),
            Some(Beyond::Owner(account("acme/ads/bob"))),
        ),
    ];
    for (own, owner, asked, expected) in cases {
        let actor = Actor::Key {
            owner: account(ann),
            scope: own.clone(),
        };
        assert_eq!(
            ceiling(&actor, &account(owner), &asked).err(),
            expected,
            "{owner} {asked:?}"
        );
        assert_eq!(ceiling(&Actor::Operator, &account(owner), &asked), Ok(()));
    }
}

#[test]
fn a_key_passes_on_its_own_objective_and_no_other() {
    let of = |objective: Option<&str>| Scope {
        objective: objective.map(|name| ObjectiveName::new(name).unwrap()),
        ..scope(&["*"], None, None, Role::Lead)
    };
    let app = account("acme/app");
    for (own, asked, expected) in [
        (None, None, Ok(())),
        (Some("batch"), Some("batch"), Ok(())),
        (None, Some("gold"), Err(Beyond::Objective)),
        (Some("batch"), Some("gold"), Err(Beyond::Objective)),
        (Some("batch"), None, Err(Beyond::Objective)),
    ] {
        let actor = Actor::Key {
            owner: app.clone(),
            scope: of(own),
        };
        assert_eq!(
            ceiling(&actor, &app, &of(asked)),
            expected,
            "{own:?} {asked:?}"
        );
        assert_eq!(ceiling(&Actor::Operator, &app, &of(asked)), Ok(()));
    }
}

#[test]
fn a_lead_below_a_tenant_does_not_reach_the_tenant() {
    let actor = Actor::Key {
        owner: account("acme/search"),
        scope: scope(&["*"], None, None, Role::Lead),
    };
    let asked = scope(&["*"], None, None, Role::Member);
    assert_eq!(ceiling(&actor, &account("acme/search/bob"), &asked), Ok(()));
    assert!(ceiling(&actor, &account("acme/ads"), &asked).is_err());
}

#[test]
fn a_key_is_read_as_it_was_made_and_hidden_in_debug() {
    let key = KeyText::generate(&[7; 44]);
    let again = KeyText::parse(key.reveal()).unwrap();
    assert_eq!(again, key);
    assert_eq!(key.reveal().len(), "hp-".len() + 12 + 1 + 32);
    let shown = format!(
        "{key:?} {:?} {:?}",
        key.hash(&Pepper([1; 32])),
        Pepper([1; 32])
    );
    let secret = key.reveal().rsplit('-').next().unwrap();
    assert!(!shown.contains(secret), "{shown}");
    assert_ne!(key.hash(&Pepper([1; 32])), key.hash(&Pepper([2; 32])));
}

#[test]
fn what_is_not_a_key_is_not_read() {
    let long = format!("hp-abcdefghijkm-{}", "x".repeat(129));
    for text in [
        "",
        "hp-",
        "hp--",
        "sk-abcdefghijkm-0123456789abcdef",
        "hp-abcdefghijk-0123456789abcdef",
        "hp-abcdefghijkm-short",
        "hp-ABCDEFGHIJKM-0123456789abcdef",
        "hp-abcdefghijkm-0123456789abcdé",
        &long,
    ] {
        assert!(KeyText::parse(text).is_none(), "{text:?}");
    }
    assert!(KeyText::parse("hp-abcdefghijkm-0123456789abcdef").is_some());
}
