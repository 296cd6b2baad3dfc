//! Any body at all, checked against a slow reading of the same rules by another JSON parser.

use proptest::prelude::*;
use serde_json::Value as Tree;

use super::*;

/// A value of small depth whose keys are often reserved and whose text is often escaped.
fn json(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        Just("-1.50e+3".to_owned()),
        "[ -~]{0,8}".prop_map(|text| quoted(&text)),
        "\\PC{0,4}".prop_map(|text| quoted(&text)),
    ];
    let space = prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\n\t")];
    leaf.prop_recursive(depth, 40, 5, move |inner| {
        let member = (key(), inner.clone(), space.clone());
        prop_oneof![
            prop::collection::vec((inner, space.clone()), 0..4).prop_map(|elements| {
                let elements: Vec<String> = elements
                    .into_iter()
                    .map(|(value, space)| format!("{space}{value}"))
                    .collect();
                format!("[{}]", elements.join(","))
            }),
            prop::collection::btree_map(any::<u8>(), member, 0..5)
                .prop_map(|members| object(members.into_values())),
        ]
    })
    .boxed()
}

/// Members with keys made unique, as duplicates are refused before anything else.
fn object(members: impl Iterator<Item = (String, String, &'static str)>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    let members: Vec<String> = members
        .filter(|(key, _, _)| seen.insert(serde_json::from_str::<String>(key).unwrap()))
        .map(|(key, value, space)| format!("{space}{key}{space}:{value}{space}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn key() -> impl Strategy<Value = String> {
    let reserved: Vec<&str> = fields::reserved().collect();
    let plain = [
        "role",
        "content",
        "tools",
        "function",
        "parameters",
        "schema",
        "input",
        "messages",
        "text",
        "a",
        "b",
        "cache_salt",
    ];
    prop_oneof![
        2 => prop::sample::select(reserved).prop_map(quoted),
        1 => prop::sample::select(vec!["prio\\u0072ity", "\\u0072id", "nv\\u0065xt", "X-Headpond-A"]).prop_map(|key| format!("\"{key}\"")),
        5 => prop::sample::select(plain.to_vec()).prop_map(quoted),
        1 => "\\PC{0,4}".prop_map(|text| quoted(&text)),
    ]
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn body() -> impl Strategy<Value = String> {
    let top = prop::sample::select(vec![
        "messages",
        "tools",
        "metadata",
        "response_format",
        "text",
        "stop",
        "unknown",
        "priority",
    ]);
    prop::collection::btree_map(top, json(4), 0..6).prop_map(|members| {
        let members: Vec<String> = members
            .into_iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!(
            "{{\"model\":\"m\"{}{}}}",
            if members.is_empty() { "" } else { "," },
            members.join(" ,\n")
        )
    })
}

/// The rules again, on a tree: what must be left.
fn reference(tree: Tree, unknown: UnknownFields) -> Tree {
    let Tree::Object(members) = tree else {
        return tree;
    };
    let kept = members.into_iter().filter_map(|(key, value)| {
        let goes = fields::is_reserved(&key)
            || fields::is_about_the_caller(&key)
            || (unknown == UnknownFields::Drop && !fields::is_known(&CHAT, &key));
        (!goes).then(|| (key.clone(), reference_below(&key, value)))
    });
    Tree::Object(kept.collect())
}

fn reference_below(top: &str, tree: Tree) -> Tree {
    match tree {
        Tree::Array(elements) => Tree::Array(
            elements
                .into_iter()
                .map(|element| reference_below(top, element))
                .collect(),
        ),
        Tree::Object(members) => {
            let kept = members
                .into_iter()
                .filter(|(key, _)| !fields::is_reserved(key))
                .map(|(key, value)| {
                    let own_data = fields::is_opaque(top, &key);
                    let value = if own_data {
                        value
                    } else {
                        reference_below(top, value)
                    };
                    (key, value)
                });
            Tree::Object(kept.collect())
        }
        Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::String(_) => tree,
    }
}

/// Every scalar and key as it was written, in order; what edits leave must be a subsequence of what came.
fn is_subsequence(shorter: &[u8], longer: &[u8]) -> bool {
    let mut rest = longer.iter();
    shorter.iter().all(|byte| rest.any(|other| other == byte))
}

/// Raw texts of all scalars in a document, in order.
fn scalars(document: &Document<'_>) -> Vec<String> {
    fn collect(value: Value<'_>, into: &mut Vec<String>) {
        match value.kind() {
            Kind::Array => value.elements().for_each(|element| collect(element, into)),
            Kind::Object => value
                .members()
                .for_each(|member| collect(member.value, into)),
            Kind::Null | Kind::Bool | Kind::Number | Kind::String => {
                into.push(value.raw().to_owned());
            }
        }
    }
    let mut all = Vec::new();
    collect(document.root(), &mut all);
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_left_is_what_the_rules_leave(body in body(), drop in any::<bool>()) {
        let unknown = if drop { UnknownFields::Drop } else { UnknownFields::Pass };
        let cleaned = cleaned_as(&CHAT, unknown, &body).unwrap();
        // Comparing trees is exact for text and structure; numbers are compared as they are written, below.
        let expected = reference(serde_json::from_str(&body).unwrap(), unknown);
        prop_assert_eq!(serde_json::from_str::<Tree>(&cleaned).unwrap(), expected, "{}", cleaned);

        prop_assert!(is_subsequence(cleaned.as_bytes(), body.as_bytes()));
        let before = scalars(&Document::parse(body.as_bytes()).unwrap());
        let mut rest = before.iter();
        for scalar in scalars(&Document::parse(cleaned.as_bytes()).unwrap()) {
            prop_assert!(rest.any(|other| *other == scalar), "{scalar} was not written like this");
        }
    }

    #[test]
    fn cleaning_twice_changes_nothing_more(body in body()) {
        let once = cleaned(&body);
        prop_assert_eq!(cleaned(&once), once);
    }

    #[test]
    fn the_engine_reads_what_l1_wrote(body in body(), band in any::<i32>(), bound in 1u64..1000) {
        let fields = EngineFields {
            engine: Engine::Vllm,
            model: "served",
            output_bound: Some(bound),
            priority: Some(Band(band)),
            cache_salt: Some("5a17"),
        };
        let written = written(&CHAT, &body, &fields);
        // Strict: a duplicate key would be refused here.
        Document::parse(written.as_bytes()).unwrap();
        let tree: Tree = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(&tree["model"], "served");
        prop_assert_eq!(&tree["cache_salt"], "5a17");
        prop_assert_eq!(tree["priority"].as_i64(), Some(-i64::from(band)));
        prop_assert_eq!(tree["max_tokens"].as_u64(), Some(bound));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[{}\\[\\]\":,a-z0-9\\\\u]{0,80}") {
        for bytes in [&bytes[..], text.as_bytes()] {
            if let Ok(document) = Document::parse(bytes) {
                for unknown in [UnknownFields::Drop, UnknownFields::Reject, UnknownFields::Pass] {
                    let _ = check(&CHAT, &document, unknown).map_err(|refusal| refusal.answer().message());
                }
            }
        }
    }
}
