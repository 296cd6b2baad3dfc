//! The line that moves while a load runs.

use std::io::{IsTerminal, Write};

use super::tally::Tally;

/// Who watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nobody.
    Silent,
    /// Someone at a terminal: one line on standard error, written over every second.
    Terminal,
}

impl Progress {
    /// A line if standard error is a terminal, else nothing.
    pub fn if_terminal() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Terminal
        } else {
            Self::Silent
        }
    }

    pub(super) fn show(self, tally: &Tally, expected: Option<u64>) {
        if self == Self::Terminal {
            write_over(&tally.line(expected));
        }
    }

    pub(super) fn end(self) {
        if self == Self::Terminal {
            write_over("");
        }
    }
}

/// A terminal that went away is no reason to end a run.
fn write_over(line: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
}
