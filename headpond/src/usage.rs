//! A command line that its parser takes and that is wrong all the same: it ends as what the parser refuses.

use std::fmt;

/// What the parser of the command line exits with.
pub(crate) const STATUS: u8 = 2;

/// What is wrong with an option, or in which option something is wrong.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl Usage {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
