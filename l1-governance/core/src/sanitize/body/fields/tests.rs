use super::*;

/// What is known of each kind of body.
const KNOWN: [&[&str]; 9] = [
    SAMPLING,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    MESSAGES,
    RERANK,
    TOKENIZE,
    DETOKENIZE,
];

#[test]
fn the_lists_are_sorted() {
    for list in [RESERVED, ABOUT_THE_CALLER].into_iter().chain(KNOWN) {
        assert!(list.is_sorted(), "{list:?}");
    }
}

#[test]
fn no_known_field_is_reserved() {
    for key in KNOWN.into_iter().flatten() {
        assert!(!is_reserved(key) && !is_about_the_caller(key), "{key}");
    }
}

#[test]
fn reserved_fields_are_known_in_every_spelling() {
    let spellings = [
        "priority",
        "PRIORITY",
        "prioRity",
        "cache_salt",
        "cacheSalt",
        "cache-salt",
        "data_parallel_rank",
        "kv_transfer_params",
        "aws_region_name",
        "AWS_REGION_NAME",
        "awsAccessKeyId",
        "azure_ad_token",
        "vertex-project",
        "google_credentials",
        "credentials",
        "vertexCredentials",
        "x-headpond-context",
        "X_Gateway_Destination_Endpoint",
        "epp-profile",
        "x-api-key",
        "_priority_",
    ];
    for key in spellings {
        assert!(is_reserved(key), "{key}");
    }
    for key in [
        "prio",
        "priorities",
        "base",
        "reserved_priority_x",
        "awesome",
        "messages",
        "ünıcode",
        "",
        "credential",
    ] {
        assert!(!is_reserved(key), "{key}");
    }
}
