//! A forgiving reader of JSON that somebody else has checked: it finds members and skips values by their brackets.
//!
//! It never fails: text that is cut or broken ends early, and what was read before stands.

use std::ops::Range;

use crate::json::string_end;

/// A place in a text.
pub(super) struct Skim<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What the value at hand is, as far as callers care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    String,
    Object,
    Array,
    Null,
    /// A number or boolean.
    Scalar,
    /// The text ends here or is broken.
    Nothing,
}

impl<'a> Skim<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut skim = Self { bytes, at: 0 };
        skim.white_space();
        skim
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn shape(&self) -> Shape {
        match self.bytes.get(self.at) {
            Some(b'"') => Shape::String,
            Some(b'{') => Shape::Object,
            Some(b'[') => Shape::Array,
            Some(b'n') => Shape::Null,
            Some(b't' | b'f' | b'-' | b'0'..=b'9') => Shape::Scalar,
            _ => Shape::Nothing,
        }
    }

    /// Calls `f` for each member of the object at hand with its raw key; `f` must move past the value. Skips anything
    /// that is not an object. Whether the object was read to its closing bracket.
    pub(super) fn members(&mut self, mut f: impl FnMut(&'a [u8], &mut Self)) -> bool {
        self.items(b'{', b'}', |skim| {
            let Some(key) = skim.string() else {
                skim.give_up();
                return;
            };
            skim.past(b':');
            f(&skim.bytes[key], skim);
        })
    }

    /// Calls `f` for each element of the array at hand; `f` must move past it. Skips anything that is not an array.
    pub(super) fn elements(&mut self, f: impl FnMut(&mut Self)) -> bool {
        self.items(b'[', b']', f)
    }

    fn items(&mut self, open: u8, close: u8, mut f: impl FnMut(&mut Self)) -> bool {
        if self.bytes.get(self.at) != Some(&open) {
            self.skip();
            return false;
        }
        self.at += 1;
        loop {
            self.past(b',');
            let before = self.at;
            match self.bytes.get(self.at) {
                None => return false,
                Some(&byte) if byte == close => {
                    self.at += 1;
                    return true;
                }
                Some(_) => f(self),
            }
            if self.at == before {
                self.give_up();
            }
        }
    }

    /// The contents of the string at hand; skips anything else.
    pub(super) fn string(&mut self) -> Option<Range<usize>> {
        if self.bytes.get(self.at) != Some(&b'"') {
            self.skip();
            return None;
        }
        let start = self.at + 1;
        let Some((end, _)) = string_end(self.bytes, start) else {
            self.give_up();
            return None;
        };
        self.at = end + 1;
        Some(start..end)
    }

    /// The number at hand if it is a count; skips anything else.
    pub(super) fn number(&mut self) -> Option<u64> {
        let start = self.at;
        self.skip();
        let digits = &self.bytes[start..self.at];
        if digits.is_empty() || digits.len() > 19 {
            return None;
        }
        digits.iter().try_fold(0_u64, |number, &digit| {
            digit
                .is_ascii_digit()
                .then(|| number * 10 + u64::from(digit - b'0'))
        })
    }

    /// Moves past the value at hand.
    pub(super) fn skip(&mut self) {
        match self.bytes.get(self.at) {
            Some(b'"') => {
                self.string();
            }
            Some(b'{' | b'[') => self.skip_container(),
            Some(_) => self.skip_scalar(),
            None => {}
        }
    }

    fn skip_container(&mut self) {
        let mut depth = 0_usize;
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'"' => {
                    self.string();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    fn skip_scalar(&mut self) {
        let rest = &self.bytes[self.at..];
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
        self.at += rest.iter().position(ends).unwrap_or(rest.len());
    }

    /// Moves past white space and one kind of separator.
    fn past(&mut self, separator: u8) {
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte != separator && !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return;
            }
            self.at += 1;
        }
    }

    fn white_space(&mut self) {
        self.past(b' ');
    }

    fn give_up(&mut self) {
        self.at = self.bytes.len();
    }
}
