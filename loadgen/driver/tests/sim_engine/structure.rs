//! The structure of JSON and of streams: names and types, without values.

use serde_json::Value;

/// Keys and types of a value, readable in a diff. Lists are described by their first element.
pub(crate) fn of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(n) if n.is_f64() => "float".to_owned(),
        Value::Number(_) => "int".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(values) => format!("[{}]", values.first().map_or(String::new(), of)),
        Value::Object(map) => {
            let mut members: Vec<String> =
                map.iter().map(|(k, v)| format!("{k}: {}", of(v))).collect();
            members.sort();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// Event names and structures of a stream, one line each, repetitions left out.
pub(crate) fn of_stream(body: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for event in body.split("\n\n").filter(|e| !e.is_empty()) {
        let mut line = String::new();
        for field in event.split('\n') {
            let (name, value) = field
                .split_once(": ")
                .unwrap_or_else(|| panic!("no field: {field:?}"));
            line.push_str(name);
            line.push(' ');
            line.push_str(&match (name, serde_json::from_str(value)) {
                ("data", Ok(json)) => of(&json),
                _ => value.to_owned(),
            });
            line.push('\n');
        }
        if lines.last() != Some(&line) {
            lines.push(line);
        }
    }
    lines
}

#[test]
fn structure_ignores_values_and_keeps_types() {
    let of = |text: &str| of(&serde_json::from_str(text).expect("valid JSON"));
    assert_eq!(of(r#"{"b":1,"a":["x","y"]}"#), of(r#"{"a":["z"],"b":2}"#));
    assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":"1"}"#));
    assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":null}"#));
    assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":1,"b":1}"#));
}
