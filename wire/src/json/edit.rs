//! Changes to a checked text: everything outside them stays byte for byte what it was.

use std::ops::Range;

use super::{Member, Value, quote};

/// A set of changes to one document, collected while reading it and applied once.
///
/// A change inside something that is removed or replaced is dropped with it. Of several replacements of one value the
/// last counts.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    removals: Vec<Range<usize>>,
    replacements: Vec<Patch>,
    /// New members by the offset after their object's opening brace.
    insertions: Vec<Patch>,
}

#[derive(Clone, Debug)]
struct Patch {
    span: Range<usize>,
    bytes: Vec<u8>,
}

impl Edits {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.removals.is_empty() && self.replacements.is_empty() && self.insertions.is_empty()
    }

    /// Takes a member out of its object, with the comma that belonged to it.
    pub fn remove(&mut self, member: &Member<'_>) {
        self.removals.push(member.span.clone());
    }

    /// Puts other JSON in place of a value.
    pub fn replace(&mut self, value: Value<'_>, json: impl Into<Vec<u8>>) {
        self.replacements.push(Patch {
            span: value.span(),
            bytes: json.into(),
        });
    }

    /// Adds a member at the front of an object. The caller knows that the key is not there, or removes it as well.
    ///
    /// # Panics
    /// If `object` is not an object.
    pub fn insert(&mut self, object: Value<'_>, key: &str, json: impl AsRef<[u8]>) {
        assert!(object.is_object(), "members are inserted into objects");
        let at = object.span().start + 1;
        let mut bytes = quote(key).into_bytes();
        bytes.push(b':');
        bytes.extend_from_slice(json.as_ref());
        self.insertions.push(Patch {
            span: at..at,
            bytes,
        });
    }

    /// Replaces the value of a key, or inserts the key.
    ///
    /// # Panics
    /// If `object` is not an object.
    pub fn set(&mut self, object: Value<'_>, key: &str, json: impl AsRef<[u8]>) {
        match object.get(key) {
            Some(value) => self.replace(value, json.as_ref()),
            None => self.insert(object, key, json),
        }
    }

    /// The text with all changes made. `text` is what the document was parsed from.
    pub fn apply(&self, text: &[u8]) -> Vec<u8> {
        let patches = self.patches(text);
        let added: usize = patches.iter().map(|patch| patch.bytes.len()).sum();
        let mut edited = Vec::with_capacity(text.len() + added);
        let mut at = 0;
        for patch in patches {
            // Inside what an earlier patch has taken away.
            if patch.span.start < at {
                continue;
            }
            edited.extend_from_slice(&text[at..patch.span.start]);
            edited.extend_from_slice(&patch.bytes);
            at = patch.span.end;
        }
        edited.extend_from_slice(&text[at..]);
        edited
    }

    /// All changes as replacements of spans, outer before inner.
    fn patches(&self, text: &[u8]) -> Vec<Patch> {
        let cuts = cuts(text, &self.removals);
        let mut patches = self.grouped_insertions(text, &cuts);
        // Reversed, so that of equal spans the last one given comes first and hides the others.
        patches.extend(self.replacements.iter().rev().cloned());
        patches.extend(cuts.into_iter().map(|span| Patch {
            span,
            bytes: Vec::new(),
        }));
        // An insertion is an empty span: it goes before whatever starts at the same place.
        patches.sort_by_key(|patch| (patch.span.start, !patch.span.is_empty()));
        patches
    }

    /// One patch for each object that gets members, with the commas between and after them.
    fn grouped_insertions(&self, text: &[u8], cuts: &[Range<usize>]) -> Vec<Patch> {
        let mut insertions: Vec<&Patch> = self.insertions.iter().collect();
        insertions.sort_by_key(|patch| patch.span.start);
        insertions
            .chunk_by(|left, right| left.span == right.span)
            .map(|group| {
                let members: Vec<&[u8]> =
                    group.iter().map(|patch| patch.bytes.as_slice()).collect();
                let mut bytes = members.join(&b',');
                if keeps_members(text, group[0].span.start, cuts) {
                    bytes.push(b',');
                }
                Patch {
                    span: group[0].span.clone(),
                    bytes,
                }
            })
            .collect()
    }
}

/// Member spans widened by the comma each takes along: the one behind it, or, at the end of an object, the one before.
/// Sorted, not overlapping; neighbours at the end of an object become one cut.
fn cuts(text: &[u8], members: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut members: Vec<&Range<usize>> = members.iter().collect();
    members.sort_by_key(|span| span.start);
    let mut cuts: Vec<Range<usize>> = Vec::with_capacity(members.len());
    for member in members {
        if cuts.last().is_some_and(|cut| member.start < cut.end) {
            continue;
        }
        let after = skip_white_space(text, member.end);
        if text.get(after) == Some(&b',') {
            cuts.push(member.start..skip_white_space(text, after + 1));
            continue;
        }
        let mut start = member.start;
        while let Some(neighbour) = cuts.pop_if(|cut| cut.end == start) {
            start = neighbour.start;
        }
        let before = text[..start].trim_ascii_end();
        if before.last() == Some(&b',') {
            start = before.len() - 1;
        }
        cuts.push(start..member.end);
    }
    cuts
}

/// Whether the object whose contents start at `at` has a member that is not cut.
fn keeps_members(text: &[u8], mut at: usize, cuts: &[Range<usize>]) -> bool {
    loop {
        at = skip_white_space(text, at);
        match cuts.binary_search_by_key(&at, |cut| cut.start) {
            Ok(cut) => at = cuts[cut].end,
            Err(_) => return text.get(at) != Some(&b'}'),
        }
    }
}

fn skip_white_space(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.len() - rest.trim_ascii_start().len()
}
