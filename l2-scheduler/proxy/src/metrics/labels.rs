//! Values of a label, bounded for the life of the process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

const OTHER: &str = "other";

/// Names seen so far, up to a number.
pub(super) struct Labels {
    most: usize,
    /// Locked for a look-up. Names are never forgotten: a series that comes and goes would be another one.
    seen: Mutex<BTreeSet<Arc<str>>>,
    other: Arc<str>,
}

impl Labels {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            seen: Mutex::default(),
            other: Arc::from(OTHER),
        }
    }

    pub(super) fn label(&self, name: &str) -> Arc<str> {
        let mut seen = self.lock();
        if let Some(known) = seen.get(name) {
            return Arc::clone(known);
        }
        if seen.len() >= self.most {
            return Arc::clone(&self.other);
        }
        let name: Arc<str> = Arc::from(name);
        seen.insert(Arc::clone(&name));
        name
    }

    /// Every label given so far.
    pub(super) fn all(&self) -> Vec<Arc<str>> {
        let seen = self.lock();
        let mut all: Vec<_> = seen.iter().cloned().collect();
        if all.len() >= self.most {
            all.push(Arc::clone(&self.other));
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.seen.lock().expect("no panic happens under this lock")
    }
}
