//! The endpoints of a pool, in the order of their ids, and which of them may have changed since somebody last asked.

use std::ops::{Deref, Index, IndexMut};

use super::Endpoint;

/// Whoever gets hold of an endpoint to change it leaves a note: what is derived from endpoints is derived anew only where
/// there is one.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    list: Vec<Endpoint>,
    /// Indices with a note, each once.
    changed: Vec<u32>,
    has_note: Vec<bool>,
    /// Endpoints came or went, so indices mean others than before.
    has_moved: bool,
}

impl Endpoints {
    pub(crate) fn insert(&mut self, index: usize, endpoint: Endpoint) {
        self.list.insert(index, endpoint);
        self.moved();
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.list.remove(index);
        self.moved();
    }

    fn moved(&mut self) {
        self.has_moved = true;
        self.changed.clear();
        self.has_note.clear();
        self.has_note.resize(self.list.len(), false);
    }

    /// Leaves a note on every endpoint that is `chosen`.
    pub(crate) fn note(&mut self, chosen: impl Fn(&Endpoint) -> bool) {
        for index in 0..self.list.len() {
            if chosen(&self.list[index]) {
                self.leave_note(index);
            }
        }
    }

    /// Whether [`Endpoints::take_moved`] would say so.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// How many may have changed.
    pub(crate) fn changed(&self) -> usize {
        self.changed.len()
    }

    /// Whether indices mean others than when this was asked last.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// One endpoint that may have changed, until there is none.
    pub(crate) fn next_changed(&mut self) -> Option<u32> {
        let index = self.changed.pop()?;
        self.has_note[index as usize] = false;
        Some(index)
    }

    /// What was derived from this endpoint no longer holds.
    pub(crate) fn leave_note(&mut self, index: usize) {
        if !std::mem::replace(&mut self.has_note[index], true) {
            self.changed.push(index as u32);
        }
    }
}

impl Deref for Endpoints {
    type Target = [Endpoint];
    fn deref(&self) -> &[Endpoint] {
        &self.list
    }
}

impl Index<usize> for Endpoints {
    type Output = Endpoint;
    fn index(&self, index: usize) -> &Endpoint {
        &self.list[index]
    }
}

impl IndexMut<usize> for Endpoints {
    fn index_mut(&mut self, index: usize) -> &mut Endpoint {
        self.leave_note(index);
        &mut self.list[index]
    }
}
