//! Entries: append only, each carrying the hash of the one before.

use std::fmt;

use governance_context::AttemptId;

use super::row::{AccountNo, PolicyNo};
use crate::account::UnixMs;

/// What an entry records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A window grants something: its opening.
    Credit,
    /// The grant changed with the policy.
    Adjust,
    /// Debt moved from an earlier window to this one.
    Roll,
    /// An attempt set something aside.
    Hold,
    /// Usage is known.
    Commit,
    /// No work was done.
    Release,
    /// The end is unknown.
    Unknown,
    /// An unknown end was resolved by the tier's rule.
    Resolve,
}

impl EntryKind {
    /// The name stored in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            EntryKind::Credit => "credit",
            EntryKind::Adjust => "adjust",
            EntryKind::Roll => "roll",
            EntryKind::Hold => "hold",
            EntryKind::Commit => "commit",
            EntryKind::Release => "release",
            EntryKind::Unknown => "unknown",
            EntryKind::Resolve => "resolve",
        }
    }

    /// The inverse of [`EntryKind::as_str`].
    pub fn parse(text: &str) -> Option<EntryKind> {
        // Read once per entry by an audit of millions: a match, not a search.
        Some(match text {
            "credit" => EntryKind::Credit,
            "adjust" => EntryKind::Adjust,
            "roll" => EntryKind::Roll,
            "hold" => EntryKind::Hold,
            "commit" => EntryKind::Commit,
            "release" => EntryKind::Release,
            "unknown" => EntryKind::Unknown,
            "resolve" => EntryKind::Resolve,
            _ => return None,
        })
    }

    /// Whether it ends a leg.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            EntryKind::Commit | EntryKind::Release | EntryKind::Resolve
        )
    }
}

/// A BLAKE3 hash in the chain. All zero before the first entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How an entry moves the counters of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Deltas {
    pub(super) granted: i64,
    pub(super) held: i64,
    pub(super) used: i64,
    pub(super) debt: i64,
}

/// A row of `entry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// From 1, without gaps.
    pub seq: u64,
    /// Which attempt, if one.
    pub attempt: Option<AttemptId>,
    /// What it records.
    pub kind: EntryKind,
    /// Whose counters move.
    pub account: AccountNo,
    /// Under which policy.
    pub policy: PolicyNo,
    /// In which window.
    pub window: UnixMs,
    /// Where that window ends, so that entries alone rebuild it.
    pub window_end: UnixMs,
    /// By how much the grant moves.
    pub d_granted: i64,
    /// By how much what is set aside moves.
    pub d_held: i64,
    /// By how much what is used moves.
    pub d_used: i64,
    /// By how much what is owed moves.
    pub d_debt: i64,
    /// When.
    pub at: UnixMs,
    /// The hash of the entry before.
    pub prev_hash: Hash,
    /// The hash of this entry.
    pub hash: Hash,
}

impl Entry {
    /// The hash this entry ought to have.
    pub fn computed_hash(&self) -> Hash {
        const LEN: usize = 32 + 8 + 1 + 16 + 1 + 4 + 4 + 7 * 8;
        let mut bytes = [0; LEN];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&self.prev_hash.0);
        put(&self.seq.to_le_bytes());
        put(&[u8::from(self.attempt.is_some())]);
        put(self
            .attempt
            .as_ref()
            .map_or(&[0; 16], |id| id.as_uuid().as_bytes()));
        put(&[self.kind as u8]);
        put(&self.account.0.to_le_bytes());
        put(&self.policy.0.to_le_bytes());
        put(&self.window.0.to_le_bytes());
        put(&self.window_end.0.to_le_bytes());
        put(&self.d_granted.to_le_bytes());
        put(&self.d_held.to_le_bytes());
        put(&self.d_used.to_le_bytes());
        put(&self.d_debt.to_le_bytes());
        put(&self.at.0.to_le_bytes());
        Hash(*blake3::hash(&bytes).as_bytes())
    }
}

/// The end of the chain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chain {
    pub(super) seq: u64,
    pub(super) hash: Hash,
}

impl Chain {
    /// Numbers, links and hashes an entry.
    pub(super) fn append(&mut self, mut entry: Entry) -> Entry {
        entry.seq = self.seq + 1;
        entry.prev_hash = self.hash;
        entry.hash = entry.computed_hash();
        self.seq = entry.seq;
        self.hash = entry.hash;
        entry
    }
}
