//! JSON by span: a whole text is checked once, read lazily, and edited without touching any other byte. It is not a
//! serialiser and builds no tree of values.
//!
//! The check is stricter than most parsers because two parsers must not disagree about a request: duplicate keys are
//! refused at any depth (compared after unescaping), and so are unpaired surrogates.

mod edit;
mod scan;
mod strings;
mod value;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use edit::Edits;
pub(crate) use strings::string_end;
pub use strings::{quote, unescape, unescaped_len};
pub use value::{Elements, Kind, Member, Members, Value};

/// Nesting beyond this is refused.
pub const MAX_DEPTH: usize = 128;

/// More objects and arrays than this in one text are refused, which bounds the memory of the index.
pub const MAX_CONTAINERS: usize = 1 << 20;

/// A checked JSON text with an index of its objects and arrays.
#[derive(Debug)]
pub struct Document<'a> {
    text: &'a str,
    /// The root value without surrounding white space.
    root: Range<usize>,
    containers: Vec<Container>,
}

/// An object or array, in the order in which they open.
#[derive(Clone, Copy, Debug)]
struct Container {
    /// Offset after the closing bracket.
    end: u32,
    /// Index of the first container that opens after this one has closed.
    next: u32,
}

/// Why a text is not accepted. Offsets are in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    #[error("invalid JSON at byte {offset}: expected {expected}")]
    Syntax {
        offset: usize,
        expected: &'static str,
    },
    #[error("invalid UTF-8 at byte {offset}")]
    Utf8 { offset: usize },
    #[error("duplicate key {key:?} at byte {offset}")]
    DuplicateKey { offset: usize, key: String },
    #[error("nested deeper than {MAX_DEPTH} levels at byte {offset}")]
    TooDeep { offset: usize },
    #[error("more than {MAX_CONTAINERS} objects and arrays at byte {offset}")]
    TooComplex { offset: usize },
    #[error("text of {length} bytes is too long")]
    TooLong { length: usize },
}

impl JsonError {
    /// Where the text stopped being acceptable.
    pub fn offset(&self) -> usize {
        match *self {
            Self::Syntax { offset, .. }
            | Self::Utf8 { offset }
            | Self::DuplicateKey { offset, .. }
            | Self::TooDeep { offset }
            | Self::TooComplex { offset } => offset,
            Self::TooLong { .. } => 0,
        }
    }
}

impl<'a> Document<'a> {
    /// Checks the whole text: syntax, UTF-8, duplicate keys, depth.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, JsonError> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(JsonError::TooLong {
                length: bytes.len(),
            });
        }
        let text = std::str::from_utf8(bytes).map_err(|error| JsonError::Utf8 {
            offset: error.valid_up_to(),
        })?;
        let (root, containers) = scan::scan(text)?;
        Ok(Self {
            text,
            root,
            containers,
        })
    }

    /// The outermost value.
    pub fn root(&self) -> Value<'_> {
        Value::root(self)
    }

    /// The text that was checked.
    pub fn text(&self) -> &'a str {
        self.text
    }
}
