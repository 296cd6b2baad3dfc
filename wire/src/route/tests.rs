use super::*;

#[test]
fn paths_are_recognised_with_and_without_version() {
    for (path, expected) in [
        ("/v1/chat/completions", Some(Route::ChatCompletions)),
        ("/chat/completions", Some(Route::ChatCompletions)),
        ("/v1/completions?x=/v1/models", Some(Route::Completions)),
        ("/v1/embeddings", Some(Route::Embeddings)),
        ("/v1/responses", Some(Route::Responses)),
        ("/v1/messages", Some(Route::Messages)),
        ("/v1/messages?beta=true", Some(Route::Messages)),
        ("/v1/messages/count_tokens", Some(Route::CountTokens)),
        ("/v1/rerank", Some(Route::Rerank)),
        ("/tokenize", Some(Route::Tokenize)),
        ("/v1/detokenize", Some(Route::Detokenize)),
        ("/v1/models", Some(Route::Models)),
        ("/models/tiny", Some(Route::Model("tiny".into()))),
        ("/v1/models/org/name", Some(Route::Model("org/name".into()))),
        (
            "/v1/models/org%2Fna%C3%A9",
            Some(Route::Model("org/naé".into())),
        ),
        ("/v1/models/", None),
        ("/v1/models/%zz", None),
        ("/v1/models/a%2", None),
        ("/v1/models/%ff", None),
        ("/v1/models/a%0d%0ab", None),
        ("/v1/chat%2Fcompletions", None),
        ("/v1//chat/completions", None),
        ("/v1/v1/chat/completions", None),
        ("/v1/chat/completions/", None),
        ("/V1/chat/completions", None),
        ("v1/chat/completions", None),
        ("/v1/modelsx", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(route(path), expected, "{path}");
    }
}

#[test]
fn upstream_paths_lead_back_to_their_route() {
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/tokenize",
        "/detokenize",
        "/v1/models",
    ] {
        assert_eq!(route(path).map(|route| route.upstream_path()), Some(path));
    }
}

#[test]
fn errors_take_the_shape_of_the_family_the_path_belongs_to() {
    for (path, expected) in [
        ("/v1/messages", Family::Anthropic),
        ("/messages/batches", Family::Anthropic),
        ("/v1/messagesx", Family::OpenAi),
        ("/v1/nothing", Family::OpenAi),
    ] {
        assert_eq!(family(path), expected, "{path}");
        if let Some(route) = route(path) {
            assert_eq!(route.family(), expected, "{path}");
        }
    }
}

#[test]
fn methods_follow_the_route() {
    assert!(Route::Models.allows("GET") && Route::Models.allows("HEAD"));
    assert!(!Route::Models.allows("POST"));
    assert!(Route::Messages.allows("POST") && !Route::Messages.allows("GET"));
}
