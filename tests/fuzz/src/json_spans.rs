//! A request body from a client.

use inference_wire::json::{Document, Edits, JsonError, Kind, Value};
use inference_wire::prompt::{Piece, Size, pieces};
use inference_wire::usage::from_body;

use crate::{ROUTES, digest};

/// A key to add; not in an input by accident, and not added where it is by design.
const ADDED: &str = "added by the fuzzer \"\\\u{1}";

/// Checks, reads and edits `data` as JSON, with `serde_json` as the judge.
pub fn json_spans(data: &[u8]) {
    for route in &ROUTES {
        from_body(route, data);
    }
    let judged = serde_json::from_slice::<serde_json::Value>(data);
    let document = match Document::parse(data) {
        Ok(document) => document,
        Err(JsonError::Syntax { .. } | JsonError::Utf8 { .. }) => {
            assert!(judged.is_err(), "refused what is valid");
            return;
        }
        Err(error) => {
            assert!(error.offset() <= data.len());
            return;
        }
    };
    match judged {
        Ok(expected) => check(&document, data, expected),
        Err(error) => {
            // The syntax is fine; serde has no number that large and fewer levels.
            let reason = error.to_string();
            let known = ["number out of range", "recursion limit exceeded"];
            assert!(
                known.iter().any(|known| reason.contains(known)),
                "accepted: {reason}"
            );
        }
    }
}

fn check(document: &Document<'_>, data: &[u8], expected: serde_json::Value) {
    read_prompts(document, data);
    assert_eq!(Edits::new().apply(data), data);
    let mut edits = Edits::new();
    let mut script = digest(data);
    let edited = edit(document.root(), expected, &mut script, &mut edits);
    let text = edits.apply(data);
    assert!(Document::parse(&text).is_ok(), "edits keep it valid");
    let reread: serde_json::Value = serde_json::from_slice(&text).expect("edits keep it valid");
    assert_eq!(reread, edited);
}

fn read_prompts(document: &Document<'_>, data: &[u8]) {
    for route in &ROUTES {
        let mut bytes = 0;
        pieces(route, document.root(), &mut |piece| match piece {
            Piece::Text(raw) | Piece::Media(raw) => bytes += raw.len(),
            Piece::Tokens(ids) => bytes += ids.count(),
            Piece::Boundary => {}
        });
        assert!(bytes <= data.len(), "no piece is given twice");
        let size = Size::of(route, document.root());
        assert!(size.text_bytes <= data.len() as u64);
        assert!(size.estimated_tokens(4000) <= size.most_tokens());
    }
}

/// Removes, replaces and adds members here and there; returns what should come out.
fn edit(
    value: Value<'_>,
    expected: serde_json::Value,
    script: &mut u64,
    edits: &mut Edits,
) -> serde_json::Value {
    match expected {
        serde_json::Value::Array(elements) => {
            assert_eq!(value.elements().count(), elements.len());
            let pairs = value.elements().zip(elements);
            pairs
                .map(|(element, expected)| edit(element, expected, script, edits))
                .collect()
        }
        serde_json::Value::Object(members) => edit_object(value, members, script, edits),
        serde_json::Value::String(text) => {
            assert_eq!(value.as_str().as_deref(), Some(text.as_str()));
            text.into()
        }
        leaf @ (serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)) => leaf,
    }
}

fn edit_object(
    value: Value<'_>,
    mut members: serde_json::Map<String, serde_json::Value>,
    script: &mut u64,
    edits: &mut Edits,
) -> serde_json::Value {
    assert_eq!(value.kind(), Kind::Object);
    assert_eq!(value.members().count(), members.len());
    let mut expected = serde_json::Map::new();
    for member in value.members() {
        let old = members
            .remove(&*member.key)
            .expect("serde has the same keys");
        let inner = edit(member.value, old, script, edits);
        match next(script) % 6 {
            0 => edits.remove(&member),
            1 => {
                edits.replace(member.value, "[null]");
                expected.insert(member.key.into_owned(), serde_json::json!([null]));
            }
            _ => drop(expected.insert(member.key.into_owned(), inner)),
        }
    }
    if next(script).is_multiple_of(4) && value.get(ADDED).is_none() {
        edits.insert(value, ADDED, "true");
        expected.insert(ADDED.to_owned(), true.into());
    }
    expected.into()
}

fn next(script: &mut u64) -> u64 {
    *script = script
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *script >> 33
}
