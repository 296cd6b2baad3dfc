//! One pass over a text: is it JSON, where do its objects and arrays end, does a key repeat.

use std::ops::Range;

use super::strings::{hex4, quote_or_backslash, unescape};
use super::{Container, JsonError, MAX_CONTAINERS, MAX_DEPTH};

/// Objects with at most this many keys are compared pair by pair; sorting costs more.
const FEW_KEYS: usize = 12;

/// The root's span and every container of `text`, whose length fits 32 bits.
pub(super) fn scan(text: &str) -> Result<(Range<usize>, Vec<Container>), JsonError> {
    let mut scanner = Scanner {
        text,
        bytes: text.as_bytes(),
        at: 0,
        controls: has_controls(text.as_bytes()),
        containers: Vec::new(),
        keys: Vec::new(),
    };
    scanner.white_space();
    let start = scanner.at;
    scanner.value(0)?;
    let end = scanner.at;
    scanner.white_space();
    if scanner.at < text.len() {
        return Err(scanner.expected("the end of the text"));
    }
    Ok((start..end, scanner.containers))
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Whether the text has any control character: without one, strings need no second look.
    controls: bool,
    containers: Vec<Container>,
    /// Keys of the objects that are open, innermost last.
    keys: Vec<Key>,
}

/// Raw contents of a key.
#[derive(Clone, Copy)]
struct Key {
    start: u32,
    end: u32,
    escaped: bool,
}

impl Scanner<'_> {
    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'{') => self.container(depth, Self::object),
            Some(b'[') => self.container(depth, Self::array),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(self.expected("a value")),
        }
    }

    fn container(
        &mut self,
        depth: usize,
        contents: fn(&mut Self, usize) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if depth == MAX_DEPTH {
            return Err(JsonError::TooDeep { offset: self.at });
        }
        if self.containers.len() == MAX_CONTAINERS {
            return Err(JsonError::TooComplex { offset: self.at });
        }
        let index = self.containers.len();
        self.containers.push(Container { end: 0, next: 0 });
        self.at += 1;
        contents(self, depth + 1)?;
        self.containers[index] = Container {
            end: self.at as u32,
            next: self.containers.len() as u32,
        };
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        let first_key = self.keys.len();
        self.white_space();
        if self.skip(b'}') {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key"));
            }
            let key = self.string()?;
            self.keys.push(key);
            self.white_space();
            if !self.skip(b':') {
                return Err(self.expected("':'"));
            }
            self.white_space();
            self.value(depth)?;
            self.white_space();
            if self.skip(b'}') {
                break;
            }
            if !self.skip(b',') {
                return Err(self.expected("',' or '}'"));
            }
            self.white_space();
        }
        refuse_duplicates(self.text, &self.keys[first_key..])?;
        self.keys.truncate(first_key);
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.white_space();
        if self.skip(b']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.white_space();
            if self.skip(b']') {
                return Ok(());
            }
            if !self.skip(b',') {
                return Err(self.expected("',' or ']'"));
            }
            self.white_space();
        }
    }

    fn string(&mut self) -> Result<Key, JsonError> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            let Some(at) = quote_or_backslash(self.bytes, self.at) else {
                self.at = self.bytes.len();
                return Err(self.expected("'\"'"));
            };
            if self.controls {
                self.refuse_controls(at)?;
            }
            self.at = at;
            if self.bytes[at] == b'"' {
                self.at += 1;
                return Ok(Key {
                    start: start as u32,
                    end: at as u32,
                    escaped,
                });
            }
            escaped = true;
            self.escape()?;
        }
    }

    fn refuse_controls(&mut self, until: usize) -> Result<(), JsonError> {
        let segment = &self.bytes[self.at..until];
        if has_controls(segment) {
            let found = segment.iter().position(|&byte| byte < 0x20);
            self.at += found.unwrap_or_default();
            return Err(self.expected("an escape, not a control character"));
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => self.unicode_escape(),
            _ => Err(self.expected("a valid escape")),
        }
    }

    fn unicode_escape(&mut self) -> Result<(), JsonError> {
        let used = match hex4(self.bytes, self.at + 2) {
            None => return Err(self.expected("four hexadecimal digits")),
            Some(0xD800..0xDC00) => {
                let paired = self.bytes.get(self.at + 6..self.at + 8) == Some(b"\\u")
                    && matches!(hex4(self.bytes, self.at + 8), Some(0xDC00..0xE000));
                if !paired {
                    return Err(self.expected("a pair of surrogates"));
                }
                12
            }
            Some(0xDC00..0xE000) => return Err(self.expected("a pair of surrogates")),
            Some(_) => 6,
        };
        self.at += used;
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        self.skip(b'-');
        if !self.skip(b'0') {
            self.digits()?;
        }
        if self.skip(b'.') {
            self.digits()?;
        }
        if self.skip(b'e') || self.skip(b'E') {
            let _ = self.skip(b'+') || self.skip(b'-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let rest = &self.bytes[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return Err(self.expected("a digit"));
        }
        self.at += count;
        Ok(())
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), JsonError> {
        if self.bytes[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.expected("true, false or null"))
    }

    #[inline]
    fn white_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    #[inline]
    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expected(&self, expected: &'static str) -> JsonError {
        JsonError::Syntax {
            offset: self.at,
            expected,
        }
    }
}

/// Looks at blocks without an early exit, which compilers turn into vector code.
fn has_controls(bytes: &[u8]) -> bool {
    bytes.chunks(64).any(|block| {
        block
            .iter()
            .fold(0, |found, &byte| found | u8::from(byte < 0x20))
            != 0
    })
}

fn refuse_duplicates(text: &str, keys: &[Key]) -> Result<(), JsonError> {
    let duplicate = if keys.len() <= FEW_KEYS {
        among_few(text, keys)
    } else {
        among_many(text, keys)
    };
    duplicate.map_or(Ok(()), |key| {
        Err(JsonError::DuplicateKey {
            offset: key.start as usize - 1,
            key: unescape(raw(text, key)).into_owned(),
        })
    })
}

fn among_few(text: &str, keys: &[Key]) -> Option<Key> {
    (1..keys.len())
        .find(|&later| {
            keys[..later]
                .iter()
                .any(|&earlier| same(text, earlier, keys[later]))
        })
        .map(|later| keys[later])
}

/// Sorted by hash, then by contents, so that neither many keys nor colliding ones cost quadratic time.
fn among_many(text: &str, keys: &[Key]) -> Option<Key> {
    let mut hashed: Vec<(u64, Key)> = keys.iter().map(|&key| (hash(text, key), key)).collect();
    hashed.sort_unstable_by(|(left_hash, left), (right_hash, right)| {
        left_hash
            .cmp(right_hash)
            .then_with(|| unescape(raw(text, *left)).cmp(&unescape(raw(text, *right))))
            .then_with(|| left.start.cmp(&right.start))
    });
    hashed
        .windows(2)
        .filter(|pair| pair[0].0 == pair[1].0 && same(text, pair[0].1, pair[1].1))
        .map(|pair| pair[1].1)
        .min_by_key(|key| key.start)
}

fn same(text: &str, left: Key, right: Key) -> bool {
    if left.escaped || right.escaped {
        return unescape(raw(text, left)) == unescape(raw(text, right));
    }
    raw(text, left) == raw(text, right)
}

/// FNV-1a over the unescaped key.
fn hash(text: &str, key: Key) -> u64 {
    let fnv = |bytes: &[u8]| {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    if key.escaped {
        fnv(unescape(raw(text, key)).as_bytes())
    } else {
        fnv(raw(text, key).as_bytes())
    }
}

fn raw(text: &str, key: Key) -> &str {
    &text[key.start as usize..key.end as usize]
}
