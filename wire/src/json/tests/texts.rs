//! Random JSON, written in as many ways as JSON allows.

use proptest::prelude::*;

/// A value before it is written. Numbers are kept as text: big ones and odd spellings must survive.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Literal(&'static str),
    Number(String),
    Text(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

/// Trees with few enough keys that some objects hold one twice.
pub(super) fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "false"]).prop_map(Tree::Literal),
        number().prop_map(Tree::Number),
        string().prop_map(Tree::Text),
    ];
    leaf.prop_recursive(5, 60, 16, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Tree::Array),
            prop::collection::vec((key(), inner), 0..20).prop_map(Tree::Object),
        ]
    })
}

/// A tree without duplicate keys, written in a random style.
pub(super) fn text() -> impl Strategy<Value = String> {
    (tree(), any::<u64>()).prop_map(|(tree, style)| tree.distinct().render(style))
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?",
    ]
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a-z <>&/\\\\\"\n\t]{0,80}",
        Just("\"usage\":{\"prompt_tokens\":9}".to_owned()),
        Just("日本語 😀 \u{7f}\u{0}\u{2028}".to_owned()),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z]{3,9}",
        1 => prop::sample::select(vec!["dup", "ключ", "a\"b", "a\\b", "a/b", "", "\n"]).prop_map(String::from),
    ]
}

impl Tree {
    /// The same tree with later members of the same name renamed.
    pub(super) fn distinct(self) -> Self {
        match self {
            Self::Array(elements) => {
                Self::Array(elements.into_iter().map(Self::distinct).collect())
            }
            Self::Object(members) => {
                let renamed = members
                    .into_iter()
                    .enumerate()
                    .map(|(index, (key, value))| (format!("{key}{index}"), value.distinct()));
                Self::Object(renamed.collect())
            }
            leaf @ (Self::Literal(_) | Self::Number(_) | Self::Text(_)) => leaf,
        }
    }

    /// JSON in a style that the seed decides: white space, escapes.
    pub(super) fn render(&self, seed: u64) -> String {
        let mut writer = Writer {
            seed,
            out: String::new(),
        };
        writer.space();
        writer.value(self);
        writer.space();
        writer.out
    }
}

struct Writer {
    seed: u64,
    out: String,
}

impl Writer {
    /// A number below `bound`; always zero for seed zero.
    fn choose(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % bound
    }

    fn space(&mut self) {
        let spaces = ["", "", "", " ", "\n", "\t ", "\r\n"];
        let choice = self.choose(spaces.len() as u64);
        self.out.push_str(spaces[choice as usize]);
    }

    fn value(&mut self, tree: &Tree) {
        match tree {
            Tree::Literal(text) => self.out.push_str(text),
            Tree::Number(text) => self.out.push_str(text),
            Tree::Text(text) => self.string(text),
            Tree::Array(elements) => {
                self.list('[', ']', elements, Self::value);
            }
            Tree::Object(members) => self.list('{', '}', members, |writer, (key, value)| {
                writer.string(key);
                writer.space();
                writer.out.push(':');
                writer.space();
                writer.value(value);
            }),
        }
    }

    fn list<T>(&mut self, open: char, close: char, items: &[T], write: impl Fn(&mut Self, &T)) {
        self.out.push(open);
        self.space();
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
                self.space();
            }
            write(self, item);
            self.space();
        }
        self.out.push(close);
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            let must = matches!(character, '"' | '\\' | '\0'..='\u{1f}');
            let by_number = self.choose(16) == 1;
            match character {
                _ if by_number => self.numbered(character),
                '"' | '\\' => self.out.extend(['\\', character]),
                '/' if self.choose(2) == 1 => self.out.push_str("\\/"),
                '\n' => self.out.push_str("\\n"),
                '\t' => self.out.push_str("\\t"),
                '\r' => self.out.push_str("\\r"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if must => self.numbered(character),
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    fn numbered(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let escape = if self.choose(2) == 1 {
                format!("\\u{unit:04x}")
            } else {
                format!("\\u{unit:04X}")
            };
            self.out.push_str(&escape);
        }
    }
}
