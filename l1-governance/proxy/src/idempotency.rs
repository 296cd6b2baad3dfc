//! One request per idempotency key at a time. The second one is told that the first is running.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use governance_core::keys::PublicPart;

/// Keys of running requests remembered at once; beyond this, requests run without the protection.
const MOST: usize = 65_536;
/// The longest idempotency key that is remembered.
pub(crate) const MOST_BYTES: usize = 255;

type Entry = (PublicPart, String);

/// The running requests. A mutex: each request touches it twice, for one look-up.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<BTreeSet<Entry>>>);

/// A running request; its key is free again when this is dropped.
pub(crate) struct Claim {
    running: Running,
    entry: Option<Entry>,
}

/// The same key is running.
#[derive(Debug)]
pub(crate) struct InProgress;

impl Running {
    pub(crate) fn claim(&self, owner: PublicPart, key: &str) -> Result<Claim, InProgress> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = (owner, key.to_owned());
        if running.contains(&entry) {
            return Err(InProgress);
        }
        let remembered = running.len() < MOST && running.insert(entry.clone());
        Ok(Claim {
            running: self.clone(),
            entry: remembered.then_some(entry),
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let mut running = self
                .running
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            running.remove(&entry);
        }
    }
}
