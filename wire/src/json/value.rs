//! Reading a checked document: values are spans, nothing is built until asked for.

use std::borrow::Cow;
use std::ops::Range;

use super::Document;
use super::strings::{string_end, unescape};

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

/// A value of a checked document.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    document: &'a Document<'a>,
    start: u32,
    end: u32,
    /// Of an object or array: its place in the index.
    container: u32,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Unescaped.
    pub key: Cow<'a, str>,
    pub value: Value<'a>,
    /// From the quote before the key to the end of the value.
    pub span: Range<usize>,
}

impl<'a> Value<'a> {
    pub(super) fn root(document: &'a Document<'a>) -> Self {
        Self {
            document,
            start: document.root.start as u32,
            end: document.root.end as u32,
            container: 0,
        }
    }

    pub fn kind(self) -> Kind {
        match self.raw_bytes()[0] {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// Where the value stands in the text, a string with its quotes.
    pub fn span(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The value as it is written.
    pub fn raw(self) -> &'a str {
        &self.document.text[self.span()]
    }

    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    pub fn is_string(self) -> bool {
        self.kind() == Kind::String
    }

    pub fn is_array(self) -> bool {
        self.kind() == Kind::Array
    }

    pub fn is_object(self) -> bool {
        self.kind() == Kind::Object
    }

    /// The text of a string.
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        self.raw_str().map(unescape)
    }

    /// The contents of a string as they are written, between the quotes.
    pub fn raw_str(self) -> Option<&'a str> {
        self.is_string()
            .then(|| &self.document.text[self.start as usize + 1..self.end as usize - 1])
    }

    /// A number written as an integer that fits; `None` for `1.0` and `1e3`.
    pub fn as_u64(self) -> Option<u64> {
        (self.kind() == Kind::Number)
            .then(|| self.raw().parse().ok())
            .flatten()
    }

    /// A number written as an integer that fits; `None` for `1.0` and `1e3`.
    pub fn as_i64(self) -> Option<i64> {
        (self.kind() == Kind::Number)
            .then(|| self.raw().parse().ok())
            .flatten()
    }

    /// Any number that is finite as a double.
    pub fn as_f64(self) -> Option<f64> {
        (self.kind() == Kind::Number)
            .then(|| self.raw().parse().ok())
            .flatten()
            .filter(|number: &f64| number.is_finite())
    }

    pub fn as_bool(self) -> Option<bool> {
        (self.kind() == Kind::Bool).then(|| self.raw_bytes()[0] == b't')
    }

    /// Members in the order of the text; none if this is not an object.
    pub fn members(self) -> Members<'a> {
        Members(self.cursor(Kind::Object))
    }

    /// Elements in order; none if this is not an array.
    pub fn elements(self) -> Elements<'a> {
        Elements(self.cursor(Kind::Array))
    }

    /// The value of a key; `None` also if this is not an object.
    pub fn get(self, key: &str) -> Option<Value<'a>> {
        self.member(key).map(|member| member.value)
    }

    /// The member with a key; `None` also if this is not an object.
    pub fn member(self, key: &str) -> Option<Member<'a>> {
        self.members().find(|member| member.key == key)
    }

    fn raw_bytes(self) -> &'a [u8] {
        self.raw().as_bytes()
    }

    fn cursor(self, kind: Kind) -> Cursor<'a> {
        let (at, next_container) = if self.kind() == kind {
            (self.start as usize + 1, self.container + 1)
        } else {
            (self.end as usize, self.container)
        };
        Cursor {
            document: self.document,
            at,
            end: self.end as usize,
            next_container,
        }
    }
}

/// See [`Value::members`].
#[derive(Clone, Debug)]
pub struct Members<'a>(Cursor<'a>);

/// See [`Value::elements`].
#[derive(Clone, Debug)]
pub struct Elements<'a>(Cursor<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        self.0.advance()?;
        let start = self.0.at;
        let key = self.0.value().raw_str()?;
        self.0.past(b':');
        let value = self.0.value();
        Some(Member {
            key: unescape(key),
            value,
            span: start..value.end as usize,
        })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.0.advance()?;
        Some(self.0.value())
    }
}

/// A place inside an object or array. The text is known to be valid, so only spans are looked for.
#[derive(Clone, Debug)]
struct Cursor<'a> {
    document: &'a Document<'a>,
    at: usize,
    /// Offset after the closing bracket.
    end: usize,
    next_container: u32,
}

impl<'a> Cursor<'a> {
    /// Moves to the next key or element; `None` at the end.
    fn advance(&mut self) -> Option<()> {
        self.past(b',');
        (self.at + 1 < self.end).then_some(())
    }

    /// Moves past white space and one `separator`, if it is there.
    fn past(&mut self, separator: u8) {
        let bytes = self.document.text.as_bytes();
        while self.at < self.end
            && (bytes[self.at].is_ascii_whitespace() || bytes[self.at] == separator)
        {
            self.at += 1;
        }
    }

    /// The value that starts here; moves behind it.
    fn value(&mut self) -> Value<'a> {
        let start = self.at;
        let container = self.next_container;
        self.at = self.value_end();
        Value {
            document: self.document,
            start: start as u32,
            end: self.at as u32,
            container,
        }
    }

    fn value_end(&mut self) -> usize {
        let bytes = self.document.text.as_bytes();
        match bytes[self.at] {
            b'{' | b'[' => {
                let container = self.document.containers[self.next_container as usize];
                self.next_container = container.next;
                container.end as usize
            }
            b'"' => {
                let (quote, _) = string_end(bytes, self.at + 1).expect("a checked string ends");
                quote + 1
            }
            _ => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
                let length = bytes[self.at..].iter().position(ends);
                self.at + length.expect("a checked container ends")
            }
        }
    }
}
