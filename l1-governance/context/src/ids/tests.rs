use super::*;

#[test]
fn names_are_one_to_128_visible_ascii_bytes() {
    let longest = "x".repeat(128);
    let too_long = "x".repeat(129);
    let cases: [(&str, Result<(), IdError>); 8] = [
        ("acme", Ok(())),
        ("a\"b\\c/d~!", Ok(())),
        (&longest, Ok(())),
        (&too_long, Err(IdError::TooLong(129))),
        ("", Err(IdError::Empty)),
        ("a b", Err(IdError::NotVisible(1))),
        ("ab\n", Err(IdError::NotVisible(2))),
        ("é", Err(IdError::NotVisible(0))),
    ];
    for (text, expected) in cases {
        assert_eq!(TenantId::new(text).map(|_| ()), expected, "{text:?}");
    }
}

#[test]
fn a_name_read_from_json_is_checked_as_well() {
    assert_eq!(
        serde_json::from_str::<TenantId>("\"acme\"")
            .unwrap()
            .as_str(),
        "acme"
    );
    let error = serde_json::from_str::<TenantId>("\"a b\"").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"a b\" has a character at byte 1"),
        "{error}"
    );
}

#[test]
fn attempt_ids_sort_by_time_and_survive_text() {
    let early = AttemptId::new(1_700_000_000_000, [0xff; 10]);
    let late = AttemptId::new(1_700_000_000_001, [0; 10]);
    assert!(early < late);
    assert_eq!(early.to_string().parse(), Ok(early));
    assert_eq!(early.to_string(), "018bcfe5-6800-7fff-bfff-ffffffffffff");
}

#[test]
fn only_hyphenated_version_7_uuids_are_attempt_ids() {
    for text in [
        "",
        "018bcfe568007fffbfffffffffffffff",
        "{018bcfe5-6800-7fff-bfff-ffffffffffff}",
        "018bcfe5-6800-4fff-bfff-ffffffffffff",
        "not-a-uuid",
    ] {
        assert_eq!(
            text.parse::<AttemptId>(),
            Err(IdError::NotUuidV7),
            "{text:?}"
        );
    }
}

#[test]
fn a_path_hash_depends_on_where_names_end() {
    let hash = PathHash::of(["acme", "web"]);
    assert_ne!(hash, PathHash::of(["acm", "eweb"]));
    assert_eq!(hash.to_string().parse(), Ok(hash));
    assert_eq!(
        "+0000000000000000000000000000000".parse::<PathHash>(),
        Err(IdError::NotHash)
    );
    assert_eq!(
        "é000000000000000000000000000000".parse::<PathHash>(),
        Err(IdError::NotHash)
    );
}
