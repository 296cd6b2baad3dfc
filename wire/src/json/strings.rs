//! JSON strings: finding their end, reading and writing their escapes.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// Bytes looked at one by one before a vector search is worth its set-up; most keys and many values end earlier.
const SHORT: usize = 16;

/// Offset of the next quote or backslash at or after `from`.
#[inline]
pub(crate) fn quote_or_backslash(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let near = &rest[..rest.len().min(SHORT)];
    if let Some(at) = near.iter().position(|&byte| byte == b'"' || byte == b'\\') {
        return Some(from + at);
    }
    memchr2(b'"', b'\\', &rest[near.len()..]).map(|at| from + near.len() + at)
}

/// Offset of the closing quote of the string whose contents start at `from`; whether it holds escapes.
#[inline]
pub(crate) fn string_end(bytes: &[u8], from: usize) -> Option<(usize, bool)> {
    let mut at = from;
    let mut escaped = false;
    loop {
        at = quote_or_backslash(bytes, at)?;
        if bytes[at] == b'"' {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// The text a string's raw contents (between the quotes) stand for. Escapes that are not JSON are kept as they are.
pub fn unescape(raw: &str) -> Cow<'_, str> {
    let Some(first) = memchr(b'\\', raw.as_bytes()) else {
        return Cow::Borrowed(raw);
    };
    let mut text = String::with_capacity(raw.len());
    text.push_str(&raw[..first]);
    let mut rest = &raw[first..];
    while !rest.is_empty() {
        let (character, used) = escape_at(rest);
        text.extend(character);
        rest = &rest[used..];
        let plain = memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len());
        text.push_str(&rest[..plain]);
        rest = &rest[plain..];
    }
    Cow::Owned(text)
}

/// How many bytes of UTF-8 a string's raw contents stand for, without building them.
pub fn unescaped_len(raw: &[u8]) -> usize {
    let mut length = raw.len();
    let mut at = 0;
    while let Some(found) = raw.get(at..).and_then(|rest| memchr(b'\\', rest)) {
        at += found;
        let unit = (raw.get(at + 1) == Some(&b'u'))
            .then(|| hex4(raw, at + 2))
            .flatten();
        let (used, stands_for) = match unit {
            None => (2, 1),
            Some(..0x80) => (6, 1),
            // A surrogate is half of a pair that stands for four bytes.
            Some(0x80..0x800 | 0xD800..0xE000) => (6, 2),
            Some(_) => (6, 3),
        };
        length = length.saturating_sub(used - stands_for);
        at += used;
    }
    length
}

/// A JSON string literal for `text`, with its quotes.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\0'..='\u{1f}' => {
                let code = u32::from(character);
                quoted.push_str("\\u00");
                quoted.extend(
                    [code >> 4, code & 15].map(|digit| char::from_digit(digit, 16).unwrap_or('0')),
                );
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// The UTF-16 unit written as four hexadecimal digits at `at`.
pub(crate) fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |value, &digit| {
        Some(value * 16 + char::from(digit).to_digit(16)?)
    })
}

/// The character of the escape `text` starts with and the bytes it takes.
fn escape_at(text: &str) -> (Option<char>, usize) {
    let bytes = text.as_bytes();
    let simple = |character| (Some(character), 2);
    match bytes.get(1) {
        Some(b'b') => simple('\u{8}'),
        Some(b'f') => simple('\u{c}'),
        Some(b'n') => simple('\n'),
        Some(b'r') => simple('\r'),
        Some(b't') => simple('\t'),
        Some(&byte @ (b'"' | b'\\' | b'/')) => simple(char::from(byte)),
        Some(b'u') => unicode_escape(bytes),
        _ => (Some('\\'), 1),
    }
}

fn unicode_escape(bytes: &[u8]) -> (Option<char>, usize) {
    match hex4(bytes, 2) {
        Some(high @ 0xD800..0xDC00) => {
            let low = (bytes.get(6..8) == Some(b"\\u"))
                .then(|| hex4(bytes, 8))
                .flatten();
            match low {
                Some(low @ 0xDC00..0xE000) => {
                    let code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                    (char::from_u32(code), 12)
                }
                _ => (Some(char::REPLACEMENT_CHARACTER), 6),
            }
        }
        Some(unit) => (
            Some(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
            6,
        ),
        None => (Some('\\'), 1),
    }
}
