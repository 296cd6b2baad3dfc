use super::*;

/// What to do with one member, decided by the next byte of a random script.
#[derive(Clone, Copy)]
enum Change {
    Keep,
    Remove,
    Replace,
}

struct Script<'a>(std::slice::Iter<'a, u8>);

impl Script<'_> {
    fn change(&mut self) -> Change {
        match self.0.next() {
            Some(0..=110) => Change::Remove,
            Some(111..=140) => Change::Replace,
            _ => Change::Keep,
        }
    }

    fn insertions(&mut self) -> u8 {
        self.0.next().map_or(0, |byte| (byte % 8).saturating_sub(5))
    }
}

const REPLACEMENT: &str = r#"{"new":[1,"<>&"]}"#;

/// Collects edits by the script; returns the value as the edits should leave it.
fn edit(value: Value<'_>, script: &mut Script<'_>, edits: &mut Edits) -> serde_json::Value {
    match value.kind() {
        Kind::Array => value
            .elements()
            .map(|element| edit(element, script, edits))
            .collect(),
        Kind::Object => edit_object(value, script, edits),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => read(value),
    }
}

fn edit_object(value: Value<'_>, script: &mut Script<'_>, edits: &mut Edits) -> serde_json::Value {
    let mut expected = serde_json::Map::new();
    for number in 0..script.insertions() {
        let key = format!("\"inserted\"\n{number}");
        edits.insert(value, &key, "18446744073709551616");
        expected.insert(key, 18_446_744_073_709_551_616.0.into());
    }
    for member in value.members() {
        let change = script.change();
        // Also edited inside when it goes away as a whole: those edits must vanish with it.
        let edited = edit(member.value, script, edits);
        match change {
            Change::Keep => drop(expected.insert(member.key.into_owned(), edited)),
            Change::Remove => edits.remove(&member),
            Change::Replace => {
                edits.replace(member.value, REPLACEMENT);
                let replacement = serde_json::from_str(REPLACEMENT).expect("valid");
                expected.insert(member.key.into_owned(), replacement);
            }
        }
    }
    expected.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn edits_do_to_the_text_what_they_would_do_to_the_tree(
        text in text(),
        script in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let document = parse(&text).expect("generated texts are valid");
        let mut edits = Edits::new();
        let expected = edit(document.root(), &mut Script(script.iter()), &mut edits);
        let edited = edits.apply(text.as_bytes());
        let edited = String::from_utf8(edited).expect("text stays text");
        prop_assert!(parse(&edited).is_ok(), "{text}\n{edited}");
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&edited).ok(), Some(expected), "{}\n{}", text, edited);
        if edits.is_empty() {
            prop_assert_eq!(edited, text);
        }
    }

    #[test]
    fn bytes_outside_a_replacement_are_untouched(text in text(), index in any::<prop::sample::Index>()) {
        let document = parse(&text).expect("generated texts are valid");
        let mut values = Vec::new();
        all_values(document.root(), &mut values);
        let value = *index.get(&values);
        let mut edits = Edits::new();
        edits.replace(value, "1");
        let expected = [&text[..value.span().start], "1", &text[value.span().end..]].concat();
        prop_assert_eq!(String::from_utf8(edits.apply(text.as_bytes())).ok(), Some(expected));
    }
}

fn all_values<'a>(value: Value<'a>, out: &mut Vec<Value<'a>>) {
    out.push(value);
    value
        .elements()
        .for_each(|element| all_values(element, out));
    value
        .members()
        .for_each(|member| all_values(member.value, out));
}

/// Removes, replaces and inserts keys of the outermost object: `-a`, `a=1`, `+a=1`.
fn apply(text: &str, script: &[&str]) -> String {
    let document = parse(text).expect("valid");
    let root = document.root();
    let mut edits = Edits::new();
    for step in script {
        if let Some(key) = step.strip_prefix('-') {
            edits.remove(&root.member(key).expect("the key is there"));
        } else if let Some((key, json)) =
            step.strip_prefix('+').and_then(|step| step.split_once('='))
        {
            edits.insert(root, key, json);
        } else if let Some((key, json)) = step.split_once('=') {
            edits.set(root, key, json);
        }
    }
    String::from_utf8(edits.apply(text.as_bytes())).expect("text stays text")
}

#[test]
fn commas_stay_right() {
    let text = r#"{"a":1,"b":2,"c":3}"#;
    for (script, expected) in [
        (&[][..], text),
        (&["-a"], r#"{"b":2,"c":3}"#),
        (&["-b"], r#"{"a":1,"c":3}"#),
        (&["-c"], r#"{"a":1,"b":2}"#),
        (&["-a", "-b"], r#"{"c":3}"#),
        (&["-c", "-b"], r#"{"a":1}"#),
        (&["-a", "-c"], r#"{"b":2}"#),
        (&["-a", "-b", "-c"], "{}"),
        (&["-a", "-a"], r#"{"b":2,"c":3}"#),
        (&["+d=4"], r#"{"d":4,"a":1,"b":2,"c":3}"#),
        (&["+d=4", "+e=5"], r#"{"d":4,"e":5,"a":1,"b":2,"c":3}"#),
        (&["+d=4", "-a"], r#"{"d":4,"b":2,"c":3}"#),
        (&["-a", "-b", "-c", "+d=4"], r#"{"d":4}"#),
        (&["b=7", "b=8"], r#"{"a":1,"b":8,"c":3}"#),
        (&["b=7", "-b"], r#"{"a":1,"c":3}"#),
        (&["d=7"], r#"{"d":7,"a":1,"b":2,"c":3}"#),
    ] {
        assert_eq!(apply(text, script), expected, "{script:?}");
    }
}

#[test]
fn white_space_and_spellings_outside_edits_are_kept() {
    let text = "{ \"n\" : 12345678901234567890.10 ,\n\t\"x\":1,\n\t\"s\": \"a\\/b\\u00e9<>&é😀\" , \"z\":[ ] }\n";
    for (script, expected) in [
        (
            &["-x"][..],
            "{ \"n\" : 12345678901234567890.10 ,\n\t\"s\": \"a\\/b\\u00e9<>&é😀\" , \"z\":[ ] }\n",
        ),
        (
            &["-z"],
            "{ \"n\" : 12345678901234567890.10 ,\n\t\"x\":1,\n\t\"s\": \"a\\/b\\u00e9<>&é😀\"  }\n",
        ),
        (
            &["x=2", "-n"],
            "{ \"x\":2,\n\t\"s\": \"a\\/b\\u00e9<>&é😀\" , \"z\":[ ] }\n",
        ),
    ] {
        assert_eq!(apply(text, script), expected, "{script:?}");
    }
    assert_eq!(apply("{ }", &["+a=1"]), r#"{"a":1 }"#);
}

#[test]
fn neighbours_are_removed_together_whatever_is_removed_inside_them() {
    let text = r#"{"a":1,"b":{"x":1,"y":2},"c":3}"#;
    let document = parse(text).expect("valid");
    let root = document.root();
    let inner = root.get("b").expect("b");
    let mut edits = Edits::new();
    edits.remove(&inner.member("x").expect("x"));
    edits.remove(&root.member("b").expect("b"));
    edits.remove(&root.member("c").expect("c"));
    assert_eq!(edits.apply(text.as_bytes()), br#"{"a":1}"#);
}

#[test]
fn edits_inside_what_is_removed_vanish_with_it() {
    let text = r#"{"outer":{"inner":{"x":1,"y":2}},"other":{"x":1}}"#;
    let document = parse(text).expect("valid");
    let root = document.root();
    let inner = root
        .get("outer")
        .and_then(|outer| outer.get("inner"))
        .expect("inner");
    let other = root.get("other").expect("other");
    let mut edits = Edits::new();
    edits.insert(inner, "z", "3");
    edits.replace(inner.get("x").expect("x"), "9");
    edits.remove(&inner.member("y").expect("y"));
    edits.remove(&root.member("outer").expect("outer"));
    edits.remove(&other.member("x").expect("x"));
    edits.insert(other, "n", "true");
    assert_eq!(edits.apply(text.as_bytes()), br#"{"other":{"n":true}}"#);
}
